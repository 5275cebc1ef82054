import { archiveTable } from '../pgmq/statements.ts'
import { type MaintenanceTask, removeInChunks } from './task.ts'

/**
 * Deletes archived jobs by the time they were archived: a job that waited for weeks is kept as long as any other.
 * Archives of other clients' queues are theirs.
 */
export function oldArchives(retention: number): MaintenanceTask {
  return {
    name: 'old_archives',
    lock: 12,
    every: 3_600_000,
    async run(context) {
      const { query, config } = context
      const prefix = `${config.queuePrefix.toLowerCase()}_`
      // Queues that other versions of pgbus use for streams have an index of their own.
      const { rows } = await query<{ physical: string }>(
        `SELECT DISTINCT lower(queue_name) AS physical FROM pgmq.meta
 WHERE starts_with(lower(queue_name), $1) AND octet_length(queue_name) <= 47
   AND to_regclass(format('pgmq.%I', lower('a_' || queue_name))) IS NOT NULL
   AND to_regclass(format('pgmq.%I', lower('a_' || queue_name || '_msg_id_idx'))) IS NULL
 ORDER BY 1`,
        [prefix],
      )
      const sources = rows.map(({ physical }) => {
        const table = archiveTable(physical)
        return {
          name: physical,
          removeChunk: async (limit: number) => {
            const { rowCount } = await query(
              `DELETE FROM ${table} WHERE msg_id = ANY (ARRAY(
  SELECT msg_id FROM ${table} WHERE archived_at < clock_timestamp() - $1::float8 * interval '1 millisecond'
   ORDER BY archived_at LIMIT $2::int))`,
              [retention, limit],
            )
            return rowCount
          },
        }
      })
      return removeInChunks(context, sources)
    },
  }
}
