import type { Queryable } from './database.ts'

/**
 * The client of a caller's transaction, checked as far as that can be seen from outside; none: undefined.
 * @throws TypeError for what is no client, and for a pool.
 */
export function checkTx(tx: Queryable | null | undefined): Queryable | undefined {
  if (tx === undefined || tx === null) return undefined
  if (typeof tx !== 'object' || typeof tx.query !== 'function') {
    throw new TypeError('tx must be a connected client: an object with query(text, values)')
  }
  const pool = tx as { connect?: unknown; totalCount?: unknown; idleCount?: unknown }
  if (
    typeof pool.connect === 'function' &&
    typeof pool.totalCount === 'number' &&
    typeof pool.idleCount === 'number'
  ) {
    throw new TypeError(
      'tx: pass a connected client, not a Pool (two queries on a pool may use two connections)',
    )
  }
  return tx
}
