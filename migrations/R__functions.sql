-- Functions of pgbus. They keep the search path they were created under: that of the schema which holds the
-- pgbus tables.

------------------------------------------------------------------------------------------------- queues

-- Sets storage options that a table lacks. Best effort: who does not own the table, or cannot lock it at once,
-- leaves it as it is.
create or replace function pgbus_set_storage(target regclass, options text[]) returns void
language plpgsql set search_path from current set lock_timeout = '1s' as $$
begin
  if not exists (
    select from pg_class c where c.oid = target and (c.relkind <> 'r' or coalesce(c.reloptions, '{}') @> options)
  ) then
    execute format('alter table %s set (%s)', target, array_to_string(options, ', '));
  end if;
exception when insufficient_privilege or lock_not_available then
  raise debug 'storage settings of % were left alone: %', target, sqlerrm;
end $$;

-- Claims rewrite every row of a queue once or more, so a queue is vacuumed early and its pages keep room.
create or replace function pgbus_tune_queue(physical text) returns void
language plpgsql set search_path from current as $$
begin
  perform pgbus_set_storage(to_regclass(format('pgmq.%I', 'q_' || physical)), array[
    'fillfactor=70', 'autovacuum_vacuum_scale_factor=0.01', 'autovacuum_vacuum_threshold=50',
    'autovacuum_vacuum_cost_delay=2', 'autovacuum_analyze_scale_factor=0.05']);
  perform pgbus_set_storage(to_regclass(format('pgmq.%I', 'a_' || physical)), array[
    'autovacuum_vacuum_scale_factor=0.05', 'autovacuum_vacuum_threshold=50',
    'autovacuum_vacuum_cost_delay=5', 'autovacuum_analyze_scale_factor=0.05']);
end $$;

-- Wakes whoever listens for inserts, once per transaction and at commit. Only one transaction at a time notifies
-- for a queue; one that commits in the same moment leaves it at that, so whoever is woken must look again a
-- moment later. Nothing is written and nothing waits, so an open transaction holds up nobody.
create or replace function pgbus_notify_insert() returns trigger
language plpgsql as $$
declare
  -- By number: the name of a table need not be a valid name of a setting.
  done constant text := 'pgbus.n_' || tg_relid;
begin
  if current_setting(done, true) = '1' then
    return null;
  end if;
  perform pg_catalog.set_config(done, '1', true);
  if pg_catalog.pg_try_advisory_xact_lock(1885823604, tg_relid::int) then
    perform pg_catalog.pg_notify('pgmq.' || tg_table_name || '.INSERT', '');
  end if;
  return null;
end $$;

create or replace function pgbus_has_insert_trigger(physical text) returns boolean
language sql stable set search_path from current as $$
  select exists (
    select from pg_trigger t
     where t.tgrelid = to_regclass(format('pgmq.%I', 'q_' || physical))
       and t.tgname = 'pgbus_notify_insert' and t.tgenabled <> 'D'
  );
$$;

create or replace function pgbus_queue_ready(physical text, notify boolean) returns boolean
language sql stable set search_path from current as $$
  select to_regclass(format('pgmq.%I', 'q_' || physical)) is not null
     and to_regclass(format('pgmq.%I', 'a_' || physical)) is not null
     and exists (select from pgmq.meta m where lower(m.queue_name) = physical)
     and (not notify or pgbus_has_insert_trigger(physical));
$$;

-- Upstream's index is on vt alone. On an empty table ours costs nothing; on others the migration builds it without
-- blocking anybody.
create or replace function pgbus_order_queue(physical text) returns void
language plpgsql set search_path from current set lock_timeout = '1s' as $$
declare
  index_name constant text := 'q_' || physical || '_vt_idx';
  is_empty boolean;
begin
  if pg_get_indexdef(to_regclass(format('pgmq.%I', index_name))) like '%(vt, msg_id)' then
    return;
  end if;
  execute format('select not exists (select from pgmq.%I)', 'q_' || physical) into is_empty;
  if is_empty then
    execute format('drop index if exists pgmq.%I', index_name);
    execute format('create index %I on pgmq.%I (vt, msg_id)', index_name, 'q_' || physical);
  end if;
exception when lock_not_available then
  raise debug 'queue "%" is busy, its index was left alone', physical;
end $$;

-- Returns whether the trigger was missing. Where it cannot be made, because a transaction that wrote to the queue
-- is open, the queue works all the same, by polling; the next call tries again.
create or replace function pgbus_add_insert_trigger(physical text) returns boolean
language plpgsql set search_path from current set lock_timeout = '2s' as $$
begin
  if pgbus_has_insert_trigger(physical) then
    return false;
  end if;
  execute format('drop trigger if exists pgbus_notify_insert on pgmq.%I', 'q_' || physical);
  execute format(
    'create constraint trigger pgbus_notify_insert after insert on pgmq.%I
     deferrable initially deferred for each row execute function pgbus_notify_insert()', 'q_' || physical);
  return true;
exception when lock_not_available then
  raise warning 'queue "%" is busy, its insert trigger was not created; it is polled meanwhile', physical;
  return false;
end $$;

-- Creates a queue, or completes one that another client created. `kind`: 'job', or 'dlq' for a dead-letter queue,
-- which nobody waits for. Returns whether there was anything to do.
create or replace function pgbus_create_queue(
  physical text, kind text default 'job', unlogged boolean default false, notify boolean default true
) returns boolean
language plpgsql set search_path from current as $$
declare
  notifies constant boolean := notify and kind <> 'dlq';
begin
  if kind not in ('job', 'dlq') then
    raise exception 'kind must be job or dlq, got %', kind using errcode = 'invalid_parameter_value';
  end if;
  if pgbus_queue_ready(physical, notifies) then
    return false;
  end if;
  perform pg_advisory_xact_lock(hashtext('pgmq.queue_' || physical));
  if pgbus_queue_ready(physical, notifies) then
    return false;
  end if;
  -- Not for a queue that is only to be completed: making its index "if not exists" would wait for every open
  -- transaction that wrote to it.
  if not pgbus_queue_ready(physical, false) then
    if unlogged then
      perform pgmq.create_unlogged(physical);
    else
      perform pgmq.create(physical);
    end if;
  end if;
  perform pgbus_order_queue(physical);
  perform pgbus_tune_queue(physical);
  if notifies then
    perform pgbus_add_insert_trigger(physical);
  end if;
  -- Workers that read queues by pattern listen for this.
  if kind = 'job' then
    perform pg_notify('pgbus_queues', physical);
  end if;
  return true;
end $$;

------------------------------------------------------------------------------------------------- claims

-- What messages of one group have in common: the header `x-pgmq-group`, as a number, so that its length and the
-- collation do not matter. Messages without one form a group of their own. Two groups that share a number by chance
-- are worked on as one.
create or replace function pgbus_group_key() returns text
language sql immutable parallel safe set search_path from current as $$
  select 'hashtextextended(coalesce(headers->>''x-pgmq-group'', ''''), 0)';
$$;

-- Gives a queue the index that finds the head of each group. Returns whether it was missing. A queue without it
-- works too, slowly; the next call tries again.
create or replace function pgbus_group_queue(physical text) returns boolean
language plpgsql set search_path from current set lock_timeout = '2s' as $$
declare
  index_name constant text := 'q_' || physical || '_group_idx';
begin
  if to_regclass(format('pgmq.%I', index_name)) is not null or to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
    return false;
  end if;
  perform pg_advisory_xact_lock(hashtext('pgmq.queue_' || physical));
  execute format('create index if not exists %I on pgmq.%I ((%s), (read_ct = 0), msg_id)',
    index_name, 'q_' || physical, pgbus_group_key());
  return true;
exception when lock_not_available then
  raise warning 'queue "%" is busy, its index of groups was not created', physical;
  return false;
end $$;

-- Tables of job queues, for workers that read them by pattern: neither dead letters, nor streams, nor queues that
-- a routing pattern feeds, which belong to event handlers.
create or replace function pgbus_work_tables() returns setof text
language plpgsql stable set search_path from current as $$
declare
  others text[] := '{}';
  more text[];
begin
  if to_regclass('pgmq.topic_bindings') is not null then
    execute 'select array_agg(lower(b.queue_name)) from pgmq.topic_bindings b' into more;
    others := others || more;
  end if;
  if to_regclass('pgbus_stream_queues') is not null then
    execute 'select array_agg(lower(s.queue_name)) from pgbus_stream_queues s' into more;
    others := others || more;
  end if;
  return query
    select distinct lower(m.queue_name) from pgmq.meta m
     where lower(m.queue_name) not like '%\_dlq'
       and lower(m.queue_name) <> all (others)
       and to_regclass(format('pgmq.%I', 'a_' || lower(m.queue_name) || '_msg_id_idx')) is null
     order by 1;
end $$;

-- Claims the heads of up to `want` groups of one queue. The head of a group is its oldest message that was read
-- before, else its oldest: what runs, waits for its next attempt, or lost its worker keeps all others of its group
-- waiting. The caller makes sure that no two sessions are in here for one queue.
--
-- `fifo` takes the groups that have waited longest, `roundRobin` those that follow group `after`. Groups are
-- walked by index, one probe each, and no further than needed. `next_vt`: when the next head comes due, if there
-- were fewer than `want`; told in a row without msg_id when there were none.
create or replace function pgbus_claim_groups(physical text, want int, vt_ms int, mode text, after bigint)
returns table (
  msg_id bigint, read_ct int, enqueued_at timestamptz, message text, headers text, turn text, next_vt timestamptz
)
language plpgsql set search_path from current as $$
declare
  lowest constant bigint := -9223372036854775808;
  started constant timestamptz := clock_timestamp();
  key constant text := pgbus_group_key();
  head constant text := format(
    'select %1$s as key, msg_id, vt from pgmq.%2$I where %1$s %%s order by %1$s, (read_ct = 0), msg_id limit 1',
    key, 'q_' || physical);
  walk constant text := format(
    'with recursive walk as (
       select h.key, h.msg_id, h.vt, (h.vt <= $1)::int as due from (%s) h
       union all
       select h.key, h.msg_id, h.vt, w.due + (h.vt <= $1)::int
         from walk w cross join lateral (%s) h where w.due < $4
     )
     select array_agg(w.msg_id order by w.due) filter (where w.vt <= $1), min(w.vt) filter (where w.vt > $1) from walk w',
    format(head, '>= $2 and ' || key || ' <= $3'), format(head, '> w.key and ' || key || ' <= $3'));
  heads bigint[] := '{}';
  more bigint[];
  soonest timestamptz;
  soonest_of_rest timestamptz;
begin
  if mode = 'fifo' then
    execute format(
      'select array_agg(h.msg_id order by h.vt, h.msg_id)
         from (select distinct %1$s as key from (select headers from pgmq.%2$I where vt <= $1 order by vt, msg_id limit $2) m) g
         cross join lateral (%3$s) h where h.vt <= $1', key, 'q_' || physical, format(head, '= g.key'))
      into heads using started, 4 * want + 50;
    heads := coalesce(heads, '{}');
    after := null;
  end if;
  if cardinality(heads) < want then
    if after = 9223372036854775807 then
      after := null;
    end if;
    execute walk into more, soonest using started, coalesce(after + 1, lowest), -(lowest + 1), want;
    heads := heads || more;
    if after is not null and coalesce(cardinality(more), 0) < want then
      execute walk into more, soonest_of_rest using started, lowest, after, want - coalesce(cardinality(more), 0);
      heads := heads || more;
      soonest := least(soonest, soonest_of_rest);
    end if;
  end if;
  return query execute format(
    'with listed as materialized (
       select l.msg_id, min(l.place) as place from unnest($2) with ordinality as l (msg_id, place)
        group by l.msg_id order by place limit $3
     ), picked as materialized (
       select m.msg_id, l.place from listed l join pgmq.%1$I m on m.msg_id = l.msg_id and m.vt <= $1
          for update of m skip locked
     ), taken as (
       update pgmq.%1$I m
          set vt = clock_timestamp() + $4 * interval ''1 millisecond'', read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
         from picked where m.msg_id = picked.msg_id
       returning m.msg_id, m.read_ct, m.enqueued_at, m.message::text, m.headers::text, (%2$s)::text as turn, picked.place
     )
     select t.msg_id, t.read_ct, t.enqueued_at, t.message, t.headers, t.turn,
            case when (select count(*) from taken) < $3 then $5 end
       from (select) as always left join taken t on true
      order by t.place', 'q_' || physical, regexp_replace(key, 'headers', 'm.headers'))
    using started, heads, want, vt_ms, soonest;
end $$;

drop function if exists pgbus_claim_many(text[], int, int);

-- Claims up to `qty` messages from tables in list order: an earlier one is emptied before a later one is looked
-- at, and nothing is claimed that is not returned. `names` are the queues behind the tables; those of one queue
-- stand together.
--
-- share:   null, or how many messages each queue may give before every other was asked. What is left then is
--          filled up in list order.
-- mode:    `plain`: by due time. `fifo`, `roundRobin`: one message of each group, see pgbus_claim_groups;
--          `cursors` holds the last group of each table whose turn it was.
-- failed:  names under which failures are recorded; null: do not look for them.
--
-- A paused queue is skipped. One whose pause has run out gives a single message, state `probe`. `unrecorded`: read
-- before, but no failure was recorded. A row without msg_id tells that a queue is `missing` or `paused`, or (the
-- last row, when fewer than `qty` were found) in how many milliseconds the next message of these queues comes due,
-- a day at most, null for never.
create or replace function pgbus_claim_many(
  tables text[], names text[], qty int, vt_ms int, share int, mode text, cursors bigint[], failed text[]
)
returns table (
  physical text, state text, msg_id bigint, read_ct int, enqueued_at timestamptz, message text, headers text,
  turn text, unrecorded boolean, due_in_ms int
)
language plpgsql set search_path from current as $$
declare
  remaining int := qty;
  budget int;
  want int;
  got int;
  claimed record;
  started timestamptz := clock_timestamp();
  next_vt timestamptz;
  soonest timestamptz;
  held text[];
  half_open text[];
  probing boolean;
  more boolean[] := array_fill(true, array[cardinality(tables)]);
begin
  select array_agg(s.queue_name) filter (where s.resume_at is null or s.resume_at > started),
         array_agg(s.queue_name) filter (where s.resume_at <= started),
         min(s.resume_at) filter (where s.resume_at > started)
    into held, half_open, soonest
    from (select q.queue_name, q.circuit_breaker_resume_at at time zone 'UTC' as resume_at
            from pgbus_queue_states q where q.paused and q.queue_name = any (names)) s;
  if mode <> 'plain' then
    -- One session at a time sees and takes the heads of a queue, so no group can have two messages in progress.
    -- In one order for all, so that no two wait for each other.
    perform pg_advisory_xact_lock(1885823605, t.id::int)
       from (select to_regclass(format('pgmq.%I', 'q_' || n))::oid as id from unnest(tables) n order by 1) t
      where t.id is not null;
  end if;

  for pass in 1 .. case when share is null then 1 else 2 end loop
    for i in 1 .. cardinality(tables) loop
      exit when remaining <= 0;
      physical := tables[i];
      msg_id := null; read_ct := null; enqueued_at := null; message := null; headers := null; turn := null; unrecorded := null;
      if i = 1 or names[i] <> names[i - 1] then
        probing := coalesce(names[i] = any (half_open), false);
        budget := case when pass = 1 then case when probing then 1 else coalesce(share, remaining) end
                       when probing then 0 else remaining end;
      end if;
      want := least(budget, remaining);
      continue when want <= 0 or not more[i];
      if coalesce(names[i] = any (held), false) or to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
        state := case when names[i] = any (held) then 'paused' else 'missing' end;
        more[i] := false;
        return next;
        continue;
      end if;
      state := case when probing then 'probe' else 'ok' end;
      if mode = 'plain' then
        started := clock_timestamp();
        execute format('select min(vt) from pgmq.%I', 'q_' || physical) into next_vt;
        if next_vt is null or next_vt > started then
          soonest := least(soonest, next_vt);
          more[i] := false;
          continue;
        end if;
        -- All rows in one go: one at a time costs as much as claiming them.
        return query execute format(
          'with picked as materialized (
             select msg_id, vt from pgmq.%1$I where vt <= $1 order by vt, msg_id limit $2 for update skip locked
           ), taken as (
             update pgmq.%1$I m
                set vt = clock_timestamp() + $3 * interval ''1 millisecond'', read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
               from picked where m.msg_id = picked.msg_id
             returning m.msg_id, m.read_ct, m.enqueued_at, m.message::text, m.headers::text, picked.vt as due_at
           )
           select $4, $5, t.msg_id, t.read_ct, t.enqueued_at, t.message, t.headers, null::text,
                  $6 is not null and t.read_ct > 1 and not exists (
                    select from pgbus_failed_events f where f.queue_name = $6 and f.msg_id = t.msg_id),
                  null::int
             from taken t order by t.due_at, t.msg_id', 'q_' || physical)
          using started, want, vt_ms, physical, state, failed[i];
        get diagnostics got = row_count;
        if got < want then
          -- What was claimed just now does not count.
          execute format('select min(vt) from pgmq.%I where vt > $1 and xmin is distinct from $2', 'q_' || physical)
             into next_vt using started, pg_current_xact_id_if_assigned()::xid;
          soonest := least(soonest, next_vt);
        end if;
      else
        got := 0;
        for claimed in select g.* from pgbus_claim_groups(physical, want, vt_ms, mode, cursors[i]) g loop
          soonest := least(soonest, claimed.next_vt);
          continue when claimed.msg_id is null;
          msg_id := claimed.msg_id;
          read_ct := claimed.read_ct;
          enqueued_at := claimed.enqueued_at;
          message := claimed.message;
          headers := claimed.headers;
          turn := claimed.turn;
          unrecorded := failed is not null and read_ct > 1 and not exists (
            select from pgbus_failed_events f where f.queue_name = failed[i] and f.msg_id = claimed.msg_id);
          return next;
          got := got + 1;
        end loop;
      end if;
      more[i] := got = want and not probing;
      budget := budget - got;
      remaining := remaining - got;
    end loop;
  end loop;
  if remaining > 0 then
    physical := null; state := 'ok';
    msg_id := null; read_ct := null; enqueued_at := null; message := null; headers := null; turn := null; unrecorded := null;
    if soonest is not null then
      due_in_ms := greatest(0, ceil(
        extract(epoch from least(soonest, clock_timestamp() + interval '1 day') - clock_timestamp()) * 1000));
    end if;
    return next;
  end if;
end $$;

------------------------------------------------------------------------------------------------- streams

create or replace function pgbus_stream_channel(stream text) returns text
language sql immutable strict parallel safe set search_path from current as $$
  select 'pgbus.s.' || left(encode(sha256(convert_to(stream, 'UTF8')), 'hex'), 32);
$$;

-- Stores a broadcast and wakes its readers at commit. The lock makes the order of ids the order of commits: a
-- reader that has seen an id will never be passed by a smaller one.
create or replace function pgbus_stream_append(stream text, message jsonb) returns bigint
language plpgsql set search_path from current as $$
declare
  new_id bigint;
begin
  perform pg_advisory_xact_lock(1885823603, hashtext(stream));
  insert into pgbus_stream_messages (stream, message) values ($1, $2) returning id into new_id;
  perform pg_notify(pgbus_stream_channel(stream), '');
  return new_id;
end $$;

-- Runs at commit, once per pending row; the first run takes all rows of the transaction. Ordered by lock, so two
-- transactions that broadcast to the same streams cannot deadlock.
create or replace function pgbus_stream_flush() returns trigger
language plpgsql set search_path from current as $$
declare
  pending record;
begin
  -- By its key: looking for rows of the transaction would walk past all those that the first run removed.
  if not exists (select from pgbus_stream_pending p where p.id = new.id) then
    return null;
  end if;
  for pending in
    with gone as (
      delete from pgbus_stream_pending where xid = pg_current_xact_id() returning id, stream, message
    )
    select g.stream, g.message from gone g order by hashtext(g.stream), g.stream, g.id
  loop
    perform pgbus_stream_append(pending.stream, pending.message);
  end loop;
  return null;
end $$;

do $$
begin
  if not exists (
    select from pg_trigger where tgrelid = 'pgbus_stream_pending'::regclass and tgname = 'pgbus_stream_flush'
  ) then
    create constraint trigger pgbus_stream_flush after insert on pgbus_stream_pending
      deferrable initially deferred for each row execute function pgbus_stream_flush();
  end if;
end $$;

-- pruned_id: highest id removed from the stream. watermark: its highest id, stored or removed. last: last id
-- given to any stream. 0 = none.
create or replace function pgbus_stream_bounds(stream text, out pruned_id bigint, out watermark bigint, out last bigint)
language sql stable set search_path from current as $$
  select marks.pruned_id, greatest(marks.pruned_id, newest.id), sequence.last
    from (select coalesce((select m.pruned_id from pgbus_stream_marks m where m.stream = $1), 0) as pruned_id) marks,
         (select coalesce((select max(m.id) from pgbus_stream_messages m where m.stream = $1), 0) as id) newest,
         (select case when s.is_called then s.last_value else 0 end as last from pgbus_stream_messages_id_seq s) sequence;
$$;
