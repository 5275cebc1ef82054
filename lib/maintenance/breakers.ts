import type { MaintenanceTask } from './task.ts'

/** A queue whose pause is over is tried soon, if anybody works on it at all. */
const untriedSeconds = 600

/** Ends pauses of the circuit breaker that are long over and that no worker has ended. */
export const overduePauses: MaintenanceTask = {
  name: 'overdue_pauses',
  lock: 14,
  every: 300_000,
  async run({ query, locked, log }) {
    await locked(async () => {
      const { rows } = await query<{ queue_name: string }>(
        `UPDATE pgbus_queue_states
   SET paused = false, paused_reason = NULL, paused_at = NULL, circuit_breaker_trip_count = 0,
       circuit_breaker_resume_at = NULL, updated_at = clock_timestamp() AT TIME ZONE 'UTC'
 WHERE paused AND circuit_breaker_resume_at < (clock_timestamp() AT TIME ZONE 'UTC') - $1::float8 * interval '1 second'
RETURNING queue_name`,
        [untriedSeconds],
      )
      for (const row of rows)
        log.info({ queue: row.queue_name }, `the pause of queue "${row.queue_name}" is over`)
    })
    return 'done'
  },
}
