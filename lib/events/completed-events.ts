const maxEntries = 10_000
const maxAgeMs = 300_000

/**
 * What one handler has completed lately in this process, so that a repeated delivery costs no statement. Only
 * completed events enter: one that failed, or whose end could not be written, has to run again.
 */
export class CompletedEvents {
  readonly #now: () => number
  /** Time of completion by event, oldest first. */
  readonly #events = new Map<string, number>()

  /** @param now - monotonic ms */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  get size(): number {
    return this.#events.size
  }

  has(event: string): boolean {
    const at = this.#events.get(event)
    if (at === undefined) return false
    if (this.#now() - at < maxAgeMs) return true
    this.#events.delete(event)
    return false
  }

  add(event: string): void {
    // Deleted first: an entry that is set again would stay where it was, and be taken for the oldest.
    this.#events.delete(event)
    this.#events.set(event, this.#now())
    if (this.#events.size <= maxEntries) return
    const [oldest] = this.#events.keys()
    this.#events.delete(oldest!)
  }
}
