import { type MaintenanceTask, removeInChunks } from './task.ts'

/** Deletes records of past runs; the newest of each task stays, for people to see. */
export function oldExecutions(retention: number): MaintenanceTask {
  return {
    name: 'recurring_executions',
    lock: 18,
    every: 3_600_000,
    run: context =>
      removeInChunks(context, [
        {
          name: 'pgbus_recurring_executions',
          removeChunk: async limit => {
            const { rowCount } = await context.query(
              `DELETE FROM pgbus_recurring_executions WHERE id = ANY (ARRAY(
  SELECT id FROM pgbus_recurring_executions e
   WHERE run_at < (clock_timestamp() AT TIME ZONE 'UTC') - $1::float8 * interval '1 millisecond'
     AND EXISTS (SELECT FROM pgbus_recurring_executions n WHERE n.task_key = e.task_key AND n.run_at > e.run_at)
   LIMIT $2::int))`,
              [retention, limit],
            )
            return rowCount
          },
        },
      ]),
  }
}
