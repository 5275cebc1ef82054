-- Jobs that have company: a lock that keeps others out. They enter a queue through pgbus_enqueue, and whatever
-- takes them out of it for good calls pgbus_after_end in the same statement, so that a lock lives exactly as long
-- as its message. Jobs without any of that never come here.
--
-- Locks are taken in one order everywhere, sorted by key, so that no two statements wait for each other.

-- Whether something follows from the end of a message.
create or replace function pgbus_is_tracked(message jsonb) returns boolean
language sql immutable parallel safe as $$
  select message ?| array['pgbus_uniqueness_key'];
$$;

-- What follows when messages have left their queue for good. Called by the statement that removed them, with those
-- that it really removed.
create or replace function pgbus_after_end(physical text, ids bigint[], messages jsonb[]) returns void
language plpgsql set search_path from current set timezone to 'UTC' as $$
begin
  -- By key and message: whoever has the lock of another message keeps it. Other clients write the logical name.
  delete from pgbus_uniqueness_keys u using unnest(ids, messages) as m (id, message)
   where u.lock_key = m.message ->> 'pgbus_uniqueness_key' and u.msg_id = m.id
     and strpos(physical, lower(u.queue_name)) > 0;
end $$;

-- Ends messages that are still these deliveries, with what follows from it. `outcome`: `archive`, `delete`, or
-- `bury` into the queue `target` with the story of each. Returns the ids that are ended; asked again after a lost
-- reply, an archive returns the same ids and does nothing.
create or replace function pgbus_finish(
  physical text, ids bigint[], reads int[], outcome text, failed text, target text default null, stories text[] default null
) returns setof bigint
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  moved bigint[];
  messages jsonb[];
begin
  execute format($sql$
    with gone as (
      delete from pgmq.%I m using unnest($1, $2, $3) as t (msg_id, read_ct, story)
       where m.msg_id = t.msg_id and m.read_ct = t.read_ct
      returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers, t.story
    ), $sql$, 'q_' || physical)
    || case outcome
      when 'archive' then format($sql$ kept as (
        insert into pgmq.%I (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
        select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from gone
      ), $sql$, 'a_' || physical)
      when 'bury' then format($sql$ buried as (
        insert into pgmq.%I (vt, message, headers)
        select clock_timestamp(), message,
               case when jsonb_typeof(headers) = 'object' then headers else '{}' end
                 || jsonb_build_object('pgbus_dead_letter', story::jsonb)
          from gone order by msg_id
      ), $sql$, 'q_' || target)
      else '' end
    || $sql$ cleared as (
      delete from pgbus_failed_events f using gone g where f.queue_name = $4 and f.msg_id = g.msg_id
    )
    select coalesce(array_agg(msg_id), '{}'), coalesce(array_agg(message), '{}') from gone $sql$
    into moved, messages using ids, reads, stories, failed;
  perform pgbus_after_end(physical, moved, messages);
  return query select unnest(moved);
  if outcome = 'archive' and cardinality(moved) < cardinality(ids) then
    return query execute format($sql$
      select a.msg_id from pgmq.%I a
        join unnest($1, $2) as t (msg_id, read_ct) on a.msg_id = t.msg_id and a.read_ct = t.read_ct
       where a.msg_id <> all ($3) $sql$, 'a_' || physical) using ids, reads, moved;
  end if;
end $$;

-- Ends all messages of a queue that is about to be emptied or dropped in this transaction: only what follows from
-- it; the rows are left to the caller. Nobody can add or take any until it commits. Dead letters ended before.
create or replace function pgbus_end_all(physical text) returns void
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  ids bigint[];
  messages jsonb[];
  last bigint := 0;
begin
  if to_regclass(format('pgmq.%I', 'q_' || physical)) is null or physical like '%\_dlq'
     or not exists (select from pgbus_uniqueness_keys) then
    return;
  end if;
  -- In the order in which queues are made and dropped.
  perform pg_advisory_xact_lock(hashtext('pgmq.queue_' || physical));
  execute format('lock table pgmq.%I in access exclusive mode', 'q_' || physical);
  loop
    execute format($sql$
      select array_agg(msg_id), array_agg(message), max(msg_id) from (
        select msg_id, message from pgmq.%I where msg_id > $1 and pgbus_is_tracked(message) order by msg_id limit 10000
      ) m $sql$, 'q_' || physical) into ids, messages, last using last;
    exit when ids is null;
    perform pgbus_after_end(physical, ids, messages);
  end loop;
end $$;

-- Stores jobs that have company, all or none. Each of `jobs` is an object of `queue`, `message`, `headers`,
-- `delay_ms` and `unique` (`key`, `on_conflict`).
--
-- `status` of each: `sent`, or `replaced` (a message that nobody had begun with has this content now), or `duplicate`.
-- One row alone: `taken`, the job whose key is, by that message; or `undecided`, its key was, for 5 s, in a
-- transaction that has not ended. Then nothing of the call is stored, and the transaction of the caller goes on.
create or replace function pgbus_enqueue(jobs jsonb)
returns table (ord int, status text, msg_id bigint, holder_queue text, holder_id bigint)
language plpgsql set search_path from current set timezone to 'UTC' set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  started constant timestamptz := clock_timestamp();
  states text[];
  ids bigint[];
  -- Those whose key could not be decided in time.
  late int[] := '{}';
  current_ord int;
  job record;
  at_queue text;
  at_id bigint;
  new_id bigint;
begin
  loop
    states := array_fill(null::text, array[jsonb_array_length(jobs)]);
    ids := array_fill(null::bigint, array[jsonb_array_length(jobs)]);
    current_ord := null;
    begin
      for job in
        select j.position::int as position, j.value ->> 'queue' as queue, j.value -> 'message' as message,
               j.value -> 'headers' as headers, (j.value ->> 'delay_ms')::float8 as delay_ms,
               j.value #>> '{unique,key}' as key, j.value #>> '{unique,on_conflict}' as on_conflict
          from jsonb_array_elements(jobs) with ordinality as j (value, position)
         where j.value ? 'unique'
         order by j.value #>> '{unique,key}', j.position
      loop
        current_ord := job.position;
        at_queue := null;
        at_id := null;
        if not job.position = any (late) then
          loop
            insert into pgbus_uniqueness_keys (lock_key, queue_name, msg_id, strategy)
            values (job.key, 'pending', 0, 'until_executed') on conflict do nothing;
            exit when found;
            select u.queue_name, u.msg_id into at_queue, at_id from pgbus_uniqueness_keys u where u.lock_key = job.key;
            -- Else it ended in this very moment.
            exit when found;
          end loop;
          continue when at_queue is null;
        end if;
        if job.on_conflict = 'replace' and at_queue = job.queue and pgbus_replace_waiting(
             job.queue, at_id, job.message, job.headers, started + job.delay_ms * interval '1 millisecond') then
          states[job.position] := 'replaced';
          ids[job.position] := at_id;
        elsif job.on_conflict in ('reject', 'replace') then
          raise exception using errcode = 'PB002', message = 'not unique';
        else
          states[job.position] := 'duplicate';
        end if;
      end loop;
      current_ord := null;

      for job in
        select j.position::int as position, j.value ->> 'queue' as queue, j.value -> 'message' as message,
               nullif(j.value -> 'headers', 'null') as headers, (j.value ->> 'delay_ms')::float8 as delay_ms,
               j.value #>> '{unique,key}' as key
          from jsonb_array_elements(jobs) with ordinality as j (value, position)
         order by j.position
      loop
        continue when states[job.position] is not null;
        execute format('insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id', 'q_' || job.queue)
          into new_id using started + job.delay_ms * interval '1 millisecond', job.message, job.headers;
        update pgbus_uniqueness_keys u set queue_name = job.queue, msg_id = new_id where u.lock_key = job.key;
        states[job.position] := 'sent';
        ids[job.position] := new_id;
      end loop;
      return query select o::int, states[o], ids[o], null::text, null::bigint from generate_subscripts(states, 1) o;
      return;
    exception
      when sqlstate 'PB002' then
        return query select current_ord, case when at_queue is null then 'undecided' else 'taken' end,
                            null::bigint, at_queue, at_id;
        return;
      when lock_not_available then
        -- A duplicate is a duplicate; the others begin again.
        if current_ord is null then
          raise;
        end if;
        late := late || current_ord;
    end;
  end loop;
end $$;

-- Gives a message that nobody has begun with another content. False: somebody has, or it is gone.
create or replace function pgbus_replace_waiting(
  physical text, id bigint, new_message jsonb, new_headers jsonb, due timestamptz
) returns boolean
language plpgsql set search_path from current as $$
declare
  replaced int;
begin
  if id = 0 or to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
    return false;
  end if;
  execute format(
    'update pgmq.%I m set message = $1, headers = nullif($2, ''null''), vt = $3, enqueued_at = clock_timestamp()
      where m.msg_id = $4 and m.read_ct = 0', 'q_' || physical)
    using new_message, new_headers, due, id;
  get diagnostics replaced = row_count;
  if replaced > 0 then
    -- It may be due sooner than its worker expects.
    perform pg_notify('pgmq.q_' || physical || '.INSERT', '');
  end if;
  return replaced > 0;
end $$;

-- Removes locks, older than this, whose message is gone: somebody removed it by hand, or another client died before
-- it sent it. Where that cannot be told the lock stays. Returns the keys.
create or replace function pgbus_reap_locks(older_than_ms float8) returns setof text
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  cutoff constant timestamp := clock_timestamp() - older_than_ms * interval '1 millisecond';
  owner record;
  tables text[];
  absent text;
begin
  for owner in
    select u.queue_name, u.msg_id > 0 as sent from pgbus_uniqueness_keys u
     where u.created_at < cutoff group by 1, 2 order by 1, 2
  loop
    -- The table of that name, or those of every queue that it may be the logical name of.
    select coalesce(array_agg(distinct 'q_' || lower(m.queue_name)), '{}') into tables
      from pgmq.meta m
     where m.queue_name not like '%\_dlq'
       and (owner.queue_name = 'pending'
            or lower(m.queue_name) = lower(owner.queue_name)
            or right(regexp_replace(lower(m.queue_name), '_p\d+$', ''), length(owner.queue_name) + 1) = '_' || lower(owner.queue_name));
    if owner.queue_name <> 'pending' and cardinality(tables) = 0
       and to_regclass(format('pgmq.%I', 'q_' || lower(owner.queue_name))) is not null then
      continue;
    end if;
    select coalesce(string_agg(format(
             'and not exists (select from pgmq.%I m where ' || case when owner.sent then 'm.msg_id = u.msg_id'
               else 'm.message ->> ''pgbus_uniqueness_key'' = u.lock_key' end || ')', name), ' '), '')
      into absent from unnest(tables) name;
    begin
      -- All three again in the delete: a lock that was taken for another message meanwhile stays.
      return query execute
        'with lost as materialized (
           select lock_key, queue_name, msg_id from pgbus_uniqueness_keys u
            where u.queue_name = $1 and u.created_at < $2 and (u.msg_id > 0) = $3 ' || absent || '
         )
         delete from pgbus_uniqueness_keys u using lost l
          where u.lock_key = l.lock_key and u.queue_name = l.queue_name and u.msg_id = l.msg_id
         returning u.lock_key::text'
        using owner.queue_name, cutoff, owner.sent;
    exception when others then
      raise warning 'locks of queue "%" were left alone: %', owner.queue_name, sqlerrm;
    end;
  end loop;
end $$;
