-- Functions of the outbox.

-- The event that a row with a routing key stands for. Other clients leave the key out of it; whoever knows nothing of
-- events writes only what happened.
create or replace function pgbus_outbox_event(entry pgbus_outbox_entries) returns jsonb
language sql volatile set search_path from current set timezone to 'UTC' as $$
  select case
    when jsonb_typeof(entry.payload) = 'object' and entry.payload ? 'event_id' then
      jsonb_build_object('routing_key', entry.routing_key) || entry.payload
    else jsonb_build_object(
      'event_id', gen_random_uuid(), 'routing_key', entry.routing_key,
      'published_at', to_char(entry.created_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
      'payload', case when jsonb_typeof(entry.payload) = 'object' then entry.payload
                      else jsonb_build_object('value', entry.payload) end)
  end;
$$;

-- The table of a row's queue, which is made if it is missing. `prefix`: with its underscore. `levels`: of priority, 1
-- for none.
create or replace function pgbus_outbox_table(queue text, priority int, prefix text, levels int, notify boolean) returns text
language plpgsql set search_path from current as $$
declare
  bare constant text := lower(prefix || queue);
  physical constant text := bare || case when levels > 1
    then '_p' || least(greatest(coalesce(priority, 0), 0), levels - 1) else '' end;
begin
  if queue !~ '^[A-Za-z0-9_]+$' or length(bare) > 43 then
    raise exception 'queue name "%" is not allowed: at most % letters, digits and underscores', queue, 43 - length(prefix)
      using errcode = 'invalid_parameter_value';
  end if;
  if to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
    perform pgbus_create_queue(physical, 'job', false, notify);
  end if;
  return physical;
end $$;

-- When a row's message may be delivered.
create or replace function pgbus_outbox_due(entry pgbus_outbox_entries) returns timestamptz
language sql volatile set search_path from current as $$
  select greatest(clock_timestamp(), entry.due_at,
                  entry.created_at at time zone 'UTC' + coalesce(entry.delay, 0) * interval '1 second');
$$;

-- Sends one row. Returns what is to be noted about it: a unique job of which there is one already is left out.
create or replace function pgbus_outbox_send(entry pgbus_outbox_entries, prefix text, levels int, notify boolean) returns text
language plpgsql set search_path from current as $$
declare
  due constant timestamptz := pgbus_outbox_due(entry);
  headers constant jsonb := nullif(entry.headers, 'null');
  physical text;
  result record;
begin
  if entry.routing_key is not null then
    perform pgmq.send_batch_topic(entry.routing_key, array[pgbus_outbox_event(entry)], array[headers], due);
    return null;
  end if;
  physical := pgbus_outbox_table(entry.queue_name, entry.priority, prefix, levels, notify);
  if entry.options is null then
    execute format('insert into pgmq.%I (vt, message, headers) values ($1, $2, $3)', 'q_' || physical)
      using due, entry.payload, headers;
    return null;
  end if;
  select e.status, e.holder_queue, e.holder_id into result from pgbus_enqueue(jsonb_build_array(entry.options
    || jsonb_build_object('queue', physical, 'message', entry.payload, 'headers', headers,
         'delay_ms', greatest(0, extract(epoch from due - clock_timestamp()) * 1000)))) e;
  if result.status = 'undecided' then
    raise exception 'the key of this unique job is held by a transaction that has not ended' using errcode = 'PB002';
  elsif result.status = 'taken' then
    return format('left out: a job with the same key has not ended, message %s of queue "%s"', result.holder_id, result.holder_queue);
  elsif result.status not in ('sent', 'replaced') then
    return format('left out: %s', result.status);
  end if;
  return null;
end $$;

-- What rows that have to stay in order have in common: the group of their messages, and where they go. Null: nothing.
create or replace function pgbus_outbox_group(entry pgbus_outbox_entries) returns text
language sql immutable as $$
  select (entry.headers ->> 'x-pgmq-group') || ':' || coalesce(lower(entry.queue_name), '');
$$;

-- Publishes up to `most` rows in the order of their ids: takes them, sends them and marks them in one transaction, so
-- that none is lost and none is sent twice. A row that cannot be sent is tried again later, after the others; only rows
-- of its own group wait behind it.
--
-- One at a time works on the table, or what one has taken would be overtaken by what another has. `next_due_ms`: when
-- the next row that failed is due. `failures`: an array of `{ id, destination, attempts, error }`, the first twenty.
create or replace function pgbus_outbox_flush(most int, prefix text, levels int, notify boolean)
returns table (published int, failed int, more boolean, next_due_ms int, failures jsonb)
language plpgsql set search_path from current set timezone to 'UTC' set lock_timeout to '1s' as $$
#variable_conflict use_column
declare
  started constant timestamptz := clock_timestamp();
  rows_taken bigint[];
  target record;
  entry pgbus_outbox_entries;
  note text;
  stuck text[] := '{}';
  attempt int;
begin
  published := 0; failed := 0; more := false; next_due_ms := null; failures := '[]';
  if not pg_try_advisory_xact_lock(1885823602, 2) then
    return next;
    return;
  end if;
  select array_agg(r.id order by r.id) into rows_taken from (
    select e.id from pgbus_outbox_entries e
     where e.published_at is null and (e.available_at is null or e.available_at <= started)
       and (pgbus_outbox_group(e) is null or not exists (
         select from pgbus_outbox_entries w
          where w.published_at is null and w.available_at > started and w.id < e.id
            and pgbus_outbox_group(w) = pgbus_outbox_group(e)))
     order by e.id limit most for update of e skip locked
  ) r;
  if rows_taken is not null then
    more := cardinality(rows_taken) = most;
    begin
      -- The quick way, which all rows take together or none.
      for target in
        select t.physical, array_agg(t.id order by t.id) as ids, bool_or(t.special) as special
          from (select e.id, e.options is not null as special,
                       pgbus_outbox_table(e.queue_name, e.priority, prefix, levels, notify) as physical
                  from pgbus_outbox_entries e where e.id = any (rows_taken) and e.queue_name is not null order by e.id) t
         group by t.physical order by t.physical
      loop
        if not target.special then
          execute format(
            'insert into pgmq.%I (vt, message, headers)
             select pgbus_outbox_due(e), e.payload, nullif(e.headers, ''null'') from pgbus_outbox_entries e
              where e.id = any ($1) order by e.id', 'q_' || target.physical) using target.ids;
          continue;
        end if;
        for entry in select e.* from pgbus_outbox_entries e where e.id = any (target.ids) order by e.id loop
          note := pgbus_outbox_send(entry, prefix, levels, notify);
          if note is not null then
            update pgbus_outbox_entries e set last_error = note where e.id = entry.id;
          end if;
        end loop;
      end loop;
      for entry in
        select e.* from pgbus_outbox_entries e where e.id = any (rows_taken) and e.routing_key is not null order by e.id
      loop
        perform pgbus_outbox_send(entry, prefix, levels, notify);
      end loop;
      update pgbus_outbox_entries e set published_at = clock_timestamp(), available_at = null where e.id = any (rows_taken);
      published := cardinality(rows_taken);
    exception when others then
      published := 0;
      for entry in select e.* from pgbus_outbox_entries e where e.id = any (rows_taken) order by e.id loop
        -- Somebody has locked a queue. What is left is taken the next time.
        exit when clock_timestamp() > started + interval '10 seconds';
        continue when pgbus_outbox_group(entry) = any (stuck);
        begin
          note := pgbus_outbox_send(entry, prefix, levels, notify);
          update pgbus_outbox_entries e set published_at = clock_timestamp(), available_at = null, last_error = note
           where e.id = entry.id;
          published := published + 1;
        exception when others then
          update pgbus_outbox_entries e
             set attempts = e.attempts + 1, last_error = left(sqlerrm, 1000),
                 available_at = clock_timestamp() + least(5 * 2 ^ least(e.attempts, 20), 3600) * interval '1 second'
           where e.id = entry.id returning e.attempts into attempt;
          stuck := array_append(stuck, pgbus_outbox_group(entry));
          failed := failed + 1;
          if failed <= 20 then
            failures := failures || jsonb_build_object('id', entry.id, 'destination',
              coalesce(entry.queue_name, entry.routing_key), 'attempts', attempt, 'error', left(sqlerrm, 1000));
          end if;
        end;
      end loop;
    end;
  end if;
  select ceil(greatest(0, extract(epoch from min(e.available_at) - clock_timestamp())) * 1000) into next_due_ms
    from pgbus_outbox_entries e where e.published_at is null and e.available_at > started
     and e.available_at < started + interval '1 day';
  return next;
end $$;

do $$
begin
  if not exists (
    select from pg_trigger where tgrelid = 'pgbus_outbox_entries'::regclass and tgname = 'pgbus_notify_insert'
  ) then
    create constraint trigger pgbus_notify_insert after insert on pgbus_outbox_entries
      deferrable initially deferred for each row execute function pgbus_notify_insert();
  end if;
end $$;
