-- Jobs that are enqueued again and again. An occurrence is decided by its row: whoever inserts it, enqueues.
-- Times without time zone hold UTC; other clients of these tables count on it.

create table if not exists pgbus_recurring_tasks (
  id          bigserial primary key,
  key         varchar not null,
  class_name  varchar,
  command     varchar(2048),
  schedule    varchar not null,
  arguments   text,
  queue_name  varchar,
  priority    int default 0,
  static      boolean not null default true,
  enabled     boolean not null default true,
  description text,
  created_at  timestamp(6) not null,
  updated_at  timestamp(6) not null
);
-- Tables that another client made have neither; rows without an owner are that client's own.
alter table pgbus_recurring_tasks add column if not exists options jsonb;
alter table pgbus_recurring_tasks add column if not exists owner varchar;
create unique index if not exists idx_pgbus_recurring_tasks_key on pgbus_recurring_tasks (key);

create table if not exists pgbus_recurring_executions (
  id         bigserial primary key,
  task_key   varchar not null,
  run_at     timestamp(6) not null,
  created_at timestamp(6) not null default (clock_timestamp() at time zone 'UTC')
);
alter table pgbus_recurring_executions add column if not exists msg_id bigint;
alter table pgbus_recurring_executions add column if not exists queue_name varchar;
create unique index if not exists idx_pgbus_recurring_executions_dedup on pgbus_recurring_executions (task_key, run_at);
create index if not exists idx_pgbus_recurring_executions_cleanup on pgbus_recurring_executions (run_at);
