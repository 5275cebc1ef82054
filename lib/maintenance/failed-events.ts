import { queueTable } from '../pgmq/statements.ts'
import { type MaintenanceTask, removeInChunks, type TaskContext } from './task.ts'

/** Deletes old records of failures whose message is in its queue no more. */
export function oldFailures(retention: number): MaintenanceTask {
  return {
    name: 'old_failures',
    lock: 13,
    every: 3_600_000,
    async run(context) {
      const { query } = context
      const sources = (await oldNames(context, retention)).map(({ name, physical }) => {
        const isWaiting =
          physical === null
            ? 'false'
            : `EXISTS (SELECT FROM ${queueTable(physical)} m WHERE m.msg_id = f.msg_id)`
        return {
          name,
          removeChunk: async (limit: number) => {
            const { rowCount } = await query(
              `DELETE FROM pgbus_failed_events WHERE id = ANY (ARRAY(
  SELECT id FROM pgbus_failed_events f
   WHERE f.queue_name = $1 AND NOT ${isWaiting}
     AND f.failed_at < (clock_timestamp() AT TIME ZONE 'UTC') - $2::float8 * interval '1 millisecond'
   LIMIT $3::int))`,
              [name, retention, limit],
            )
            return rowCount
          },
        }
      })
      return removeInChunks(context, sources)
    },
  }
}

/** Names under which there are old failures, with the queue behind each, if it is there. */
async function oldNames(
  { query, config }: TaskContext,
  retention: number,
): Promise<{ name: string; physical: string | null }[]> {
  const { rows } = await query<{ name: string; physical: string | null }>(
    `SELECT f.queue_name AS name,
       (SELECT lower(m.queue_name) FROM pgmq.meta m
         WHERE lower(m.queue_name) IN ($1 || f.queue_name, f.queue_name)
           AND to_regclass(format('pgmq.%I', lower('q_' || m.queue_name))) IS NOT NULL
         ORDER BY lower(m.queue_name) = $1 || f.queue_name DESC LIMIT 1) AS physical
  FROM pgbus_failed_events f
 WHERE f.failed_at < (clock_timestamp() AT TIME ZONE 'UTC') - $2::float8 * interval '1 millisecond'
 GROUP BY f.queue_name ORDER BY 1`,
    [`${config.queuePrefix.toLowerCase()}_`, retention],
  )
  return rows
}
