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
  return true;
end $$;

------------------------------------------------------------------------------------------------- claims

-- Claims up to `qty` messages from queues in list order: an earlier queue is emptied before a later one is
-- looked at, and nothing is claimed that is not returned. Rows of one queue come in due order. A row without
-- msg_id tells either that a queue is missing, or (the last row, when fewer than `qty` were found) in how many
-- milliseconds the next message of these queues comes due, a day at most, null for never.
create or replace function pgbus_claim_many(tables text[], qty int, vt_ms int)
returns table (
  physical text, state text, msg_id bigint, read_ct int, enqueued_at timestamptz, message text, headers text,
  due_in_ms int
)
language plpgsql set search_path from current as $$
declare
  remaining int := qty;
  claimed record;
  started timestamptz;
  next_vt timestamptz;
  soonest timestamptz;
begin
  foreach physical in array tables loop
    exit when remaining <= 0;
    state := 'missing';
    msg_id := null; read_ct := null; enqueued_at := null; message := null; headers := null;
    if to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
      return next;
      continue;
    end if;
    state := 'ok';
    started := clock_timestamp();
    execute format('select min(vt) from pgmq.%I', 'q_' || physical) into next_vt;
    if next_vt <= started then
      next_vt := null;
      for claimed in execute format(
        'with picked as materialized (
           select msg_id, vt from pgmq.%1$I where vt <= $1 order by vt, msg_id limit $2 for update skip locked
         ), taken as (
           update pgmq.%1$I m
              set vt = clock_timestamp() + $3 * interval ''1 millisecond'', read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
             from picked where m.msg_id = picked.msg_id
           returning m.msg_id, m.read_ct, m.enqueued_at, m.message::text, m.headers::text, picked.vt as due_at
         )
         select t.*, case when (select count(*) from taken) < $2 then (select min(vt) from pgmq.%1$I where vt > $1) end as next_vt
           from (select) as always left join taken t on true
          order by t.due_at, t.msg_id', 'q_' || physical)
        using started, remaining, vt_ms
      loop
        next_vt := claimed.next_vt;
        continue when claimed.msg_id is null;
        msg_id := claimed.msg_id;
        read_ct := claimed.read_ct;
        enqueued_at := claimed.enqueued_at;
        message := claimed.message;
        headers := claimed.headers;
        return next;
        remaining := remaining - 1;
      end loop;
    end if;
    soonest := least(soonest, next_vt);
  end loop;
  if remaining > 0 then
    physical := null; state := 'ok';
    msg_id := null; read_ct := null; enqueued_at := null; message := null; headers := null;
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
