import { RestartError } from '../../core/errors.ts'
import type { Release } from './release.ts'
import type { Slot } from './slot.ts'

/** How many workers more than usual may run: `all` has every new one ready before the first old one goes. */
export type Surge = number | 'all'

type Replaceable = Pick<Slot, 'index' | 'prepare' | 'prepared' | 'handOver' | 'vacate' | 'discard'>

export interface RollingRestartOptions {
  slots: readonly Replaceable[]
  release: Release
  /** 0: the old worker of a slot goes before its replacement is started. */
  surge: Surge
}

const reason = 'restart'

/**
 * Replaces the worker of every slot by one of a new release, lowest index first. A worker is drained only when its
 * replacement is ready, so as many serve as before at any time; the first replacement that does not become ready
 * ends the restart, and the old workers that are left go on. Run once.
 */
export class RollingRestart {
  readonly release: Release
  readonly #slots: readonly Replaceable[]
  readonly #surge: Surge
  #replaced = 0
  #failure: { error: unknown } | undefined

  constructor({ slots, release, surge }: RollingRestartOptions) {
    this.#slots = slots
    this.release = release
    this.#surge = surge
  }

  /** Slots whose worker is of the new release. */
  get replaced(): number {
    return this.#replaced
  }

  /**
   * Resolves when all workers are of the new release and the old ones are gone.
   * @throws RestartError with the reason for which it was given up.
   */
  async run(): Promise<void> {
    if (this.#surge === 'all') await this.#allAtOnce()
    else await this.#inTurn(Math.max(1, this.#surge), this.#surge === 0)
    if (this.#failure) throw this.#failure.error
  }

  /** `lanes` slots at a time, each: start, wait until it is ready, drain the old one. */
  async #inTurn(lanes: number, stopFirst: boolean): Promise<void> {
    const waiting = [...this.#slots]
    const lane = async () => {
      for (let slot = waiting.shift(); slot !== undefined && !this.#failure; slot = waiting.shift()) {
        try {
          if (stopFirst) await slot.vacate(reason)
          await slot.prepare(this.release)
          await this.#handOver(slot)
        } catch (error) {
          this.#giveUp(error)
        }
      }
    }
    await Promise.all(Array.from({ length: lanes }, lane))
  }

  async #allAtOnce(): Promise<void> {
    try {
      await Promise.all(this.#slots.map(slot => slot.prepare(this.release)))
    } catch (error) {
      this.#giveUp(error)
      return
    }
    const lost = this.#slots.find(({ prepared }) => !prepared)
    if (lost !== undefined) {
      this.#giveUp(new RestartError(`worker ${lost.index}: its replacement ended while others still booted`))
      return
    }
    const results = await Promise.allSettled(this.#slots.map(slot => this.#handOver(slot)))
    for (const result of results) if (result.status === 'rejected') this.#giveUp(result.reason)
  }

  async #handOver(slot: Replaceable): Promise<void> {
    if (slot.prepared) this.#replaced += 1
    await slot.handOver(reason)
  }

  /** The first failure counts; what else boots is of a release that is known to be bad. */
  #giveUp(error: unknown): void {
    if (this.#failure) return
    this.#failure = { error }
    for (const slot of this.#slots) slot.discard('the restart was given up')
  }
}
