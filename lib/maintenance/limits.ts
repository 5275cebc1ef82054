import type { MaintenanceTask } from './task.ts'

/**
 * Gives back slots whose messages are gone without them, corrects counts, and looks after jobs that wait although
 * there is room: after a limit was raised, or a queue dropped. A job that waits is never given up.
 */
export const limits: MaintenanceTask = {
  name: 'concurrency_limits',
  lock: 17,
  every: 300_000,
  run: async context => {
    const { query, locked, log, signal } = context
    const mended = await locked(async () => {
      const { rows } = await query<{ key: string }>('SELECT DISTINCT key FROM pgbus_reap_slots() AS key')
      return rows.map(row => row.key)
    })
    // Another process is at it.
    if (mended === undefined) return 'done'
    if (mended.length > 0)
      log.warn({ keys: mended.slice(0, 10) }, `counted the running jobs of ${mended.length} limits anew`)
    const waited = await locked(async () => {
      const { rows } = await query<{ key: string }>('SELECT key FROM pgbus_waited_keys() AS key')
      return rows.map(row => row.key)
    })
    // Each by itself: what is locked is locked for one commit.
    for (const key of waited ?? []) {
      if (signal.aborted) return 'more'
      const sent = await locked(async () => {
        const { rows } = await query<{ sent: number }>('SELECT pgbus_promote($1::text) AS sent', [key])
        return rows[0]?.sent ?? 0
      })
      if (sent) log.info({ key, jobs: sent }, `${sent} jobs that waited for a slot were sent`)
    }
    return 'done'
  },
}
