import type { ResolvedConfig } from '../config/options.ts'
import type { Database } from '../db/database.ts'
import { logicalOf } from '../pgmq/names.ts'

/** The lock of a unique job. */
export interface LockInfo {
  /** As stored: the name of the job, a colon and the key; long ones are cut. */
  key: string
  /** Logical queue of the job that holds it; null: it is not in a queue at the moment. */
  queue: string | null
  msgId: number | null
  since: Date
}

const defaultLimit = 100
const maxLimit = 1_000

/** Locks of unique jobs, for people who look after them. */
export class Locks {
  readonly #db: Database
  readonly #config: ResolvedConfig

  /** @internal */
  constructor(options: { db: Database; config: ResolvedConfig }) {
    this.#db = options.db
    this.#config = options.config
  }

  /** The newest first, at most `limit` (100 by default, at most 1000). */
  async list({ limit = defaultLimit }: { limit?: number | undefined } = {}): Promise<LockInfo[]> {
    if (!Number.isSafeInteger(limit) || limit < 1 || limit > maxLimit)
      throw new TypeError(`limit must be an integer from 1 to ${maxLimit}, got ${String(limit)}`)
    const { rows } = await this.#db.query<{ key: string; queue: string; msg_id: number; since: number }>(
      `SELECT lock_key AS key, queue_name AS queue, msg_id, (extract(epoch FROM created_at) * 1000)::float8 AS since
  FROM pgbus_uniqueness_keys ORDER BY created_at DESC, lock_key LIMIT $1::int`,
      [limit],
    )
    return rows.map(({ key, queue, msg_id, since }) => ({
      key,
      queue: msg_id > 0 ? logicalOf(this.#config, queue) : null,
      msgId: msg_id > 0 ? msg_id : null,
      since: new Date(since),
    }))
  }

  /**
   * Takes a lock from its job, so that another with the same key can be enqueued; the job itself stays. For a lock
   * whose job is known never to end. False: there was none.
   */
  async discard(key: string): Promise<boolean> {
    if (typeof key !== 'string' || key === '') throw new TypeError(`key must be a text, got ${String(key)}`)
    const { rowCount } = await this.#db.query('DELETE FROM pgbus_uniqueness_keys WHERE lock_key = $1', [key])
    return rowCount > 0
  }
}
