-- Each row is one statement, run on its own and outside a transaction, at the end of every migration: gives the
-- queues that another client created an index on (vt, msg_id) under the name of theirs on (vt), without blocking
-- anybody. Whatever an interrupted run left behind is picked up here.

with queue as (
  select distinct c.oid, c.relname, c.relname || '_vt_idx' as wanted, c.relname || '_vt_msg_id_idx' as fresh
    from pgmq.meta m
    join pg_class c on c.relnamespace = 'pgmq'::regnamespace and c.relname = lower('q_' || m.queue_name) and c.relkind = 'r'
), state as (
  select q.*,
         to_regclass(format('pgmq.%I', q.wanted)) is not null as has_wanted,
         coalesce((
           select i.indisvalid and pg_get_indexdef(i.indexrelid) like '%(vt, msg_id)'
             from pg_index i where i.indexrelid = to_regclass(format('pgmq.%I', q.wanted))
         ), false) as is_right,
         (select i.indisvalid from pg_index i where i.indexrelid = to_regclass(format('pgmq.%I', q.fresh))) as fresh_is_valid
    from queue q
)
select step.statement
  from state s
 cross join lateral (values
   (1, s.fresh_is_valid is not null and (s.is_right or not s.fresh_is_valid), format('drop index concurrently pgmq.%I', s.fresh)),
   (2, not s.is_right and s.fresh_is_valid is distinct from true, format('create index concurrently %I on pgmq.%I (vt, msg_id)', s.fresh, s.relname)),
   (3, not s.is_right and s.has_wanted, format('drop index concurrently pgmq.%I', s.wanted)),
   (4, not s.is_right, format('alter index pgmq.%I rename to %I', s.fresh, s.wanted))
 ) as step (position, needed, statement)
 where step.needed
 order by s.relname, step.position;
