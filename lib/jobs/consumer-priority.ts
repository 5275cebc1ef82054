import { isWildcard } from '../config/queue-names.ts'
import type { Logger } from '../core/log.ts'
import type { Database } from '../db/database.ts'

export interface ConsumerPriorityOptions {
  db: Database
  log: Logger
  /** Of this worker; lower ones yield. */
  priority: number
  /** Queues of this worker, patterns as they are. */
  queues: readonly string[]
  /** Interval while a preferred worker is known, ms. */
  interval?: number | undefined
}

const knownPeerMs = 5_000

/**
 * Whether a worker of a higher number reads one of the same queues. Looked up with each heartbeat, and more often
 * only while there is such a worker, so that whoever does not use it pays next to nothing. When in doubt: no.
 */
export class ConsumerPriority {
  readonly #options: ConsumerPriorityOptions
  #yielding = false
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: ConsumerPriorityOptions) {
    this.#options = options
  }

  get yielding(): boolean {
    return this.#yielding
  }

  /** `id`: of the own row in `pgbus_processes`. Never rejects. */
  async check(id: number): Promise<void> {
    const { log, interval = knownPeerMs } = this.#options
    const yielding = await this.#hasPreferredPeer(id).catch(error => {
      log.debug({ err: error }, 'preferred workers could not be looked up')
      return false
    })
    if (this.#closed) return
    if (yielding !== this.#yielding) {
      log.info(
        yielding ? 'a preferred worker is alive; this one looks later' : 'no preferred worker is alive',
      )
    }
    this.#yielding = yielding
    clearTimeout(this.#timer)
    if (!yielding) return
    this.#timer = setTimeout(() => void this.check(id), interval)
    this.#timer.unref()
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
  }

  async #hasPreferredPeer(id: number): Promise<boolean> {
    const { db, priority, queues } = this.#options
    // By id, not by pid: containers share pids. The cast is safe: it happens where the type was seen.
    const { rows } = await db.query<{ queues: unknown }>(
      `SELECT metadata->'queues' AS queues FROM pgbus_processes
 WHERE kind = 'worker' AND id <> $1 AND last_heartbeat_at > (clock_timestamp() AT TIME ZONE 'UTC') - interval '300 seconds'
   AND CASE WHEN jsonb_typeof(metadata->'consumer_priority') = 'number'
            THEN (metadata->>'consumer_priority')::numeric ELSE 0 END > $2`,
      [id, priority],
    )
    return rows.some(row => Array.isArray(row.queues) && overlap(queues, row.queues))
  }
}

function overlap(mine: readonly string[], theirs: readonly unknown[]): boolean {
  return theirs.some(other => typeof other === 'string' && mine.some(queue => meet(queue, other)))
}

/** Whether two names or patterns can stand for one queue. */
function meet(a: string, b: string): boolean {
  if (!isWildcard(a)) return isWildcard(b) ? a.startsWith(b.slice(0, -1)) : a === b
  const beginning = a.slice(0, -1)
  if (!isWildcard(b)) return b.startsWith(beginning)
  return beginning.startsWith(b.slice(0, -1)) || b.startsWith(beginning)
}
