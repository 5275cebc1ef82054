/** Without news from the supervisor for this long, notifications are taken for lost. */
export const silenceMs = 15_000

/**
 * Whether notifications arrive, as far as a child knows. It starts as "no", and falls back to it when the
 * supervisor has been silent for too long: polling for nothing is better than waiting for nothing.
 */
export class DeliveryStatus {
  readonly #changed: (delivering: boolean) => void
  readonly #after: (ms: number, fn: () => void) => () => void
  #delivering = false
  #cancel: () => void = () => undefined

  constructor(
    changed: (delivering: boolean) => void,
    after: (ms: number, fn: () => void) => () => void = unrefTimer,
  ) {
    this.#changed = changed
    this.#after = after
  }

  get delivering(): boolean {
    return this.#delivering
  }

  /** The supervisor said so. */
  heard(delivering: boolean): void {
    this.#cancel()
    this.#cancel = this.#after(silenceMs, () => this.#set(false))
    this.#set(delivering)
  }

  /** The supervisor is gone. */
  lost(): void {
    this.#cancel()
    this.#set(false)
  }

  #set(delivering: boolean): void {
    if (this.#delivering === delivering) return
    this.#delivering = delivering
    this.#changed(delivering)
  }
}

function unrefTimer(ms: number, fn: () => void): () => void {
  const timer = setTimeout(fn, ms)
  timer.unref()
  return () => clearTimeout(timer)
}
