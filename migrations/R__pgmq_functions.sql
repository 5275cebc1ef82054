-- The PGMQ 1.12 interface, in our own words: same names, arguments, results and effects as any PGMQ client
-- expects. Where a body differs from upstream's it is to keep one open transaction from stalling others, and to
-- keep rows that are not due from being visited. Not run where the pgmq extension is installed.

-- Types. One that has other attributes is replaced, which first needs the functions that return it to go;
-- those are created again below.
do $$
declare
  wanted record;
  found_attributes text;
  dependent regprocedure;
begin
  for wanted in
    select * from (values
      ('message_record',
       'msg_id bigint, read_ct integer, enqueued_at timestamp with time zone, last_read_at timestamp with time zone, '
       'vt timestamp with time zone, message jsonb, headers jsonb'),
      ('queue_record',
       'queue_name character varying, is_partitioned boolean, is_unlogged boolean, created_at timestamp with time zone'),
      ('metrics_result',
       'queue_name text, queue_length bigint, newest_msg_age_sec integer, oldest_msg_age_sec integer, '
       'total_messages bigint, scrape_time timestamp with time zone, queue_visible_length bigint')
    ) as t (name, attributes)
  loop
    select string_agg(format('%s %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
      into found_attributes
      from pg_type t
      join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
     where t.typnamespace = 'pgmq'::regnamespace and t.typname = wanted.name;
    continue when found_attributes = wanted.attributes;
    if found_attributes is not null then
      for dependent in
        select p.oid from pg_proc p
         where p.pronamespace = 'pgmq'::regnamespace and p.prorettype = format('pgmq.%I', wanted.name)::regtype
      loop
        execute format('drop function %s', dependent);
      end loop;
      execute format('drop type pgmq.%I', wanted.name);
    end if;
    execute format('create type pgmq.%I as (%s)', wanted.name, wanted.attributes);
  end loop;
end $$;

-- Functions of these names whose arguments, defaults or result are not the ones of 1.12 cannot be replaced in
-- place, and an old overload left behind would make calls ambiguous. Each is dropped by its exact signature and
-- without CASCADE: what a user built on it stops the migration instead of vanishing. The trigger function keeps
-- its signature for ever, so no insert trigger is ever lost.
do $$
declare
  wanted constant text[] := array[
    'acquire_queue_lock(queue_name text) -> void',
    'archive(queue_name text, msg_id bigint) -> boolean',
    'archive(queue_name text, msg_ids bigint[]) -> SETOF bigint',
    'create(queue_name text) -> void',
    'create_non_partitioned(queue_name text) -> void',
    'create_unlogged(queue_name text) -> void',
    'delete(queue_name text, msg_id bigint) -> boolean',
    'delete(queue_name text, msg_ids bigint[]) -> SETOF bigint',
    'detach_archive(queue_name text) -> void',
    'disable_notify_insert(queue_name text) -> void',
    'drop_queue(queue_name text) -> boolean',
    'drop_queue(queue_name text, partitioned boolean) -> boolean',
    'enable_notify_insert(queue_name text, throttle_interval_ms integer DEFAULT 250) -> void',
    'format_table_name(queue_name text, prefix text) -> text',
    'list_notify_insert_throttles() -> TABLE(queue_name text, throttle_interval_ms integer, last_notified_at timestamp with time zone)',
    'list_queues() -> SETOF pgmq.queue_record',
    'metrics(queue_name text) -> pgmq.metrics_result',
    'metrics_all() -> SETOF pgmq.metrics_result',
    'notify_queue_listeners() -> trigger',
    'pop(queue_name text, qty integer DEFAULT 1) -> SETOF pgmq.message_record',
    'purge_queue(queue_name text) -> bigint',
    'read(queue_name text, vt integer, qty integer, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
    'read_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
    'send(queue_name text, msg jsonb) -> SETOF bigint',
    'send(queue_name text, msg jsonb, delay integer) -> SETOF bigint',
    'send(queue_name text, msg jsonb, delay timestamp with time zone) -> SETOF bigint',
    'send(queue_name text, msg jsonb, headers jsonb) -> SETOF bigint',
    'send(queue_name text, msg jsonb, headers jsonb, delay integer) -> SETOF bigint',
    'send(queue_name text, msg jsonb, headers jsonb, delay timestamp with time zone) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[]) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[], delay integer) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[], delay timestamp with time zone) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[], headers jsonb[]) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay integer) -> SETOF bigint',
    'send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamp with time zone) -> SETOF bigint',
    'set_vt(queue_name text, msg_id bigint, vt integer) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_id bigint, vt timestamp with time zone) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_ids bigint[], vt integer) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_ids bigint[], vt timestamp with time zone) -> SETOF pgmq.message_record',
    'update_notify_insert(queue_name text, throttle_interval_ms integer) -> void',
    'validate_queue_name(queue_name text) -> void'
  ];
  outdated regprocedure;
begin
  for outdated in
    select p.oid from pg_proc p
     where p.pronamespace = 'pgmq'::regnamespace
       and p.proname in (select split_part(w, '(', 1) from unnest(wanted) w)
       and p.proname <> 'notify_queue_listeners'
       and format('%s(%s) -> %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)) <> all (wanted)
  loop
    execute format('drop function %s', outdated);
  end loop;
end $$;

------------------------------------------------------------------------------------------------- names and locks

create or replace function pgmq.validate_queue_name(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if queue_name is null then
    raise exception 'queue name is null' using errcode = 'invalid_parameter_value';
  end if;
  if length(queue_name) > 47 then
    raise exception 'queue name "%" has % characters, the limit is 47', queue_name, length(queue_name)
      using errcode = 'invalid_parameter_value';
  end if;
end $$;

create or replace function pgmq.format_table_name(queue_name text, prefix text) returns text
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if queue_name ~ '\$|;|--|''' then
    raise exception 'queue name "%" holds a character that is not allowed: $ ; -- or a quote', queue_name
      using errcode = 'invalid_parameter_value';
  end if;
  return lower(prefix || '_' || queue_name);
end $$;

create or replace function pgmq.acquire_queue_lock(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock(hashtext('pgmq.queue_' || queue_name));
end $$;

------------------------------------------------------------------------------------------------- queues

-- Everything "if not exists": an existing queue keeps its kind. A second spelling of a queue gets no second row
-- in meta, because both would stand for one table.
create or replace function pgmq.create_non_partitioned(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  a_table constant text := pgmq.format_table_name(queue_name, 'a');
  lower_name constant text := lower(queue_name);
begin
  perform pgmq.validate_queue_name(queue_name);
  if queue_name = '' then
    raise exception 'queue name is empty' using errcode = 'invalid_parameter_value';
  end if;
  perform pgmq.acquire_queue_lock(queue_name);
  if lower_name <> queue_name then
    perform pgmq.acquire_queue_lock(lower_name);
  end if;
  execute format(
    'create table if not exists pgmq.%I (
       msg_id bigint primary key generated always as identity,
       read_ct int not null default 0,
       enqueued_at timestamptz not null default now(),
       last_read_at timestamptz,
       vt timestamptz not null,
       message jsonb,
       headers jsonb)', q_table);
  execute format(
    'create table if not exists pgmq.%I (
       msg_id bigint primary key,
       read_ct int not null default 0,
       enqueued_at timestamptz not null default now(),
       last_read_at timestamptz,
       archived_at timestamptz not null default now(),
       vt timestamptz not null,
       message jsonb,
       headers jsonb)', a_table);
  -- Even "if not exists" waits for every open transaction that wrote to the table.
  if to_regclass(format('pgmq.%I', q_table || '_vt_idx')) is null then
    execute format('create index %I on pgmq.%I (vt, msg_id)', q_table || '_vt_idx', q_table);
  end if;
  if to_regclass(format('pgmq.%I', 'archived_at_idx_' || lower_name)) is null then
    execute format('create index %I on pgmq.%I (archived_at)', 'archived_at_idx_' || lower_name, a_table);
  end if;
  insert into pgmq.meta (queue_name, is_partitioned, is_unlogged)
  select lower_name, false, c.relpersistence = 'u'
    from pg_class c
   where c.oid = format('pgmq.%I', q_table)::regclass
     and not exists (select from pgmq.meta m where lower(m.queue_name) = lower_name)
  on conflict do nothing;
end $$;

create or replace function pgmq.create_unlogged(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  existed boolean;
begin
  perform pgmq.acquire_queue_lock(queue_name);
  existed := to_regclass(format('pgmq.%I', q_table)) is not null;
  perform pgmq.create_non_partitioned(queue_name);
  if not existed then
    -- Empty, and seen by nobody yet. The archive stays logged.
    execute format('alter table pgmq.%I set unlogged', q_table);
    update pgmq.meta m set is_unlogged = true where lower(m.queue_name) = lower($1);
  end if;
end $$;

create or replace function pgmq.create(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.create_non_partitioned(queue_name);
end $$;

-- Takes the rows of meta along even if the table is gone already, and those of every spelling of the name.
create or replace function pgmq.drop_queue(queue_name text) returns boolean
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  a_table constant text := pgmq.format_table_name(queue_name, 'a');
  existed boolean;
begin
  perform pgmq.acquire_queue_lock(queue_name);
  existed := to_regclass(format('pgmq.%I', q_table)) is not null;
  if existed then
    execute format('drop table pgmq.%I', q_table);
  else
    raise notice 'queue "%" does not exist', queue_name;
  end if;
  execute format('drop table if exists pgmq.%I', a_table);
  delete from pgmq.meta m where lower(m.queue_name) = lower($1);
  return existed;
end $$;

create or replace function pgmq.drop_queue(queue_name text, partitioned boolean) returns boolean
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  raise warning 'drop_queue(queue_name, partitioned) is deprecated, call drop_queue(queue_name)';
  return pgmq.drop_queue(queue_name);
end $$;

create or replace function pgmq.list_queues() returns setof pgmq.queue_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select m.queue_name, m.is_partitioned, m.is_unlogged, m.created_at from pgmq.meta m;
end $$;

create or replace function pgmq.detach_archive(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  raise warning 'detach_archive is deprecated and does nothing';
end $$;

-- Fails with 55P03 after five seconds: a TRUNCATE that waits for a stuck transaction would make every reader
-- and sender wait behind it.
create or replace function pgmq.purge_queue(queue_name text) returns bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  purged bigint;
begin
  execute format('lock table pgmq.%I in access exclusive mode', q_table);
  execute format('select count(*) from pgmq.%I', q_table) into purged;
  execute format('truncate table pgmq.%I', q_table);
  return purged;
end $$;

create or replace function pgmq.metrics(queue_name text) returns pgmq.metrics_result
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  result pgmq.metrics_result;
begin
  execute format(
    'select $1, count(*), extract(epoch from now() - max(enqueued_at))::int, extract(epoch from now() - min(enqueued_at))::int,
            coalesce(pg_sequence_last_value(pg_get_serial_sequence($2, ''msg_id'')::regclass), 0), now(),
            count(*) filter (where vt <= now())
       from pgmq.%I', q_table)
    into result using queue_name, format('pgmq.%I', q_table);
  return result;
end $$;

create or replace function pgmq.metrics_all() returns setof pgmq.metrics_result
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  name text;
begin
  for name in select m.queue_name from pgmq.meta m order by m.queue_name loop
    -- Its table may have been dropped by hand.
    continue when to_regclass(format('pgmq.%I', pgmq.format_table_name(name, 'q'))) is null;
    return next pgmq.metrics(name);
  end loop;
end $$;

------------------------------------------------------------------------------------------------- send

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay timestamptz) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id',
    pgmq.format_table_name(queue_name, 'q')) using delay, msg, headers;
end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb, delay int) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send(queue_name, msg, headers, clock_timestamp() + make_interval(secs => delay));
end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay timestamptz) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send(queue_name, msg, null::jsonb, delay);
end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, delay int) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send(queue_name, msg, null::jsonb, clock_timestamp() + make_interval(secs => delay));
end $$;

create or replace function pgmq.send(queue_name text, msg jsonb, headers jsonb) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send(queue_name, msg, headers, clock_timestamp());
end $$;

create or replace function pgmq.send(queue_name text, msg jsonb) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send(queue_name, msg, null::jsonb, clock_timestamp());
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay timestamptz) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if coalesce(cardinality(msgs), 0) = 0 then
    raise exception 'msgs is empty: a batch needs at least one message' using errcode = 'invalid_parameter_value';
  end if;
  if headers is not null and cardinality(headers) <> cardinality(msgs) then
    raise exception 'msgs has % elements but headers has %', cardinality(msgs), cardinality(headers)
      using errcode = 'invalid_parameter_value';
  end if;
  -- unnest() fills the shorter array with nulls, which is what "no headers" means.
  return query execute format(
    'insert into pgmq.%I (vt, message, headers)
     select $1, b.message, b.headers
       from unnest($2, $3) with ordinality as b (message, headers, position) order by b.position
     returning msg_id',
    pgmq.format_table_name(queue_name, 'q')) using delay, msgs, headers;
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[], delay int) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send_batch(queue_name, msgs, headers, clock_timestamp() + make_interval(secs => delay));
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay timestamptz) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send_batch(queue_name, msgs, null::jsonb[], delay);
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], delay int) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send_batch(queue_name, msgs, null::jsonb[], clock_timestamp() + make_interval(secs => delay));
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[], headers jsonb[]) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send_batch(queue_name, msgs, headers, clock_timestamp());
end $$;

create or replace function pgmq.send_batch(queue_name text, msgs jsonb[]) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select pgmq.send_batch(queue_name, msgs, null::jsonb[], clock_timestamp());
end $$;

------------------------------------------------------------------------------------------------- read

-- Picks in due order and compares with one timestamp, so the index on (vt, msg_id) leads straight to the rows
-- that are due: delayed rows and rows in flight cost nothing. Returned in id order.
create or replace function pgmq.read(queue_name text, vt int, qty int, conditional jsonb default '{}')
returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'with picked as materialized (
       select msg_id from pgmq.%1$I where vt <= $1 %2$s order by vt, msg_id limit $2 for update skip locked
     ), taken as (
       update pgmq.%1$I m
          set vt = clock_timestamp() + make_interval(secs => $3), read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
         from picked where m.msg_id = picked.msg_id
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     )
     select * from taken order by msg_id',
    pgmq.format_table_name(queue_name, 'q'),
    case when conditional <> '{}' then 'and message @> $4' else '' end)
  using clock_timestamp(), qty, vt, conditional;
end $$;

-- Sleeps inside the call, so it keeps a connection and a transaction for as long as it waits.
create or replace function pgmq.read_with_poll(
  queue_name text, vt int, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100,
  conditional jsonb default '{}'
) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  until constant timestamptz := clock_timestamp() + make_interval(secs => max_poll_seconds);
begin
  loop
    return query select * from pgmq.read(queue_name, vt, qty, conditional);
    exit when found or clock_timestamp() >= until;
    perform pg_sleep(poll_interval_ms / 1000.0);
  end loop;
end $$;

create or replace function pgmq.pop(queue_name text, qty int default 1) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'with picked as materialized (
       select msg_id from pgmq.%1$I where vt <= $1 order by vt, msg_id limit $2 for update skip locked
     ), taken as (
       delete from pgmq.%1$I m using picked where m.msg_id = picked.msg_id
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     )
     select * from taken order by msg_id',
    pgmq.format_table_name(queue_name, 'q'))
  using clock_timestamp(), qty;
end $$;

create or replace function pgmq.set_vt(queue_name text, msg_ids bigint[], vt timestamptz) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'with changed as (
       update pgmq.%I set vt = $2 where msg_id = any ($1)
       returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
     )
     select * from changed order by msg_id',
    pgmq.format_table_name(queue_name, 'q')) using msg_ids, vt;
end $$;

create or replace function pgmq.set_vt(queue_name text, msg_ids bigint[], vt int) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select * from pgmq.set_vt(queue_name, msg_ids, clock_timestamp() + make_interval(secs => vt));
end $$;

create or replace function pgmq.set_vt(queue_name text, msg_id bigint, vt timestamptz) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select * from pgmq.set_vt(queue_name, array[msg_id], vt);
end $$;

create or replace function pgmq.set_vt(queue_name text, msg_id bigint, vt int) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select * from pgmq.set_vt(queue_name, array[msg_id], clock_timestamp() + make_interval(secs => vt));
end $$;

------------------------------------------------------------------------------------------------- finish

create or replace function pgmq.archive(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'with gone as (
       delete from pgmq.%I where msg_id = any ($1)
       returning msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
     )
     insert into pgmq.%I (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
     select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from gone
     returning msg_id',
    pgmq.format_table_name(queue_name, 'q'), pgmq.format_table_name(queue_name, 'a')) using msg_ids;
end $$;

create or replace function pgmq.archive(queue_name text, msg_id bigint) returns boolean
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.archive(queue_name, array[msg_id]);
  return found;
end $$;

create or replace function pgmq.delete(queue_name text, msg_ids bigint[]) returns setof bigint
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'delete from pgmq.%I where msg_id = any ($1) returning msg_id',
    pgmq.format_table_name(queue_name, 'q')) using msg_ids;
end $$;

create or replace function pgmq.delete(queue_name text, msg_id bigint) returns boolean
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.delete(queue_name, array[msg_id]);
  return found;
end $$;

------------------------------------------------------------------------------------------------- notify

-- A throttle may suppress a notification, but nothing else may: a row that somebody holds, a row that a crash
-- took (the table is unlogged), or an isolation level in which the update could fail all mean "notify".
create or replace function pgmq.notify_queue_listeners() returns trigger
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  name constant text := substr(tg_table_name, 3);
  throttle record;
begin
  if current_setting('transaction_isolation') = 'read committed' then
    select t.queue_name, t.throttle_interval_ms into throttle
      from pgmq.notify_insert_throttle t where t.queue_name = name;
    if not found then
      -- The table name is lower case, the registered one may not be.
      select t.queue_name, t.throttle_interval_ms into throttle
        from pgmq.notify_insert_throttle t where lower(t.queue_name) = name limit 1;
    end if;
    if found and throttle.throttle_interval_ms > 0 then
      perform from pgmq.notify_insert_throttle t where t.queue_name = throttle.queue_name for update skip locked;
      if found then
        update pgmq.notify_insert_throttle t set last_notified_at = clock_timestamp()
         where t.queue_name = throttle.queue_name
           and clock_timestamp() - t.last_notified_at >= t.throttle_interval_ms * interval '1 millisecond';
        if not found then
          return null;
        end if;
      end if;
    end if;
  end if;
  perform pg_notify('pgmq.' || tg_table_name || '.' || tg_op, '');
  return null;
end $$;

-- An insert trigger that is there stays: dropping and creating it again would take a lock that waits for every
-- open transaction, and two processes doing so could deadlock.
create or replace function pgmq.enable_notify_insert(queue_name text, throttle_interval_ms int default 250) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  registered text;
begin
  if throttle_interval_ms < 0 then
    raise exception 'throttle_interval_ms must not be negative, got %', throttle_interval_ms
      using errcode = 'invalid_parameter_value';
  end if;
  perform pgmq.acquire_queue_lock(queue_name);
  select m.queue_name into registered from pgmq.meta m
   where lower(m.queue_name) = lower($1) order by m.queue_name = $1 desc limit 1;
  if registered is null or to_regclass(format('pgmq.%I', q_table)) is null then
    raise exception 'queue "%" does not exist, create it with pgmq.create first', queue_name using errcode = 'undefined_table';
  end if;
  insert into pgmq.notify_insert_throttle (queue_name, throttle_interval_ms) values (registered, $2)
  on conflict on constraint notify_insert_throttle_queue_name_key
  do update set throttle_interval_ms = excluded.throttle_interval_ms, last_notified_at = excluded.last_notified_at;
  if not exists (
    select from pg_trigger t
     where t.tgrelid = format('pgmq.%I', q_table)::regclass and t.tgname = 'trigger_notify_queue_insert_listeners'
       and t.tgfoid = 'pgmq.notify_queue_listeners()'::regprocedure and t.tgenabled <> 'D'
  ) then
    execute format('drop trigger if exists trigger_notify_queue_insert_listeners on pgmq.%I', q_table);
    execute format(
      'create constraint trigger trigger_notify_queue_insert_listeners after insert on pgmq.%I
       deferrable for each row execute function pgmq.notify_queue_listeners()', q_table);
  end if;
end $$;

create or replace function pgmq.disable_notify_insert(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.acquire_queue_lock(queue_name);
  execute format('drop trigger if exists trigger_notify_queue_insert_listeners on pgmq.%I', pgmq.format_table_name(queue_name, 'q'));
  delete from pgmq.notify_insert_throttle t where lower(t.queue_name) = lower($1);
end $$;

create or replace function pgmq.update_notify_insert(queue_name text, throttle_interval_ms int) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if throttle_interval_ms < 0 then
    raise exception 'throttle_interval_ms must not be negative, got %', throttle_interval_ms
      using errcode = 'invalid_parameter_value';
  end if;
  if not exists (select from pgmq.meta m where lower(m.queue_name) = lower($1)) then
    raise exception 'queue "%" does not exist, create it with pgmq.create first', queue_name using errcode = 'undefined_table';
  end if;
  update pgmq.notify_insert_throttle t
     set throttle_interval_ms = $2, last_notified_at = to_timestamp(0)
   where lower(t.queue_name) = lower($1);
  if not found then
    raise exception 'queue "%" does not notify, call pgmq.enable_notify_insert first', queue_name
      using errcode = 'object_not_in_prerequisite_state';
  end if;
end $$;

create or replace function pgmq.list_notify_insert_throttles()
returns table (queue_name text, throttle_interval_ms int, last_notified_at timestamptz)
language sql stable set search_path = pgmq, pg_catalog, pg_temp as $$
  select t.queue_name::text, t.throttle_interval_ms, t.last_notified_at
    from pgmq.notify_insert_throttle t order by t.queue_name;
$$;

comment on schema pgmq is 'pgmq 1.12 interface, pgbus build 1';
