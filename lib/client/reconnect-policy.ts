/** When to come back after a connection ended. Pure decisions; the timers belong to `PgbusStream`. */

/** Delay before the first retry until the server names one, in milliseconds. */
const defaultRetry = 2_000
/** A server that asks for less than this would be polled, not followed. */
const minRetry = 100
const maxRetry = 30_000
/** A connection that held this long proves that the server is well again. */
const stableAfter = 10_000
/** `setTimeout` fires at once above this. */
export const maxTimeout = 2 ** 31 - 1

export class ReconnectPolicy {
  readonly #random: () => number
  #retry = defaultRetry
  #attempt = 0

  constructor(random: () => number = Math.random) {
    this.#random = random
  }

  /** Takes over the `retry` value of the server. */
  setRetry(delay: number): void {
    this.#retry = Math.min(maxRetry, Math.max(minRetry, delay))
  }

  /** A connection ended that was open for `duration` milliseconds. */
  connectedFor(duration: number): void {
    if (duration >= stableAfter) this.#attempt = 0
  }

  /**
   * Delay after a failure: half to all of a step that doubles up to 30 s. `retryAfter` is a lower bound;
   * it is stretched by up to half, because everybody who was turned away heard the same number.
   */
  next(retryAfter: number | null = null): number {
    const step = Math.min(maxRetry, this.#retry * 2 ** Math.min(this.#attempt, 16))
    this.#attempt += 1
    const delay = step * (0.5 + 0.5 * this.#random())
    const atLeast = retryAfter === null ? 0 : retryAfter * (1 + 0.5 * this.#random())
    return Math.min(maxTimeout, Math.round(Math.max(delay, atLeast)))
  }

  /** Delay after the server said that it is going: anywhere within `retry`, so that its clients spread. */
  afterShutdown(): number {
    this.#attempt = 0
    return Math.round(this.#retry * this.#random())
  }
}

/** Whether a response with this status is worth another request; any other but 200 is final. */
export function isTransient(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || (status >= 500 && status <= 599)
}

/** Milliseconds that a `Retry-After` header asks for, in either of its forms; null when it asks for nothing. */
export function parseRetryAfter(value: string | null, now: number): number | null {
  if (value === null) return null
  if (/^[0-9]+$/.test(value.trim())) return Math.min(maxTimeout, Number(value) * 1_000)
  const date = Date.parse(value)
  return Number.isNaN(date) ? null : Math.max(0, date - now)
}
