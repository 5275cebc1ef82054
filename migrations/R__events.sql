-- Functions of the event bus.

-- Whether somebody may be working on the message that a claim was made for: it is still in its queue, and hidden.
-- That is also so while it waits for its next attempt. A claim without a message is of another client, or of a
-- process that is gone.
create or replace function pgbus_event_claim_is_held(physical text, msg_id bigint) returns boolean
language plpgsql stable set search_path from current as $$
declare
  held boolean;
begin
  if physical is null or msg_id is null or to_regclass(format('pgmq.%I', 'q_' || physical)) is null then
    return false;
  end if;
  execute format('select exists (select from pgmq.%I m where m.msg_id = $1 and m.vt > clock_timestamp())', 'q_' || physical)
    into held using msg_id;
  return held;
end $$;

-- Claims an event for handlers of one queue, before they run. `state`: `run`; `done`, it was handled already; `busy`,
-- another message of the same event is being handled, so nothing was claimed and it is to be tried again later. A
-- claim that was begun and not completed is taken over as soon as its message is free or gone, or is this one.
create or replace function pgbus_claim_event(event text, handlers text[], physical text, message_id bigint)
returns table (handler text, state text)
language plpgsql set search_path from current set timezone to 'UTC' set lock_timeout to '5s' as $$
declare
  claim record;
  is_busy boolean := false;
begin
  -- In name order, so that two of these cannot wait for each other.
  insert into pgbus_processed_events (event_id, handler_class, processed_at)
    select event, h, clock_timestamp() from unnest(handlers) h order by h
    on conflict (event_id, handler_class) do nothing;
  for claim in
    select p.id, p.handler_class, p.completed_at, p.queue_name, p.msg_id from pgbus_processed_events p
     where p.event_id = event and p.handler_class = any (handlers) order by p.handler_class for update
  loop
    handler := claim.handler_class;
    if claim.completed_at is not null then
      state := 'done';
    elsif (claim.queue_name = physical and claim.msg_id = message_id)
          or not pgbus_event_claim_is_held(claim.queue_name, claim.msg_id) then
      state := 'run';
    else
      state := 'busy';
      is_busy := true;
    end if;
    return next;
  end loop;
  if not is_busy then
    update pgbus_processed_events p set queue_name = physical, msg_id = message_id
     where p.event_id = event and p.handler_class = any (handlers) and p.completed_at is null;
  end if;
exception when lock_not_available then
  -- A handler that works in a transaction has it. Rows that were returned before are not taken back.
  return query select h, 'busy' from unnest(handlers) h;
end $$;

-- The same for a handler that works in the caller's transaction: its claim is there for others when that commits, and
-- whoever asks meanwhile waits, for five seconds.
create or replace function pgbus_lock_event(event text, handler text, physical text, message_id bigint) returns text
language plpgsql set search_path from current set timezone to 'UTC' set lock_timeout to '5s' as $$
declare
  claim record;
begin
  insert into pgbus_processed_events as p (event_id, handler_class, processed_at)
    values (event, handler, clock_timestamp())
    on conflict (event_id, handler_class) do update set processed_at = p.processed_at
    returning p.completed_at, p.queue_name, p.msg_id into claim;
  if claim.completed_at is not null then
    return 'done';
  end if;
  if (claim.queue_name = physical and claim.msg_id = message_id) is not true
     and pgbus_event_claim_is_held(claim.queue_name, claim.msg_id) then
    return 'busy';
  end if;
  return 'run';
exception when lock_not_available then
  return 'busy';
end $$;
