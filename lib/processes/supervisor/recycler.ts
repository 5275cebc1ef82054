import type { Logger } from '../../core/log.ts'
import type { Slot } from './slot.ts'

/** Replaces children one after the other, so that at most one process more than planned runs. */
export class Recycler {
  readonly #overlap: boolean
  readonly #log: Logger
  readonly #waiting = new Set<Slot>()
  #last: Promise<void> = Promise.resolve()

  constructor(options: { overlap: boolean; log: Logger }) {
    this.#overlap = options.overlap
    this.#log = options.log
  }

  /** Resolves when the old child of the slot was told to leave. */
  recycle(slot: Slot, reason: string): Promise<void> {
    if (this.#waiting.has(slot)) return this.#last
    this.#waiting.add(slot)
    this.#last = this.#last.then(async () => {
      this.#log.info({ slot: slot.name, child_pid: slot.current?.pid, reason }, `replacing ${slot.name}`)
      await slot.recycle(this.#overlap)
      this.#waiting.delete(slot)
    })
    return this.#last
  }
}
