import { type MaintenanceTask, removeInChunks } from './task.ts'

/** Deletes entries of the outbox that were published long ago; those that wait stay, however old. */
export function oldOutboxEntries(retention: number): MaintenanceTask {
  return {
    name: 'old_outbox_entries',
    lock: 20,
    every: 3_600_000,
    run: context =>
      removeInChunks(context, [
        {
          name: 'pgbus_outbox_entries',
          removeChunk: async limit => {
            const { rowCount } = await context.query(
              `DELETE FROM pgbus_outbox_entries WHERE id = ANY (ARRAY(
  SELECT id FROM pgbus_outbox_entries
   WHERE published_at < (clock_timestamp() AT TIME ZONE 'UTC') - $1::float8 * interval '1 millisecond'
   ORDER BY published_at LIMIT $2::int))`,
              [retention, limit],
            )
            return rowCount
          },
        },
      ]),
  }
}
