import type { MaintenanceTask } from './task.ts'

/** A process that wrote no heartbeat for so long is gone. If it is not, its next one brings the row back. */
const deadAfterSeconds = 300

/** Removes the rows of processes that ended without a word. */
export const deadProcesses: MaintenanceTask = {
  name: 'dead_processes',
  lock: 11,
  every: 300_000,
  async run({ query, locked, log }) {
    await locked(async () => {
      const { rows } = await query<{ kind: string; hostname: string; pid: number }>(
        `DELETE FROM pgbus_processes
 WHERE coalesce(last_heartbeat_at, created_at) < (clock_timestamp() AT TIME ZONE 'UTC') - $1::float8 * interval '1 second'
RETURNING kind, hostname, pid`,
        [deadAfterSeconds],
      )
      for (const row of rows) {
        log.info(
          row,
          `${row.kind} ${row.pid} on ${row.hostname} is gone: no heartbeat for ${deadAfterSeconds} s`,
        )
      }
    })
    return 'done'
  },
}
