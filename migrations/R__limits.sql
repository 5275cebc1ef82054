-- Jobs that have company: a lock that keeps others out, a slot of a limit. They enter a queue through pgbus_enqueue,
-- and whatever takes them out of it for good calls pgbus_after_end in the same statement, so that what a message
-- holds lives exactly as long as it. Jobs without any of that never come here.
--
-- Rows are locked in one order everywhere, so that no two statements wait for each other: uniqueness keys, then
-- semaphores, each sorted.

drop function if exists pgbus_after_end(text, bigint[], jsonb[]);
drop function if exists pgbus_finish(text, bigint[], int[], text, text, text, text[]);
drop function if exists pgbus_replace_waiting(text, bigint, jsonb, jsonb, timestamptz);
drop function if exists pgbus_admit(text, bigint, int, int, text, int, text);

-- Whether something follows from the end of a message.
create or replace function pgbus_is_tracked(message jsonb) returns boolean
language sql immutable parallel safe as $$
  select message ?| array['pgbus_uniqueness_key', 'pgbus_concurrency_key'];
$$;

------------------------------------------------------------------------------------------------- slots

-- Takes a unit of a limit, or says that there is none. Either way the semaphore stays locked until commit, and is
-- changed: whoever gives a unit back then sees the job that was told to wait.
create or replace function pgbus_acquire(key text, most int) returns boolean
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  expires constant timestamp := clock_timestamp() + interval '15 minutes';
  held int;
begin
  loop
    select s.value into held from pgbus_semaphores s where s.key = $1 for update;
    if found then
      update pgbus_semaphores s set value = held + (held < most)::int, max_value = most, expires_at = expires where s.key = $1;
      return held < most;
    end if;
    insert into pgbus_semaphores (key, value, max_value, expires_at)
    select $1, count(*), most, expires from pgbus_semaphore_slots t where t.key = $1
    on conflict do nothing;
  end loop;
end $$;

-- Gives back `released` units of a key, and hands what is free to the jobs that wait for it, most urgent and oldest
-- first. Returns how many were sent. A job whose queue is gone stays where it is.
create or replace function pgbus_promote(key text, released int default 0) returns int
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  held int;
  most int;
  next record;
  new_id bigint;
  sent int := 0;
begin
  loop
    select s.value - released, s.max_value into held, most from pgbus_semaphores s where s.key = $1 for update;
    exit when found;
    -- Somebody deleted it. The slots that are left say how many units are taken.
    select b.max_value into most from pgbus_blocked_executions b where b.concurrency_key = $1 order by b.id desc limit 1;
    if not found and not exists (select from pgbus_semaphore_slots t where t.key = $1) then
      return 0;
    end if;
    insert into pgbus_semaphores (key, value, max_value, expires_at)
    select $1, count(*) + released, coalesce(most, 1), clock_timestamp() + interval '15 minutes'
      from pgbus_semaphore_slots t where t.key = $1
    on conflict do nothing;
  end loop;
  held := greatest(0, held);
  while held < most loop
    select b.* into next from pgbus_blocked_executions b
     where b.concurrency_key = $1 and to_regclass(format('pgmq.%I', 'q_' || b.queue_name)) is not null
     order by b.priority, b.created_at, b.id limit 1 for update skip locked;
    exit when not found;
    execute format('insert into pgmq.%I (vt, message, headers) values (greatest($1, clock_timestamp()), $2, $3) returning msg_id',
      'q_' || next.queue_name) into new_id using next.due_at, next.payload, next.headers;
    delete from pgbus_blocked_executions b where b.id = next.id;
    insert into pgbus_semaphore_slots (queue_name, msg_id, key) values (next.queue_name, new_id, $1);
    update pgbus_uniqueness_keys u set queue_name = next.queue_name, msg_id = new_id
     where u.lock_key = next.payload ->> 'pgbus_uniqueness_key' and u.msg_id = 0;
    held := held + 1;
    sent := sent + 1;
  end loop;
  if held = 0 then
    delete from pgbus_semaphores s where s.key = $1;
  else
    update pgbus_semaphores s set value = held where s.key = $1;
  end if;
  return sent;
end $$;

-- Gives back the slots of messages. Only a slot that is there counts, so doing it twice gives back once.
create or replace function pgbus_release_slots(physical text, ids bigint[]) returns void
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  given record;
begin
  for given in
    with gone as (
      delete from pgbus_semaphore_slots t where t.queue_name = physical and t.msg_id = any (ids) returning t.key
    )
    select g.key, count(*)::int as n from gone g group by g.key order by g.key
  loop
    perform pgbus_promote(given.key, given.n);
  end loop;
end $$;

------------------------------------------------------------------------------------------------- ends

-- What follows when messages have left their queue for good. Called by the statement that removed them, with those
-- that it really removed. `at_commit`: in a transaction of somebody else, which may stay open.
create or replace function pgbus_after_end(
  physical text, ids bigint[], messages jsonb[], discarded boolean, at_commit boolean default false
) returns void
language plpgsql set search_path from current set timezone to 'UTC' as $$
begin
  -- By key and message: whoever has the lock of another message keeps it. Other clients write the logical name.
  delete from pgbus_uniqueness_keys u using unnest(ids, messages) as m (id, message)
   where u.lock_key = m.message ->> 'pgbus_uniqueness_key' and u.msg_id = m.id
     and strpos(physical, lower(u.queue_name)) > 0;
  if at_commit then
    insert into pgbus_pending_ends (queue_name, msg_id, discarded)
    select physical, m.id, $4 from unnest(ids, messages) as m (id, message) where m.message ? 'pgbus_concurrency_key';
  else
    perform pgbus_release_slots(physical, ids);
  end if;
end $$;

-- Runs at commit, once per row; the first run does the work of all rows of the transaction.
create or replace function pgbus_flush_ends() returns trigger
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  ended record;
begin
  -- By its key: looking for rows of the transaction would walk past all those that the first run removed.
  if not exists (select from pgbus_pending_ends p where p.id = new.id) then
    return null;
  end if;
  for ended in
    with gone as (
      delete from pgbus_pending_ends where xid = pg_current_xact_id() returning queue_name, msg_id
    )
    select g.queue_name, array_agg(g.msg_id) as ids from gone g group by 1 order by 1
  loop
    perform pgbus_release_slots(ended.queue_name, ended.ids);
  end loop;
  return null;
end $$;

do $$
begin
  if not exists (
    select from pg_trigger where tgrelid = 'pgbus_pending_ends'::regclass and tgname = 'pgbus_flush_ends'
  ) then
    create constraint trigger pgbus_flush_ends after insert on pgbus_pending_ends
      deferrable initially deferred for each row execute function pgbus_flush_ends();
  end if;
end $$;

-- A message as a dead letter keeps it. It has given its lock back, that of its enqueue for good, and its slot: whoever
-- runs it again has to take one first.
create or replace function pgbus_dead_copy(message jsonb) returns jsonb
language plpgsql stable set search_path from current as $$
declare
  most int;
begin
  if message ? 'pgbus_uniqueness_key' and message ->> 'pgbus_uniqueness_strategy' is distinct from 'while_executing' then
    message := message - 'pgbus_uniqueness_key' - 'pgbus_uniqueness_strategy';
  end if;
  if message ? 'pgbus_concurrency_key' and not message ? 'pgbus_limit' then
    select s.max_value into most from pgbus_semaphores s where s.key = message ->> 'pgbus_concurrency_key';
    return message || jsonb_build_object('pgbus_limit', jsonb_build_object('max', coalesce(most, 1), 'on_conflict', 'block'));
  end if;
  return message;
end $$;

-- Ends messages that are still these deliveries, with what follows from it. `outcome`: `archive`, `delete`, or
-- `bury` into the queue `target` with the story of each. Returns the ids that are ended; asked again after a lost
-- reply, an archive returns the same ids and does nothing. `discarded`: it was given up, not done.
create or replace function pgbus_finish(
  physical text, ids bigint[], reads int[], outcome text, discarded boolean, failed text,
  target text default null, stories text[] default null, at_commit boolean default false
) returns setof bigint
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  moved bigint[];
  messages jsonb[];
begin
  execute format($sql$
    with gone as (
      delete from pgmq.%I m using unnest($1, $2, $3) as t (msg_id, read_ct, story)
       where m.msg_id = t.msg_id and m.read_ct = t.read_ct
      returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers, t.story
    ), $sql$, 'q_' || physical)
    || case outcome
      when 'archive' then format($sql$ kept as (
        insert into pgmq.%I (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
        select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers from gone
      ), $sql$, 'a_' || physical)
      when 'bury' then format($sql$ buried as (
        insert into pgmq.%I (vt, message, headers)
        select clock_timestamp(), pgbus_dead_copy(message),
               case when jsonb_typeof(headers) = 'object' then headers else '{}' end
                 || jsonb_build_object('pgbus_dead_letter', story::jsonb)
          from gone order by msg_id
      ), $sql$, 'q_' || target)
      else '' end
    || $sql$ cleared as (
      delete from pgbus_failed_events f using gone g where f.queue_name = $4 and f.msg_id = g.msg_id
    )
    select coalesce(array_agg(msg_id), '{}'), coalesce(array_agg(message), '{}') from gone $sql$
    into moved, messages using ids, reads, stories, failed;
  perform pgbus_after_end(physical, moved, messages, discarded, at_commit);
  return query select unnest(moved);
  if outcome = 'archive' and cardinality(moved) < cardinality(ids) then
    return query execute format($sql$
      select a.msg_id from pgmq.%I a
        join unnest($1, $2) as t (msg_id, read_ct) on a.msg_id = t.msg_id and a.read_ct = t.read_ct
       where a.msg_id <> all ($3) $sql$, 'a_' || physical) using ids, reads, moved;
  end if;
end $$;

-- Ends all messages of a queue that is about to be emptied or dropped in this transaction, and the jobs that wait
-- outside it: only what follows from it; the rows of the queue are left to the caller. Nobody can add or take any
-- until it commits. Dead letters ended before.
create or replace function pgbus_end_all(physical text) returns void
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  ids bigint[];
  messages jsonb[];
  last bigint := 0;
begin
  if physical like '%\_dlq' then
    return;
  end if;
  -- Before the queue is locked: whoever sends one of them needs the queue.
  with gone as (
    delete from pgbus_blocked_executions b where b.queue_name = physical returning b.payload
  )
  delete from pgbus_uniqueness_keys u using gone g
   where u.lock_key = g.payload ->> 'pgbus_uniqueness_key' and u.msg_id = 0;
  if to_regclass(format('pgmq.%I', 'q_' || physical)) is null
     or not exists (select from pgbus_uniqueness_keys) and not exists (select from pgbus_semaphore_slots) then
    return;
  end if;
  -- In the order in which queues are made and dropped.
  perform pg_advisory_xact_lock(hashtext('pgmq.queue_' || physical));
  execute format('lock table pgmq.%I in access exclusive mode', 'q_' || physical);
  loop
    -- Among them jobs that come in by a slot that one of the first gives back.
    execute format($sql$
      select array_agg(msg_id), array_agg(message), max(msg_id) from (
        select msg_id, message from pgmq.%I where msg_id > $1 and pgbus_is_tracked(message) order by msg_id limit 10000
      ) m $sql$, 'q_' || physical) into ids, messages, last using last;
    exit when ids is null;
    perform pgbus_after_end(physical, ids, messages, true);
  end loop;
end $$;

------------------------------------------------------------------------------------------------- beginnings

-- Stores jobs that have company, all or none. Each of `jobs` is an object of `queue`, `message`, `headers`,
-- `delay_ms`, `priority`, `unique` (`key`, `on_conflict`) and `limit` (`key`, `max`, `on_conflict`). Without `limit` a
-- job has none, or takes its slot when it is claimed.
--
-- `status` of each: `sent`; `blocked`, it waits for a slot outside its queue; `replaced`, a job that nobody had begun
-- with has this content now; `duplicate` or `discarded`, nothing is stored. One row alone says which one was refused:
-- `taken`, its key is, by that message; `undecided`, its key was, for 5 s, in a transaction that has not ended;
-- `limited`. Then nothing of the call is stored, and the transaction of the caller goes on.
create or replace function pgbus_enqueue(jobs jsonb)
returns table (ord int, status text, msg_id bigint, holder_queue text, holder_id bigint)
language plpgsql set search_path from current set timezone to 'UTC' set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  started constant timestamptz := clock_timestamp();
  states text[];
  ids bigint[];
  -- Those whose key could not be decided in time.
  late int[] := '{}';
  current_ord int;
  job record;
  at_queue text;
  at_id bigint;
  new_id bigint;
begin
  loop
    states := array_fill(null::text, array[jsonb_array_length(jobs)]);
    ids := array_fill(null::bigint, array[jsonb_array_length(jobs)]);
    begin
      for job in select * from pgbus_read_jobs(jobs) j where j.lock_key is not null order by j.lock_key, j.position loop
        current_ord := job.position;
        at_queue := null;
        at_id := null;
        if not job.position = any (late) then
          loop
            insert into pgbus_uniqueness_keys (lock_key, queue_name, msg_id, strategy)
            values (job.lock_key, 'pending', 0, 'until_executed') on conflict do nothing;
            exit when found;
            select u.queue_name, u.msg_id into at_queue, at_id from pgbus_uniqueness_keys u where u.lock_key = job.lock_key;
            -- Else it ended in this very moment.
            exit when found;
          end loop;
          continue when at_queue is null;
        end if;
        if job.lock_conflict = 'replace' and pgbus_replace_waiting(at_queue, at_id, job.queue, job.lock_key, job.message,
             job.headers, job.priority, started + job.delay) then
          states[job.position] := 'replaced';
          ids[job.position] := nullif(at_id, 0);
        elsif job.lock_conflict in ('reject', 'replace') then
          raise exception using errcode = 'PB002', message = 'not unique';
        else
          states[job.position] := 'duplicate';
        end if;
      end loop;
      current_ord := null;

      for job in select * from pgbus_read_jobs(jobs) j where j.limit_key is not null order by j.limit_key, j.position loop
        continue when states[job.position] is not null or pgbus_acquire(job.limit_key, job.most);
        if job.limit_conflict = 'raise' then
          current_ord := job.position;
          raise exception using errcode = 'PB001', message = 'limit reached';
        end if;
        states[job.position] := case job.limit_conflict when 'discard' then 'discarded' else 'blocked' end;
        if job.limit_conflict = 'discard' then
          delete from pgbus_uniqueness_keys u where u.lock_key = job.lock_key;
        end if;
      end loop;

      for job in select * from pgbus_read_jobs(jobs) j order by j.position loop
        if states[job.position] = 'blocked' then
          insert into pgbus_blocked_executions (concurrency_key, queue_name, payload, headers, priority, max_value, expires_at)
          values (job.limit_key, job.queue, job.message, job.headers, job.priority, job.most, started + interval '15 minutes');
        end if;
        continue when states[job.position] is not null;
        execute format('insert into pgmq.%I (vt, message, headers) values ($1, $2, $3) returning msg_id', 'q_' || job.queue)
          into new_id using started + job.delay, job.message, job.headers;
        if job.lock_key is not null then
          update pgbus_uniqueness_keys u set queue_name = job.queue, msg_id = new_id where u.lock_key = job.lock_key;
        end if;
        if job.limit_key is not null then
          insert into pgbus_semaphore_slots (queue_name, msg_id, key) values (job.queue, new_id, job.limit_key);
        end if;
        states[job.position] := 'sent';
        ids[job.position] := new_id;
      end loop;
      return query select o::int, states[o], ids[o], null::text, null::bigint from generate_subscripts(states, 1) o;
      return;
    exception
      when sqlstate 'PB001' then
        return query select current_ord, 'limited', null::bigint, null::text, null::bigint;
        return;
      when sqlstate 'PB002' then
        return query select current_ord, case when at_queue is null then 'undecided' else 'taken' end,
                            null::bigint, at_queue, at_id;
        return;
      when lock_not_available then
        -- A duplicate is a duplicate; the others begin again.
        if current_ord is null then
          raise;
        end if;
        late := late || current_ord;
    end;
  end loop;
end $$;

-- The parameter of pgbus_enqueue as rows.
create or replace function pgbus_read_jobs(jobs jsonb)
returns table (
  "position" int, queue text, message jsonb, headers jsonb, delay interval, priority int,
  lock_key text, lock_conflict text, limit_key text, most int, limit_conflict text
)
language sql immutable set search_path from current as $$
  select j.position::int, j.value ->> 'queue', j.value -> 'message', nullif(j.value -> 'headers', 'null'),
         (j.value ->> 'delay_ms')::float8 * interval '1 millisecond', (j.value ->> 'priority')::int,
         j.value #>> '{unique,key}', j.value #>> '{unique,on_conflict}',
         j.value #>> '{limit,key}', (j.value #>> '{limit,max}')::int, j.value #>> '{limit,on_conflict}'
    from jsonb_array_elements(jobs) with ordinality as j (value, position);
$$;

-- Gives a job that nobody has begun with another content: the message `id` of that queue, or one that waits for a
-- slot. False: somebody has begun with it, or it is gone, or it is one of another queue or limit.
create or replace function pgbus_replace_waiting(
  at_queue text, id bigint, physical text, lock_key text, new_message jsonb, new_headers jsonb, new_priority int, due timestamptz
) returns boolean
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  replaced int;
begin
  if at_queue = 'pending' then
    update pgbus_blocked_executions b
       set payload = new_message - 'pgbus_limit', headers = new_headers, priority = new_priority, due_at = due
     where b.concurrency_key = new_message ->> 'pgbus_concurrency_key' and b.queue_name = physical
       and b.payload ->> 'pgbus_uniqueness_key' = lock_key;
  elsif at_queue = physical and to_regclass(format('pgmq.%I', 'q_' || physical)) is not null then
    -- Whether it takes its slot when it is claimed stays as it was.
    execute format($sql$
      update pgmq.%I m
         set message = $1 || case when m.message ? 'pgbus_limit' then jsonb_build_object('pgbus_limit', m.message -> 'pgbus_limit') else '{}' end,
             headers = $2, vt = $3, enqueued_at = clock_timestamp()
       where m.msg_id = $4 and m.read_ct = 0
         and (m.message ->> 'pgbus_concurrency_key') is not distinct from ($1 ->> 'pgbus_concurrency_key') $sql$, 'q_' || physical)
      using new_message, new_headers, due, id;
  else
    return false;
  end if;
  get diagnostics replaced = row_count;
  if replaced > 0 then
    -- It may be due sooner than its worker expects.
    perform pg_notify('pgmq.q_' || physical || '.INSERT', '');
  end if;
  return replaced > 0;
end $$;

-- Takes the lock of a message for as long as it runs. False: one that runs has it.
create or replace function pgbus_lock_running(key text, physical text, message_id bigint) returns boolean
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  holder record;
  runs boolean;
begin
  loop
    insert into pgbus_uniqueness_keys (lock_key, queue_name, msg_id, strategy)
    values (key, physical, message_id, 'while_executing') on conflict do nothing;
    if found then
      return true;
    end if;
    -- Locked: who comes from its process that died has to wait until it is decided who has it.
    select u.queue_name, u.msg_id, u.strategy into holder from pgbus_uniqueness_keys u where u.lock_key = key for update;
    continue when not found;
    if holder.queue_name = physical and holder.msg_id = message_id then
      -- Its process died.
      return true;
    end if;
    runs := false;
    if to_regclass(format('pgmq.%I', 'q_' || lower(holder.queue_name))) is not null then
      -- One that waits in its queue does not run, unless its lock is that of its enqueue.
      execute format('select m.vt > clock_timestamp() or $2 from pgmq.%I m where m.msg_id = $1', 'q_' || lower(holder.queue_name))
        into runs using holder.msg_id, holder.strategy is distinct from 'while_executing';
    elsif holder.strategy is distinct from 'while_executing' then
      -- Of another client, or of a job that waits for a slot.
      runs := true;
    end if;
    if runs then
      return false;
    end if;
    update pgbus_uniqueness_keys u set queue_name = physical, msg_id = message_id, strategy = 'while_executing',
           created_at = clock_timestamp()
     where u.lock_key = key;
    return true;
  end loop;
end $$;

-- Decides about a delivery that takes its lock or its slot now: `run`; `wait`, another with its key runs; `discard`;
-- `parked`, it waits for a slot outside its queue, as if it had not been read; `lost`, it is no longer this delivery.
-- `lock_policy`, `most` and `policy`: as defined where it is to run; null: as stored.
create or replace function pgbus_admit(
  physical text, message_id bigint, reads int, lock_policy text, most int, policy text, default_priority int, failed text
) returns text
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  waiting record;
  rule jsonb;
  limit_key text;
begin
  execute format('select message, headers, enqueued_at from pgmq.%I where msg_id = $1 and read_ct = $2 for update', 'q_' || physical)
    into waiting using message_id, reads;
  if waiting.message is null then
    return 'lost';
  end if;
  if waiting.message ->> 'pgbus_uniqueness_strategy' = 'while_executing' and waiting.message ? 'pgbus_uniqueness_key' then
    if not pgbus_lock_running(waiting.message ->> 'pgbus_uniqueness_key', physical, message_id) then
      return case lock_policy when 'discard' then 'discard' else 'wait' end;
    end if;
  end if;
  rule := waiting.message -> 'pgbus_limit';
  limit_key := waiting.message ->> 'pgbus_concurrency_key';
  if rule is null or limit_key is null
     or exists (select from pgbus_semaphore_slots t where t.queue_name = physical and t.msg_id = message_id) then
    return 'run';
  end if;
  most := coalesce(most, (rule ->> 'max')::int, 1);
  if pgbus_acquire(limit_key, most) then
    insert into pgbus_semaphore_slots (queue_name, msg_id, key) values (physical, message_id, limit_key);
    return 'run';
  end if;
  if coalesce(policy, rule ->> 'on_conflict') = 'discard' then
    return 'discard';
  end if;
  execute format('delete from pgmq.%I where msg_id = $1', 'q_' || physical) using message_id;
  delete from pgbus_failed_events f where f.queue_name = failed and f.msg_id = message_id;
  delete from pgbus_uniqueness_keys u
   where u.queue_name = physical and u.msg_id = message_id and u.strategy = 'while_executing';
  update pgbus_uniqueness_keys u set queue_name = 'pending', msg_id = 0
   where u.lock_key = waiting.message ->> 'pgbus_uniqueness_key' and u.queue_name = physical and u.msg_id = message_id;
  insert into pgbus_blocked_executions (concurrency_key, queue_name, payload, headers, priority, max_value, expires_at, created_at)
  values (limit_key, physical, waiting.message - 'pgbus_limit', waiting.headers,
          case when jsonb_typeof(waiting.message -> 'priority') = 'number' then (waiting.message ->> 'priority')::numeric::int
               else default_priority end,
          most, clock_timestamp() + interval '15 minutes', waiting.enqueued_at);
  return 'parked';
end $$;

------------------------------------------------------------------------------------------------- repair

-- Gives back slots whose message is gone, because somebody removed it by hand, and corrects counts that do not fit
-- the slots: those that another client made are believed until they expire. Returns the keys.
create or replace function pgbus_reap_slots() returns setof text
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  owner record;
  orphans bigint[];
  wrong record;
  slots int;
begin
  for owner in select distinct t.queue_name from pgbus_semaphore_slots t order by 1 loop
    begin
      if to_regclass(format('pgmq.%I', 'q_' || owner.queue_name)) is null then
        continue when exists (select from pgmq.meta m where lower(m.queue_name) = owner.queue_name);
        select array_agg(t.msg_id) into orphans from pgbus_semaphore_slots t where t.queue_name = owner.queue_name;
      else
        execute format(
          'select array_agg(t.msg_id) from pgbus_semaphore_slots t
            where t.queue_name = $1 and not exists (select from pgmq.%I m where m.msg_id = t.msg_id)', 'q_' || owner.queue_name)
          into orphans using owner.queue_name;
      end if;
      continue when orphans is null;
      return query select distinct t.key::text from pgbus_semaphore_slots t
        where t.queue_name = owner.queue_name and t.msg_id = any (orphans);
      perform pgbus_release_slots(owner.queue_name, orphans);
    exception when others then
      raise warning 'slots of queue "%" were left alone: %', owner.queue_name, sqlerrm;
    end;
  end loop;
  for wrong in
    select s.key from pgbus_semaphores s
      left join (select t.key, count(*) as n from pgbus_semaphore_slots t group by 1) t on t.key = s.key
     where s.value < coalesce(t.n, 0) or s.value > coalesce(t.n, 0) and s.expires_at < clock_timestamp()
     order by 1
  loop
    -- First the lock, then the count: whoever takes or gives back a slot has the lock while it does.
    perform from pgbus_semaphores s where s.key = wrong.key for update;
    select count(*) into slots from pgbus_semaphore_slots t where t.key = wrong.key;
    update pgbus_semaphores s set value = slots
     where s.key = wrong.key and (s.value < slots or s.value > slots and s.expires_at < clock_timestamp());
    if found then
      perform pgbus_promote(wrong.key);
      return next wrong.key;
    end if;
  end loop;
end $$;

-- Keys of limits that jobs wait for. Their queues are made again where somebody dropped them.
create or replace function pgbus_waited_keys() returns setof text
language plpgsql set search_path from current as $$
begin
  perform pgbus_create_queue(q.queue_name) from (
    select distinct b.queue_name from pgbus_blocked_executions b
     where to_regclass(format('pgmq.%I', 'q_' || b.queue_name)) is null order by 1) q;
  return query select distinct b.concurrency_key::text from pgbus_blocked_executions b order by 1;
end $$;

-- Removes locks, older than this, whose message is gone: somebody removed it by hand, or another client died before
-- it sent it. Where that cannot be told the lock stays. Returns the keys.
create or replace function pgbus_reap_locks(older_than_ms float8) returns setof text
language plpgsql set search_path from current set timezone to 'UTC' as $$
declare
  cutoff constant timestamp := clock_timestamp() - older_than_ms * interval '1 millisecond';
  owner record;
  tables text[];
  absent text;
begin
  for owner in
    select u.queue_name, u.msg_id > 0 as sent from pgbus_uniqueness_keys u
     where u.created_at < cutoff group by 1, 2 order by 1, 2
  loop
    -- The table of that name, or those of every queue that it may be the logical name of.
    select coalesce(array_agg(distinct 'q_' || lower(m.queue_name)), '{}') into tables
      from pgmq.meta m
     where m.queue_name not like '%\_dlq'
       and (owner.queue_name = 'pending'
            or lower(m.queue_name) = lower(owner.queue_name)
            or right(regexp_replace(lower(m.queue_name), '_p\d+$', ''), length(owner.queue_name) + 1) = '_' || lower(owner.queue_name));
    if owner.queue_name <> 'pending' and cardinality(tables) = 0
       and to_regclass(format('pgmq.%I', 'q_' || lower(owner.queue_name))) is not null then
      continue;
    end if;
    select coalesce(string_agg(format(
             'and not exists (select from pgmq.%I m where ' || case when owner.sent then 'm.msg_id = u.msg_id'
               else 'm.message ->> ''pgbus_uniqueness_key'' = u.lock_key' end || ')', name), ' '), '')
      into absent from unnest(tables) name;
    if not owner.sent then
      -- Those that wait for a slot are in no queue.
      absent := absent
        || ' and not exists (select from pgbus_blocked_executions b where b.payload ->> ''pgbus_uniqueness_key'' = u.lock_key)';
    end if;
    begin
      -- All three again in the delete: a lock that was taken for another message meanwhile stays.
      return query execute
        'with lost as materialized (
           select lock_key, queue_name, msg_id from pgbus_uniqueness_keys u
            where u.queue_name = $1 and u.created_at < $2 and (u.msg_id > 0) = $3 ' || absent || '
         )
         delete from pgbus_uniqueness_keys u using lost l
          where u.lock_key = l.lock_key and u.queue_name = l.queue_name and u.msg_id = l.msg_id
         returning u.lock_key::text'
        using owner.queue_name, cutoff, owner.sent;
    exception when others then
      raise warning 'locks of queue "%" were left alone: %', owner.queue_name, sqlerrm;
    end;
  end loop;
end $$;
