-- Which handler has handled which event. A row without `completed_at` is a claim: somebody began.
-- Times without time zone hold UTC; other clients of this table count on it.

create table if not exists pgbus_processed_events (
  id            bigserial primary key,
  event_id      varchar not null,
  handler_class varchar not null,
  processed_at  timestamp(6) not null default current_timestamp,
  completed_at  timestamp(6)
);

-- Older clients wrote a row only for what they were about to finish: without this, history would run again.
do $$
begin
  if not exists (
    select from pg_attribute
     where attrelid = 'pgbus_processed_events'::regclass and attname = 'completed_at' and not attisdropped
  ) then
    alter table pgbus_processed_events add column completed_at timestamp(6);
    update pgbus_processed_events set completed_at = processed_at;
  end if;
end $$;

-- The message that a claim was made for. Other clients leave both empty.
alter table pgbus_processed_events add column if not exists queue_name varchar;
alter table pgbus_processed_events add column if not exists msg_id bigint;

create unique index if not exists idx_pgbus_processed_events_unique on pgbus_processed_events (event_id, handler_class);
create index if not exists idx_pgbus_processed_events_cleanup on pgbus_processed_events (processed_at);
