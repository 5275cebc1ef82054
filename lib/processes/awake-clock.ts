/**
 * Monotonic milliseconds in which this process was awake. A host that sleeps, a container that is frozen, or a loop
 * that was blocked here makes others look silent for as long: such a gap counts as one step, so what is measured by
 * this clock gets its time anew. Whoever owns it calls {@link tick} at an interval well below `maxStep`.
 */
export class AwakeClock {
  readonly #maxStep: number
  readonly #now: () => number
  #awake = 0
  #tickedAt: number

  constructor({ maxStep, now = () => performance.now() }: { maxStep: number; now?: () => number }) {
    this.#maxStep = maxStep
    this.#now = now
    this.#tickedAt = now()
  }

  now(): number {
    return this.#awake + Math.min(this.#now() - this.#tickedAt, this.#maxStep)
  }

  /** Takes note that this process is awake; returns how long it was not, in ms. */
  tick(): number {
    const elapsed = this.#now() - this.#tickedAt
    this.#awake = this.now()
    this.#tickedAt += elapsed
    return Math.max(0, elapsed - this.#maxStep)
  }
}
