import { type MaintenanceTask, removeInChunks } from './task.ts'

/** Forgets which handler has handled which event, oldest first. */
export function oldProcessedEvents(retention: number): MaintenanceTask {
  return {
    name: 'old_processed_events',
    lock: 19,
    every: 3_600_000,
    run: context =>
      removeInChunks(context, [
        {
          name: 'pgbus_processed_events',
          removeChunk: async limit => {
            const { rowCount } = await context.query(
              `DELETE FROM pgbus_processed_events WHERE id = ANY (ARRAY(
  SELECT id FROM pgbus_processed_events
   WHERE processed_at < (clock_timestamp() AT TIME ZONE 'UTC') - $1::float8 * interval '1 millisecond'
   ORDER BY processed_at LIMIT $2::int))`,
              [retention, limit],
            )
            return rowCount
          },
        },
      ]),
  }
}
