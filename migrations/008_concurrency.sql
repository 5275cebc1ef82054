-- Limits on how many jobs with one key may be in their queues at a time, shared with clients in other languages.
-- Times without time zone hold UTC.

-- How many units of a key are taken.
create table if not exists pgbus_semaphores (
  id         bigserial primary key,
  key        varchar not null,
  value      int not null default 0,
  max_value  int not null default 1,
  expires_at timestamp(6) not null,
  created_at timestamp(6) not null default (clock_timestamp() at time zone 'UTC')
);
create unique index if not exists idx_pgbus_semaphores_key on pgbus_semaphores (key);
create index if not exists idx_pgbus_semaphores_expired on pgbus_semaphores (expires_at);

-- Which message has which unit. Other clients count without it.
create table if not exists pgbus_semaphore_slots (
  queue_name  varchar,
  msg_id      bigint,
  key         varchar not null,
  acquired_at timestamptz not null default clock_timestamp(),
  primary key (queue_name, msg_id)
);
create index if not exists idx_pgbus_semaphore_slots_key on pgbus_semaphore_slots (key);

-- Jobs that wait for a unit, outside their queue.
create table if not exists pgbus_blocked_executions (
  id              bigserial primary key,
  concurrency_key varchar not null,
  queue_name      varchar not null,
  payload         jsonb not null,
  priority        int not null default 0,
  expires_at      timestamp(6) not null,
  created_at      timestamp(6) not null default (clock_timestamp() at time zone 'UTC')
);
alter table pgbus_blocked_executions add column if not exists headers jsonb;
alter table pgbus_blocked_executions add column if not exists due_at timestamptz;
alter table pgbus_blocked_executions add column if not exists max_value int;
create index if not exists idx_pgbus_blocked_release_order on pgbus_blocked_executions (concurrency_key, priority, created_at);

-- Messages that a caller's transaction has taken out of their queue. What follows happens when it commits, so that
-- what others wait for is locked no longer than that. No row is ever committed.
create unlogged table if not exists pgbus_pending_ends (
  id         bigint generated always as identity primary key,
  xid        xid8 not null default pg_current_xact_id(),
  queue_name varchar not null,
  msg_id     bigint not null,
  batch_id   varchar,
  discarded  boolean not null
);
