-- Messages that wait to be put on a queue or the event bus, written by those who must not, or cannot, write there.
-- Times without time zone hold UTC; other clients of this table count on it.

create table if not exists pgbus_outbox_entries (
  id           bigserial primary key,
  queue_name   varchar,
  routing_key  varchar,
  payload      jsonb not null,
  headers      jsonb,
  priority     int default 0,
  delay        int default 0,
  published_at timestamp(6),
  created_at   timestamp(6) not null default (clock_timestamp() at time zone 'UTC'),
  constraint chk_pgbus_outbox_destination check ((queue_name is null) <> (routing_key is null))
);
-- Tables that another client made have none of these.
alter table pgbus_outbox_entries add column if not exists attempts int not null default 0;
alter table pgbus_outbox_entries add column if not exists available_at timestamptz;
alter table pgbus_outbox_entries add column if not exists last_error text;
-- When the message is to be delivered, more exactly than `delay`; and what is to be decided when it is sent.
alter table pgbus_outbox_entries add column if not exists due_at timestamptz;
alter table pgbus_outbox_entries add column if not exists options jsonb;
-- Whoever inserts a row by hand may be in any time zone.
alter table pgbus_outbox_entries alter column created_at set default (clock_timestamp() at time zone 'UTC');

create index if not exists idx_pgbus_outbox_unpublished on pgbus_outbox_entries (published_at) where published_at is null;
create index if not exists idx_pgbus_outbox_cleanup on pgbus_outbox_entries (published_at) where published_at is not null;
create index if not exists idx_pgbus_outbox_ready on pgbus_outbox_entries (id) where published_at is null;
create index if not exists idx_pgbus_outbox_failing on pgbus_outbox_entries (available_at)
  where published_at is null and available_at is not null;
