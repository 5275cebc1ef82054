-- The schema shared with every PGMQ client: bookkeeping tables and the records its functions return.
-- Not run where the pgmq extension is installed. A queue's own tables are made by pgmq.create().

do $$
begin
  -- Not "if not exists": that form asks for the right to create schemas even when there is nothing to create.
  if to_regnamespace('pgmq') is null then
    create schema pgmq;
  end if;
end $$;

create table if not exists pgmq.meta (
  queue_name     varchar unique not null,
  is_partitioned boolean not null,
  is_unlogged    boolean not null,
  created_at     timestamptz not null default now()
);

create unlogged table if not exists pgmq.notify_insert_throttle (
  queue_name           varchar not null
    constraint notify_insert_throttle_queue_name_key unique
    constraint notify_insert_throttle_meta_queue_name_fk references pgmq.meta (queue_name) on delete cascade,
  throttle_interval_ms int not null default 0,
  last_notified_at     timestamptz not null default to_timestamp(0)
);

create index if not exists idx_notify_throttle_active
  on pgmq.notify_insert_throttle (queue_name, last_notified_at) where throttle_interval_ms > 0;

-- Monitoring may look at every queue, those of the future included. The owner of the schema may grant this;
-- anybody else goes without.
do $$
begin
  grant usage on schema pgmq to pg_monitor;
  grant select on all tables in schema pgmq to pg_monitor;
  grant select on all sequences in schema pgmq to pg_monitor;
  alter default privileges in schema pgmq grant select on tables to pg_monitor;
  alter default privileges in schema pgmq grant select on sequences to pg_monitor;
exception when insufficient_privilege then
  raise notice 'pg_monitor was not granted access to schema pgmq: %', sqlerrm;
end $$;
