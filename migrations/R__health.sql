-- What the health verdict has to know of each queue whose name begins with `prefix`. Reads only, and waits for nobody:
-- a table that somebody has locked is not `readable`, one that was dropped meanwhile is left out.
--
-- kind:     `job`, `dlq`, `stream`, or `event`: a routing pattern feeds it.
-- unlisted: a stream that only its index tells from a queue of jobs.
-- depth, visible: messages, and those that could be claimed now. No more than `most` rows are looked at in one place,
--          so that a queue of millions costs no more than one of thousands.
-- waiting, unclaimed: how long, in seconds, the oldest claimable message has been so, and the oldest of those that
--          were never claimed; null: there is none. Where the first `most` were all claimed before, the others count
--          as if they were not: a standstill must not be missed.
-- claimed: only where one has been unclaimed for `grace` seconds or longer: whether the queue is worked on all the
--          same. Something was claimed within that time, or is being worked on since.
create or replace function pgbus_queue_health(prefix text, grace float8, most int)
returns table (
  physical text, kind text, unlisted boolean, readable boolean, depth int, visible int, waiting float8,
  unclaimed float8, claimed boolean
)
language plpgsql stable set search_path from current set lock_timeout = '200ms' as $$
declare
  started constant timestamptz := clock_timestamp();
  since constant timestamptz := started - grace * interval '1 second';
  fed text[];
  streams text[];
  filled boolean;
begin
  if to_regclass('pgmq.topic_bindings') is not null then
    execute 'select array_agg(lower(b.queue_name)) from pgmq.topic_bindings b' into fed;
  end if;
  if to_regclass('pgbus_stream_queues') is not null then
    execute 'select coalesce(array_agg(lower(s.queue_name)), ''{}'') from pgbus_stream_queues s' into streams;
  end if;
  for physical in
    select distinct lower(m.queue_name) from pgmq.meta m where starts_with(lower(m.queue_name), prefix) order by 1
  loop
    unlisted := false; readable := true; depth := 0; visible := 0; waiting := null; unclaimed := null; claimed := null;
    if physical like '%\_dlq' then
      kind := 'dlq';
    elsif physical = any (streams) then
      kind := 'stream';
    elsif to_regclass(format('pgmq.%I', 'a_' || physical || '_msg_id_idx')) is not null then
      kind := 'stream';
      unlisted := streams is not null;
    elsif physical = any (fed) then
      kind := 'event';
    else
      kind := 'job';
    end if;
    if kind = 'stream' then
      return next;
      continue;
    end if;
    begin
      -- Most queues are empty, and this is the quickest way to see it.
      execute format('select exists (select from pgmq.%I)', 'q_' || physical) into filled;
      if filled then
        execute format(
          'select (select count(*) from (select from pgmq.%1$I limit $2) m),
                  (select count(*) from (select from pgmq.%1$I where vt <= $1 limit $2) m),
                  extract(epoch from $1 - (select min(vt) from pgmq.%1$I where vt <= $1)),
                  extract(epoch from $1 - (
                    select vt from (select vt, read_ct from pgmq.%1$I where vt <= $1 order by vt limit $2) m
                     where read_ct = 0 order by vt limit 1))',
          'q_' || physical) into depth, visible, waiting, unclaimed using started, most;
        if unclaimed is null and visible = most then
          unclaimed := waiting;
        end if;
      end if;
      if kind <> 'dlq' and unclaimed >= grace then
        -- Being worked on: hidden after a claim, but not because its last attempt failed. A message that waits for its
        -- next attempt holds up its group, which is no standstill either. What is worked on was due before the rest, so
        -- it is among the oldest, or among those that come due next.
        execute format(
          'select coalesce((select max(archived_at) from pgmq.%2$I) >= $2, false) or exists (
             select from (
               (select msg_id, vt, read_ct, last_read_at, headers from pgmq.%1$I where vt > $2 and vt <= $1 order by vt limit $4)
               union all
               (select msg_id, vt, read_ct, last_read_at, headers from pgmq.%1$I where vt > $1 order by vt limit $4)
               union all
               (select msg_id, vt, read_ct, last_read_at, headers from pgmq.%1$I order by msg_id limit $4)
             ) m
              where m.vt > $2
                and (m.last_read_at >= $2
                  or m.read_ct > 0 and m.vt > $1 and (m.headers ? ''x-pgmq-group'' or not exists (
                    select from pgbus_failed_events f
                     where f.queue_name = $3 and f.msg_id = m.msg_id and f.retry_count = m.read_ct - 1))))',
          'q_' || physical, 'a_' || physical)
          into claimed using started, since, substr(physical, length(prefix) + 1), most;
      end if;
    exception
      when undefined_table then
        continue;
      when lock_not_available then
        readable := false;
    end;
    return next;
  end loop;
end $$;
