/** Growing delays: doubles from `base` to `max`; `reset` after a success. */
export class Backoff {
  readonly #base: number
  readonly #max: number
  readonly #random: () => number
  #attempt = 0

  /** `random` gives full jitter (a delay between half and all of the step); omit it for exact steps. */
  constructor(options: { base: number; max: number; random?: (() => number) | undefined }) {
    this.#base = options.base
    this.#max = options.max
    this.#random = options.random ?? (() => 1)
  }

  /** How many delays were taken since the last reset. */
  get attempt(): number {
    return this.#attempt
  }

  /** The next delay in milliseconds. */
  next(): number {
    const step = Math.min(this.#max, this.#base * 2 ** Math.min(this.#attempt, 30))
    this.#attempt += 1
    return Math.round(step * (0.5 + 0.5 * this.#random()))
  }

  reset(): void {
    this.#attempt = 0
  }
}
