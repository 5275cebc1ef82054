-- Locks of unique jobs, shared with clients in other languages. Times without time zone hold UTC.

create table if not exists pgbus_uniqueness_keys (
  lock_key   varchar not null,
  queue_name varchar not null,
  msg_id     bigint not null,
  created_at timestamp(6) not null default (clock_timestamp() at time zone 'UTC')
);
-- Tables that another client made lack it; to that client every lock lasts until its job is done.
alter table pgbus_uniqueness_keys add column if not exists strategy varchar;
create unique index if not exists idx_pgbus_uniqueness_keys_key on pgbus_uniqueness_keys (lock_key);
create index if not exists idx_pgbus_uniqueness_keys_message on pgbus_uniqueness_keys (queue_name, msg_id);
