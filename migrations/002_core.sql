-- What every host needs: who is alive, which queues are held, what failed, which PGMQ is installed.
-- Times without time zone hold UTC; other clients of these tables count on it.

create table if not exists pgbus_processes (
  id                bigserial primary key,
  kind              varchar not null,
  hostname          varchar,
  pid               int,
  metadata          jsonb default '{}',
  last_heartbeat_at timestamp(6),
  created_at        timestamp(6) not null,
  updated_at        timestamp(6) not null
);
create index if not exists idx_pgbus_processes_heartbeat on pgbus_processes (last_heartbeat_at);

create table if not exists pgbus_queue_states (
  id                         bigserial primary key,
  queue_name                 varchar not null,
  paused                     boolean not null default false,
  paused_reason              varchar,
  paused_at                  timestamp(6),
  circuit_breaker_trip_count int default 0,
  circuit_breaker_resume_at  timestamp(6),
  created_at                 timestamp(6) not null,
  updated_at                 timestamp(6) not null
);
create unique index if not exists idx_pgbus_queue_states_queue_name on pgbus_queue_states (queue_name);

create table if not exists pgbus_failed_events (
  id            bigserial primary key,
  queue_name    varchar not null,
  msg_id        bigint,
  payload       jsonb,
  headers       jsonb,
  error_class   varchar,
  error_message text,
  backtrace     text,
  retry_count   int default 0,
  failed_at     timestamp(6) not null default current_timestamp
);
create index if not exists idx_pgbus_failed_events_queue on pgbus_failed_events (queue_name);
create index if not exists idx_pgbus_failed_events_time on pgbus_failed_events (failed_at);
create unique index if not exists idx_pgbus_failed_events_queue_msg on pgbus_failed_events (queue_name, msg_id);

create table if not exists pgbus_pgmq_schema_versions (
  id             serial primary key,
  version        varchar not null,
  installed_at   timestamptz not null default now(),
  install_method varchar not null default 'embedded'
);
