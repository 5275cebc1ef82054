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

-- Which queues receive what is sent to a routing key. The expression is part of the interface: "*" stands for one
-- segment, "#" for any text, dots included, and everything else for itself.
create table if not exists pgmq.topic_bindings (
  pattern        text not null,
  queue_name     text not null
    constraint topic_bindings_meta_queue_name_fk references pgmq.meta (queue_name) on delete cascade,
  bound_at       timestamptz not null default now(),
  compiled_regex text generated always as (
    '^' || replace(replace(regexp_replace(pattern, '([].+?{}()|[\\^$])', '\\\1', 'g'), '*', '[^.]+'), '#', '.*') || '$'
  ) stored,
  constraint topic_bindings_unique_pattern_queue unique (pattern, queue_name)
);

create index if not exists idx_topic_bindings_covering on pgmq.topic_bindings (pattern) include (queue_name, compiled_regex);

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
    'bind_topic(pattern text, queue_name text) -> void',
    'convert_archive_partitioned(table_name text, partition_interval text DEFAULT ''10000''::text, retention_interval text DEFAULT ''100000''::text, leading_partition integer DEFAULT 10) -> void',
    'create(queue_name text) -> void',
    'create_fifo_index(queue_name text) -> void',
    'create_fifo_indexes_all() -> void',
    'create_non_partitioned(queue_name text) -> void',
    'create_partitioned(queue_name text, partition_interval text DEFAULT ''10000''::text, retention_interval text DEFAULT ''100000''::text) -> void',
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
    'list_topic_bindings() -> TABLE(pattern text, queue_name text, bound_at timestamp with time zone, compiled_regex text)',
    'list_topic_bindings(queue_name text) -> TABLE(pattern text, queue_name text, bound_at timestamp with time zone, compiled_regex text)',
    'metrics(queue_name text) -> pgmq.metrics_result',
    'metrics_all() -> SETOF pgmq.metrics_result',
    'notify_queue_listeners() -> trigger',
    'pgbus_partition(parent text, control text, partition_interval text, retention_interval text, premake integer) -> void',
    'pgbus_poll(reader text, queue_name text, vt anyelement, qty integer, max_poll_seconds integer, poll_interval_ms integer, conditional jsonb) -> SETOF pgmq.message_record',
    'pgbus_read_groups(queue_name text, vt timestamp with time zone, qty integer, choice text) -> SETOF pgmq.message_record',
    'pop(queue_name text, qty integer DEFAULT 1) -> SETOF pgmq.message_record',
    'purge_queue(queue_name text) -> bigint',
    'read(queue_name text, vt integer, qty integer, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
    'read(queue_name text, vt timestamp with time zone, qty integer, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
    'read_grouped(queue_name text, vt integer, qty integer) -> SETOF pgmq.message_record',
    'read_grouped(queue_name text, vt timestamp with time zone, qty integer) -> SETOF pgmq.message_record',
    'read_grouped_head(queue_name text, vt integer, qty integer) -> SETOF pgmq.message_record',
    'read_grouped_head(queue_name text, vt timestamp with time zone, qty integer) -> SETOF pgmq.message_record',
    'read_grouped_head_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_grouped_head_with_poll(queue_name text, vt timestamp with time zone, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_grouped_rr(queue_name text, vt integer, qty integer) -> SETOF pgmq.message_record',
    'read_grouped_rr(queue_name text, vt timestamp with time zone, qty integer) -> SETOF pgmq.message_record',
    'read_grouped_rr_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_grouped_rr_with_poll(queue_name text, vt timestamp with time zone, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_grouped_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_grouped_with_poll(queue_name text, vt timestamp with time zone, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100) -> SETOF pgmq.message_record',
    'read_with_poll(queue_name text, vt integer, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
    'read_with_poll(queue_name text, vt timestamp with time zone, qty integer, max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100, conditional jsonb DEFAULT ''{}''::jsonb) -> SETOF pgmq.message_record',
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
    'send_batch_topic(routing_key text, msgs jsonb[]) -> TABLE(queue_name text, msg_id bigint)',
    'send_batch_topic(routing_key text, msgs jsonb[], delay integer) -> TABLE(queue_name text, msg_id bigint)',
    'send_batch_topic(routing_key text, msgs jsonb[], delay timestamp with time zone) -> TABLE(queue_name text, msg_id bigint)',
    'send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[]) -> TABLE(queue_name text, msg_id bigint)',
    'send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay integer) -> TABLE(queue_name text, msg_id bigint)',
    'send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay timestamp with time zone) -> TABLE(queue_name text, msg_id bigint)',
    'send_topic(routing_key text, msg jsonb) -> integer',
    'send_topic(routing_key text, msg jsonb, delay integer) -> integer',
    'send_topic(routing_key text, msg jsonb, headers jsonb, delay integer) -> integer',
    'set_vt(queue_name text, msg_id bigint, vt integer) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_id bigint, vt timestamp with time zone) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_ids bigint[], vt integer) -> SETOF pgmq.message_record',
    'set_vt(queue_name text, msg_ids bigint[], vt timestamp with time zone) -> SETOF pgmq.message_record',
    'test_routing(routing_key text) -> TABLE(pattern text, queue_name text, compiled_regex text)',
    'unbind_topic(pattern text, queue_name text) -> boolean',
    'update_notify_insert(queue_name text, throttle_interval_ms integer) -> void',
    'validate_queue_name(queue_name text) -> void',
    'validate_routing_key(routing_key text) -> boolean',
    'validate_topic_pattern(pattern text) -> boolean'
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
  partman text;
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
  select e.extnamespace::regnamespace::text into partman from pg_extension e where e.extname = 'pg_partman';
  if found then
    execute format('delete from %s.part_config where parent_table = any ($1)', partman)
      using array['pgmq.' || q_table, 'pgmq.' || a_table];
  end if;
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

------------------------------------------------------------------------------------------------- partitions

-- Hands a partitioned table over to pg_partman, which makes partitions in advance and drops those whose time
-- has come.
create or replace function pgmq.pgbus_partition(
  parent text, control text, partition_interval text, retention_interval text, premake int
) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  partman text;
  kind text;
begin
  select e.extnamespace::regnamespace::text, case when split_part(e.extversion, '.', 1)::int < 5 then 'native' else 'range' end
    into partman, kind from pg_extension e where e.extname = 'pg_partman';
  if not found then
    raise exception 'partitions need the extension pg_partman: run CREATE EXTENSION pg_partman' using errcode = 'undefined_object';
  end if;
  execute format(
    'select %s.create_parent(p_parent_table := $1, p_control := $2, p_interval := $3, p_type := $4, p_premake := $5)', partman)
    using 'pgmq.' || parent, control, partition_interval, kind, premake;
  execute format(
    'update %s.part_config
        set retention = $2, retention_keep_table = false, automatic_maintenance = ''on'', infinite_time_partitions = true
      where parent_table = $1', partman)
    using 'pgmq.' || parent, retention_interval;
end $$;

-- By message id when the interval is an integer, else by time. An existing queue keeps its kind.
create or replace function pgmq.create_partitioned(
  queue_name text, partition_interval text default '10000', retention_interval text default '100000'
) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
  a_table constant text := pgmq.format_table_name(queue_name, 'a');
  lower_name constant text := lower(queue_name);
  by_id constant boolean := partition_interval ~ '^\s*\d+\s*$';
  q_column constant text := case when by_id then 'msg_id' else 'enqueued_at' end;
  a_column constant text := case when by_id then 'msg_id' else 'archived_at' end;
begin
  perform pgmq.validate_queue_name(queue_name);
  if queue_name = '' then
    raise exception 'queue name is empty' using errcode = 'invalid_parameter_value';
  end if;
  perform pgmq.acquire_queue_lock(queue_name);
  if lower_name <> queue_name then
    perform pgmq.acquire_queue_lock(lower_name);
  end if;
  if to_regclass(format('pgmq.%I', q_table)) is not null then
    return;
  end if;
  execute format(
    'create table pgmq.%I (
       msg_id bigint not null generated always as identity,
       read_ct int not null default 0,
       enqueued_at timestamptz not null default now(),
       last_read_at timestamptz,
       vt timestamptz not null,
       message jsonb,
       headers jsonb) partition by range (%I)', q_table, q_column);
  execute format('create index %I on pgmq.%I (%I)', q_table || '_part_idx', q_table, q_column);
  execute format('create index %I on pgmq.%I (vt, msg_id)', q_table || '_vt_idx', q_table);
  perform pgmq.pgbus_partition(q_table, q_column, partition_interval, retention_interval, 4);
  if to_regclass(format('pgmq.%I', a_table)) is null then
    execute format(
      'create table pgmq.%I (
         msg_id bigint not null,
         read_ct int not null default 0,
         enqueued_at timestamptz not null default now(),
         last_read_at timestamptz,
         archived_at timestamptz not null default now(),
         vt timestamptz not null,
         message jsonb,
         headers jsonb) partition by range (%I)', a_table, a_column);
    execute format('create index %I on pgmq.%I (archived_at)', 'archived_at_idx_' || lower_name, a_table);
    perform pgmq.pgbus_partition(a_table, a_column, partition_interval, retention_interval, 4);
  end if;
  insert into pgmq.meta (queue_name, is_partitioned, is_unlogged) values (lower_name, true, false)
  on conflict on constraint meta_queue_name_key do update set is_partitioned = true;
end $$;

-- What was archived so far stays in a table with the suffix _old.
create or replace function pgmq.convert_archive_partitioned(
  table_name text, partition_interval text default '10000', retention_interval text default '100000',
  leading_partition int default 10
) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  a_table constant text := pgmq.format_table_name(table_name, 'a');
  index_name constant text := 'archived_at_idx_' || lower(table_name);
  by_id constant boolean := partition_interval ~ '^\s*\d+\s*$';
  a_column constant text := case when by_id then 'msg_id' else 'archived_at' end;
  kind "char";
begin
  perform pgmq.acquire_queue_lock(lower(table_name));
  select c.relkind into kind from pg_class c where c.oid = to_regclass(format('pgmq.%I', a_table));
  if kind is distinct from 'r' then
    raise notice 'the archive of queue "%" %', table_name,
      case when kind is null then 'does not exist' else 'is partitioned already' end;
    return;
  end if;
  execute format('alter table pgmq.%I rename to %I', a_table, a_table || '_old');
  if to_regclass(format('pgmq.%I', index_name)) is not null then
    -- An identifier has 63 bytes at most.
    execute format('alter index pgmq.%I rename to %I', index_name, left(index_name, 59) || '_old');
  end if;
  execute format(
    'create table pgmq.%I (like pgmq.%I including defaults including storage including comments) partition by range (%I)',
    a_table, a_table || '_old', a_column);
  if by_id then
    execute format('alter table pgmq.%I add primary key (msg_id)', a_table);
  end if;
  execute format('create index %I on pgmq.%I (archived_at)', index_name, a_table);
  perform pgmq.pgbus_partition(a_table, a_column, partition_interval, retention_interval, leading_partition);
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
create or replace function pgmq.read(queue_name text, vt timestamptz, qty int, conditional jsonb default '{}')
returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query execute format(
    'with picked as materialized (
       select msg_id from pgmq.%1$I where vt <= $1 %2$s order by vt, msg_id limit $2 for update skip locked
     ), taken as (
       update pgmq.%1$I m set vt = $3, read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
         from picked where m.msg_id = picked.msg_id
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
     )
     select * from taken order by msg_id',
    pgmq.format_table_name(queue_name, 'q'),
    case when conditional <> '{}' then 'and message @> $4' else '' end)
  using clock_timestamp(), qty, vt, conditional;
end $$;

create or replace function pgmq.read(queue_name text, vt int, qty int, conditional jsonb default '{}')
returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  return query select * from pgmq.read(queue_name, clock_timestamp() + make_interval(secs => vt), qty, conditional);
end $$;

-- Calls one of the reading functions until it finds something or time is up, but once at least. Sleeps inside the
-- call, so it keeps a connection and a transaction for as long as it waits. Seconds count from the read that
-- finds something, not from the beginning of the wait.
create or replace function pgmq.pgbus_poll(
  reader text, queue_name text, vt anyelement, qty int, max_poll_seconds int, poll_interval_ms int, conditional jsonb
) returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  until constant timestamptz := clock_timestamp() + make_interval(secs => max_poll_seconds);
  call constant text := format('select * from pgmq.%I($1, $2, $3%s)', reader, case when conditional is not null then ', $4' end);
  message pgmq.message_record;
begin
  loop
    for message in execute call using queue_name, vt, qty, conditional loop
      return next message;
    end loop;
    exit when found or clock_timestamp() >= until;
    perform pg_sleep(poll_interval_ms / 1000.0);
  end loop;
end $$;

create or replace function pgmq.read_with_poll(
  queue_name text, vt int, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100,
  conditional jsonb default '{}'
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, conditional);
$$;

create or replace function pgmq.read_with_poll(
  queue_name text, vt timestamptz, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100,
  conditional jsonb default '{}'
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, conditional);
$$;

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

------------------------------------------------------------------------------------------------- read by group

-- Messages with the same header x-pgmq-group are in order. A group is read only from its oldest message on, and
-- only as far as no message is missing: one that is in flight, delayed or failing holds up those behind it. The
-- row lock on the oldest message is what makes a group the reader's own; the condition on it is looked at again
-- when the lock is there, so a group that another reader took a moment ago is not taken again.
-- `choice`: 'fill' takes all it can of a group before the next one, 'layer' the first of each, then the second of
-- each, and so on; 'head' only the first of each.
create or replace function pgmq.pgbus_read_groups(queue_name text, vt timestamptz, qty int, choice text)
returns setof pgmq.message_record
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  in_group constant text := 'coalesce(m.headers ->> ''x-pgmq-group'', ''_default_fifo_group'')';
begin
  return query execute format(
    'with oldest as materialized (
       select distinct on (%2$s) m.msg_id, %2$s as name from pgmq.%1$I m order by %2$s, m.msg_id
     ), owned as materialized (
       select m.msg_id as head, o.name from oldest o join pgmq.%1$I m on m.msg_id = o.msg_id
        where m.vt <= $1 order by m.msg_id limit $2 for update of m skip locked
     ), ranked as (
       select m.msg_id, o.head, row_number() over in_order as place, bool_or(m.vt > $1) over in_order as is_held_up
         from owned o join pgmq.%1$I m on %3$s
       window in_order as (partition by o.head order by m.msg_id)
     ), chosen as materialized (
       select msg_id, row_number() over (order by %4$s) as place
         from ranked where not is_held_up order by %4$s limit $2
     ), free as materialized (
       select m.msg_id, c.place from chosen c join pgmq.%1$I m on m.msg_id = c.msg_id
        where m.vt <= $1 for update of m skip locked
     ), taken as (
       update pgmq.%1$I m set vt = $3, read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
         from free f where m.msg_id = f.msg_id
       returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers, f.place
     )
     select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from taken t order by t.place',
    pgmq.format_table_name(queue_name, 'q'), in_group,
    case choice when 'head' then 'm.msg_id = o.head' else in_group || ' = o.name' end,
    case choice when 'layer' then 'place, head' else 'head, place' end)
  using clock_timestamp(), qty, vt;
end $$;

create or replace function pgmq.read_grouped(queue_name text, vt timestamptz, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, vt, qty, 'fill');
$$;

create or replace function pgmq.read_grouped(queue_name text, vt int, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, clock_timestamp() + make_interval(secs => vt), qty, 'fill');
$$;

create or replace function pgmq.read_grouped_with_poll(
  queue_name text, vt timestamptz, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

create or replace function pgmq.read_grouped_with_poll(
  queue_name text, vt int, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

create or replace function pgmq.read_grouped_rr(queue_name text, vt timestamptz, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, vt, qty, 'layer');
$$;

create or replace function pgmq.read_grouped_rr(queue_name text, vt int, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, clock_timestamp() + make_interval(secs => vt), qty, 'layer');
$$;

create or replace function pgmq.read_grouped_rr_with_poll(
  queue_name text, vt timestamptz, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped_rr', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

create or replace function pgmq.read_grouped_rr_with_poll(
  queue_name text, vt int, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped_rr', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

create or replace function pgmq.read_grouped_head(queue_name text, vt timestamptz, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, vt, qty, 'head');
$$;

create or replace function pgmq.read_grouped_head(queue_name text, vt int, qty int) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_read_groups(queue_name, clock_timestamp() + make_interval(secs => vt), qty, 'head');
$$;

create or replace function pgmq.read_grouped_head_with_poll(
  queue_name text, vt timestamptz, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped_head', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

create or replace function pgmq.read_grouped_head_with_poll(
  queue_name text, vt int, qty int, max_poll_seconds int default 5, poll_interval_ms int default 100
) returns setof pgmq.message_record
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.pgbus_poll('read_grouped_head', queue_name, vt, qty, max_poll_seconds, poll_interval_ms, null);
$$;

-- For clients that look for a group by header. Not "if not exists" alone: that too waits for every open transaction
-- that wrote to the table.
create or replace function pgmq.create_fifo_index(queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  q_table constant text := pgmq.format_table_name(queue_name, 'q');
begin
  if to_regclass(format('pgmq.%I', q_table || '_fifo_idx')) is null then
    execute format('create index if not exists %I on pgmq.%I using gin (headers)', q_table || '_fifo_idx', q_table);
  end if;
end $$;

create or replace function pgmq.create_fifo_indexes_all() returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.create_fifo_index(m.queue_name) from pgmq.meta m
    where to_regclass(format('pgmq.%I', pgmq.format_table_name(m.queue_name, 'q'))) is not null;
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

------------------------------------------------------------------------------------------------- topics

create or replace function pgmq.validate_routing_key(routing_key text) returns boolean
language plpgsql immutable set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if routing_key is null or length(routing_key) > 255 or routing_key !~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$' then
    raise exception 'routing key "%" is not valid: 1 to 255 letters, digits, "_" and "-", with single dots between them',
      routing_key using errcode = 'invalid_parameter_value';
  end if;
  return true;
end $$;

create or replace function pgmq.validate_topic_pattern(pattern text) returns boolean
language plpgsql immutable set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if pattern is null or length(pattern) > 255 or pattern !~ '^[A-Za-z0-9_*#-]+(\.[A-Za-z0-9_*#-]+)*$'
     or pattern ~ '[*#]{2}' then
    raise exception 'topic pattern "%" is not valid: 1 to 255 letters, digits, "_", "-", "*" and "#", with single dots between them and no two wildcards side by side',
      pattern using errcode = 'invalid_parameter_value';
  end if;
  return true;
end $$;

create or replace function pgmq.bind_topic(pattern text, queue_name text) returns void
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  registered text;
begin
  perform pgmq.validate_topic_pattern(pattern);
  select m.queue_name into registered from pgmq.meta m
   where lower(m.queue_name) = lower($2) order by m.queue_name = $2 desc limit 1;
  if registered is null then
    raise exception 'queue "%" does not exist, create it with pgmq.create first', queue_name using errcode = 'undefined_table';
  end if;
  insert into pgmq.topic_bindings (pattern, queue_name) values ($1, registered) on conflict do nothing;
end $$;

create or replace function pgmq.unbind_topic(pattern text, queue_name text) returns boolean
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  if coalesce(pattern, '') = '' or coalesce(queue_name, '') = '' then
    raise exception 'unbind_topic needs a pattern and a queue name' using errcode = 'invalid_parameter_value';
  end if;
  delete from pgmq.topic_bindings b where b.pattern = $1 and lower(b.queue_name) = lower($2);
  return found;
end $$;

create or replace function pgmq.test_routing(routing_key text)
returns table (pattern text, queue_name text, compiled_regex text)
language plpgsql stable set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.validate_routing_key(routing_key);
  return query
    select b.pattern, b.queue_name, b.compiled_regex from pgmq.topic_bindings b
     where routing_key ~ b.compiled_regex order by b.pattern, b.queue_name;
end $$;

create or replace function pgmq.list_topic_bindings()
returns table (pattern text, queue_name text, bound_at timestamptz, compiled_regex text)
language sql stable set search_path = pgmq, pg_catalog, pg_temp as $$
  select b.pattern, b.queue_name, b.bound_at, b.compiled_regex from pgmq.topic_bindings b
   order by b.bound_at desc, b.pattern, b.queue_name;
$$;

create or replace function pgmq.list_topic_bindings(queue_name text)
returns table (pattern text, queue_name text, bound_at timestamptz, compiled_regex text)
language sql stable set search_path = pgmq, pg_catalog, pg_temp as $$
  select b.* from pgmq.list_topic_bindings() b where lower(b.queue_name) = lower($1);
$$;

-- Each queue gets the messages once, however many of its patterns match. In name order, so that two senders that
-- reach the same queues do not wait for each other. Any queue that fails fails the whole call.
create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay timestamptz)
returns table (queue_name text, msg_id bigint)
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
declare
  receiver text;
begin
  perform pgmq.validate_routing_key(routing_key);
  if coalesce(cardinality(msgs), 0) = 0 then
    raise exception 'msgs is empty: a batch needs at least one message' using errcode = 'invalid_parameter_value';
  end if;
  for receiver in
    select min(b.queue_name) from pgmq.topic_bindings b where routing_key ~ b.compiled_regex
     group by lower(b.queue_name) order by 1
  loop
    return query select receiver, sent from pgmq.send_batch(receiver, msgs, headers, delay) as sent;
  end loop;
end $$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[])
returns table (queue_name text, msg_id bigint)
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.send_batch_topic(routing_key, msgs, null::jsonb[], clock_timestamp());
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[])
returns table (queue_name text, msg_id bigint)
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.send_batch_topic(routing_key, msgs, headers, clock_timestamp());
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], delay timestamptz)
returns table (queue_name text, msg_id bigint)
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.send_batch_topic(routing_key, msgs, null::jsonb[], delay);
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], delay int)
returns table (queue_name text, msg_id bigint)
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.send_batch_topic(routing_key, msgs, null::jsonb[], clock_timestamp() + make_interval(secs => delay));
$$;

create or replace function pgmq.send_batch_topic(routing_key text, msgs jsonb[], headers jsonb[], delay int)
returns table (queue_name text, msg_id bigint)
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select * from pgmq.send_batch_topic(routing_key, msgs, headers, clock_timestamp() + make_interval(secs => delay));
$$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb, headers jsonb, delay int) returns int
language plpgsql set search_path = pgmq, pg_catalog, pg_temp as $$
begin
  perform pgmq.validate_routing_key(routing_key);
  if msg is null then
    raise exception 'msg is null' using errcode = 'null_value_not_allowed';
  end if;
  if delay < 0 then
    raise exception 'delay must not be negative, got %', delay using errcode = 'invalid_parameter_value';
  end if;
  return (
    select count(*) from pgmq.send_batch_topic(
      routing_key, array[msg], array[headers], clock_timestamp() + make_interval(secs => delay))
  );
end $$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb, delay int) returns int
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select pgmq.send_topic(routing_key, msg, null::jsonb, delay);
$$;

create or replace function pgmq.send_topic(routing_key text, msg jsonb) returns int
language sql set search_path = pgmq, pg_catalog, pg_temp as $$
  select pgmq.send_topic(routing_key, msg, null::jsonb, 0);
$$;

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

comment on schema pgmq is 'pgmq 1.12 interface, pgbus build 2';
