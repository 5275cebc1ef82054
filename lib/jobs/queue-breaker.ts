import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import type { Database } from '../db/database.ts'
import { endPause, pauseForAWhile } from '../pgmq/queue-states.ts'
import type { Delivery } from './claim.ts'

interface Streak {
  count: number
  /** The message that failed last; its further failures say nothing new. */
  last: string
}

/**
 * Pauses a queue whose jobs fail one after the other. The pause is a row that every worker's claim reads; it ends
 * by itself, grows each time, and then the queue gives one message per claim until one of them succeeds.
 *
 * Only failures of *different* messages in a row count, so one poisonous job does not stop its queue.
 */
export class QueueBreaker {
  readonly #db: Database
  readonly #config: ResolvedConfig['circuitBreaker']
  readonly #log: Logger
  readonly #report: Report
  readonly #streaks = new Map<string, Streak>()

  constructor(options: {
    db: Database
    config: ResolvedConfig['circuitBreaker']
    log: Logger
    report: Report
  }) {
    this.#db = options.db
    this.#config = options.config
    this.#log = options.log
    this.#report = options.report
  }

  /** A job of `queue` (logical) succeeded. Whether that ended a pause. Never rejects. */
  async succeeded(queue: string, { probe }: Pick<Delivery, 'probe'>): Promise<boolean> {
    this.#streaks.delete(queue)
    // Only a probe: a job from before the pause says nothing about now.
    if (!probe) return false
    try {
      const { rowCount } = await this.#db.query(endPause(queue))
      if (rowCount > 0) this.#log.info({ queue }, 'a job of the paused queue succeeded, it goes on')
      return rowCount > 0
    } catch (error) {
      this.#report(error, { action: 'circuit_breaker_reset', queue })
      return false
    }
  }

  /** A job of `queue` (logical) failed. Never rejects. */
  async failed(queue: string, delivery: Pick<Delivery, 'probe' | 'physical' | 'msgId'>): Promise<void> {
    const { enabled, threshold } = this.#config
    if (!enabled) return
    const message = `${delivery.physical}:${delivery.msgId}`
    const streak = this.#streaks.get(queue) ?? { count: 0, last: '' }
    if (streak.last !== message) {
      streak.count += 1
      streak.last = message
    }
    this.#streaks.set(queue, streak)
    if (streak.count < threshold && !delivery.probe) return
    this.#streaks.delete(queue)
    const reason = delivery.probe
      ? 'circuit_breaker: the job tried after the pause failed'
      : `circuit_breaker: ${threshold} consecutive failures`
    await this.#trip(queue, reason)
  }

  async #trip(queue: string, reason: string): Promise<void> {
    const { baseBackoff, maxBackoff } = this.#config
    try {
      const { rows } = await this.#db.query<{ trips: number; ms: number }>(
        pauseForAWhile(queue, reason, { baseMs: baseBackoff, maxMs: maxBackoff }),
      )
      const [tripped] = rows
      // Nothing: paused already, by hand or by another worker.
      if (tripped) this.#log.warn({ queue, ...tripped, reason }, 'queue paused, its jobs fail')
    } catch (error) {
      this.#report(error, { action: 'circuit_breaker_trip', queue })
    }
  }
}
