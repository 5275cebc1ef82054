export interface RestartPolicyOptions {
  /** First delay, ms. Default 1 s. */
  base?: number | undefined
  /** Longest delay, ms. Default 60 s. */
  max?: number | undefined
  /** A process that ran this long, ms, was a good one. Default 30 s. */
  stableAfter?: number | undefined
}

/**
 * How fast the next process of one slot may come. One policy per slot: siblings with the same configuration
 * must not end each other's streaks.
 */
export class RestartPolicy {
  readonly #base: number
  readonly #max: number
  readonly #stableAfter: number
  #streak = 0

  constructor({ base = 1_000, max = 60_000, stableAfter = 30_000 }: RestartPolicyOptions = {}) {
    this.#base = base
    this.#max = max
    this.#stableAfter = stableAfter
  }

  /** Early ends in a row. */
  get streak(): number {
    return this.#streak
  }

  /** Takes note of an end; returns the delay before the next start, ms. */
  exited(uptimeMs: number, expected: boolean): number {
    if (expected || uptimeMs >= this.#stableAfter) {
      this.#streak = 0
      return 0
    }
    this.#streak += 1
    // 2^30 seconds are beyond every limit; larger powers would only lose precision.
    return Math.min(this.#max, this.#base * 2 ** Math.min(this.#streak - 1, 30))
  }
}
