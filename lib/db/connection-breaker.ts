import { ConnectionCircuitOpenError, ReadTimeoutError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { isConnectionError } from './database.ts'

const threshold = 5
const baseMs = 1_000
const maxMs = 60_000

/**
 * Spares a database that is away the questions of everybody who asks again and again. After five failures of the
 * connection in a row it refuses for a second, then lets one call through; while that fails too, for twice as long
 * each time, up to a minute.
 *
 * Whoever asks tells of the outage; this tells for debugging only.
 *
 * For claims and other reads in the background only: who enqueues or finishes a job must see the truth.
 */
export class ConnectionBreaker {
  readonly #log: Logger
  readonly #now: () => number
  #state: 'closed' | 'open' | 'halfOpen' = 'closed'
  #failures = 0
  #window = baseMs
  #openUntil = 0
  /** Counts changes of state: an answer to what was asked before the last one says nothing about now. */
  #generation = 0

  constructor(options: { log: Logger; now?: (() => number) | undefined }) {
    this.#log = options.log
    this.#now = options.now ?? (() => performance.now())
  }

  /** @throws ConnectionCircuitOpenError without a call of `fn` while the connection is given a rest. */
  async guard<T>(fn: () => Promise<T>): Promise<T> {
    const generation = this.#admit()
    try {
      const result = await fn()
      if (generation === this.#generation) this.#succeeded()
      return result
    } catch (error) {
      if (generation === this.#generation) this.#failed(error)
      throw error
    }
  }

  #admit(): number {
    if (this.#state === 'closed') return this.#generation
    const left = this.#openUntil - this.#now()
    if (this.#state === 'halfOpen' || left > 0) {
      throw new ConnectionCircuitOpenError(
        'the database was not reachable a moment ago; it is asked again soon',
        Math.max(1, left),
      )
    }
    this.#change('halfOpen')
    return this.#generation
  }

  #succeeded(): void {
    this.#failures = 0
    if (this.#state !== 'halfOpen') return
    this.#change('closed')
    this.#window = baseMs
    this.#log.debug('the database is reachable again')
  }

  #failed(error: unknown): void {
    if (this.#state === 'halfOpen') {
      // Of whatever kind: it must not stay half-open for ever.
      this.#window = Math.min(maxMs, this.#window * 2)
      this.#open()
      return
    }
    if (!concernsConnection(error)) return
    this.#failures += 1
    if (this.#failures < threshold) return
    this.#open()
    this.#log.debug({ err: error }, 'the database is not reachable; it is asked less often until it answers')
  }

  #open(): void {
    this.#change('open')
    this.#failures = 0
    this.#openUntil = this.#now() + this.#window
  }

  #change(state: 'closed' | 'open' | 'halfOpen'): void {
    this.#state = state
    this.#generation += 1
  }
}

/** The connection failed, or so silently that the client gave up on it. */
export function concernsConnection(error: unknown): boolean {
  return isConnectionError(error) || (error instanceof ReadTimeoutError && isConnectionError(error.cause))
}
