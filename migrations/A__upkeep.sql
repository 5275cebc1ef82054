-- Runs at the end of every migration and changes only what is not as it should be: tables that were restored or
-- made without their settings, queues that lost their insert trigger.

do $$
declare
  queue record;
  hot text;
begin
  foreach hot in array array[
    'pgbus_processes', 'pgbus_uniqueness_keys', 'pgbus_semaphores', 'pgbus_semaphore_slots', 'pgbus_processed_events',
    'pgbus_outbox_entries'
  ] loop
    perform pgbus_set_storage(hot::regclass, array[
      'autovacuum_vacuum_scale_factor=0.02', 'autovacuum_vacuum_cost_delay=2', 'autovacuum_analyze_scale_factor=0.05']);
  end loop;
  perform pgbus_set_storage('pgbus_stream_messages', array[
    'autovacuum_vacuum_scale_factor=0.01', 'autovacuum_vacuum_threshold=50', 'autovacuum_vacuum_cost_delay=2',
    'autovacuum_analyze_scale_factor=0.05']);
  foreach hot in array array['pgbus_stream_pending', 'pgbus_pending_ends'] loop
    perform pgbus_set_storage(hot::regclass, array[
      'autovacuum_vacuum_scale_factor=0.02', 'autovacuum_vacuum_threshold=50', 'autovacuum_vacuum_cost_delay=2']);
  end loop;

  for queue in
    select distinct lower(m.queue_name) as physical from pgmq.meta m
     where to_regclass(format('pgmq.%I', lower('q_' || m.queue_name))) is not null
  loop
    perform pgbus_tune_queue(queue.physical);
  end loop;

  for queue in
    select t.queue_name, t.throttle_interval_ms from pgmq.notify_insert_throttle t
     where to_regclass(format('pgmq.%I', lower('q_' || t.queue_name))) is not null
       and not exists (
         select from pg_trigger g
          where g.tgrelid = to_regclass(format('pgmq.%I', lower('q_' || t.queue_name)))
            and g.tgname = 'trigger_notify_queue_insert_listeners'
       )
  loop
    perform pgmq.enable_notify_insert(queue.queue_name, queue.throttle_interval_ms);
  end loop;
end $$;
