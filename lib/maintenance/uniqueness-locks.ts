import type { MaintenanceTask } from './task.ts'

/** Removes locks of unique jobs whose messages are gone without them: deleted by hand, or by a client that died. */
export const orphanedLocks: MaintenanceTask = {
  name: 'uniqueness_locks',
  lock: 16,
  every: 300_000,
  run: async context => {
    const keys = await context.locked(async () => {
      const { rows } = await context.query<{ key: string }>(
        'SELECT key FROM pgbus_reap_locks($1::float8) AS key',
        [2 * context.config.visibilityTimeout],
      )
      return rows.map(row => row.key)
    })
    if (keys && keys.length > 0)
      context.log.warn({ keys: keys.slice(0, 10) }, `removed ${keys.length} locks without a message`)
    return 'done'
  },
}
