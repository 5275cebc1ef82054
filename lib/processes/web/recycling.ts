import type { ResolvedConfig } from '../../config/options.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import type { WebWorkerStats } from '../messages.ts'

/** No worker is replaced again sooner than this. */
const pauseMs = 60_000
/** Workers that started together should not go together. */
const lifetimeSpread = 0.1
const mebibyte = 1024 * 1024

/** A worker as recycling sees it. */
export interface Recyclable {
  readonly pid: number
  readonly uptimeMs: number
}

/** Its place. */
export interface RecyclableSlot {
  readonly index: number
}

export interface RecyclingOptions<S extends RecyclableSlot, W extends Recyclable> {
  log: Logger
  /** Puts another worker into its place; resolves when it is gone. */
  replace: (slot: S, worker: W) => Promise<void>
  now?: (() => number) | undefined
  random?: (() => number) | undefined
}

/**
 * Replaces workers that have done enough, as their check-ins tell. Each place at most once a minute: a limit that a
 * fresh worker passes must not become a loop.
 */
export class Recycling<S extends RecyclableSlot, W extends Recyclable> {
  readonly #options: RecyclingOptions<S, W>
  readonly #now: () => number
  readonly #random: () => number
  /** When a place was last recycled, and whether that was complained about since. */
  readonly #lately = new WeakMap<S, { at: number; warned: boolean }>()
  readonly #spread = new WeakMap<W, number>()
  readonly #asked = new WeakSet<W>()

  constructor(options: RecyclingOptions<S, W>) {
    this.#options = options
    this.#now = options.now ?? (() => performance.now())
    this.#random = options.random ?? Math.random
  }

  /** A worker that serves has checked in. */
  async checkedIn(
    slot: S,
    worker: W,
    stats: WebWorkerStats,
    limits: ResolvedConfig['web']['recycle'],
  ): Promise<void> {
    if (this.#asked.has(worker)) return
    const reason = whyRecycle(stats, worker.uptimeMs, limits, this.#factor(worker))
    if (reason === undefined) return
    const { log } = this.#options
    const last = this.#lately.get(slot)
    if (last !== undefined && this.#now() - last.at < pauseMs) {
      if (!last.warned)
        log.warn({ reason }, `worker ${slot.index} recycles too often: once a minute is the most; ${reason}`)
      last.warned = true
      return
    }
    this.#asked.add(worker)
    this.#lately.set(slot, { at: this.#now(), warned: false })
    log.info({ reason }, `worker ${slot.index} (pid ${worker.pid}) has done enough: ${reason}`)
    try {
      await this.#options.replace(slot, worker)
    } catch (thrown) {
      const error = toError(thrown)
      log.warn({ err: error }, `worker ${slot.index} (pid ${worker.pid}) goes on: ${error.message}`)
      // Once more when the minute is over.
      this.#asked.delete(worker)
    }
  }

  /** 0.9 to 1.1, once per worker. */
  #factor(worker: W): number {
    const known = this.#spread.get(worker)
    if (known !== undefined) return known
    const factor = 1 + lifetimeSpread * (2 * this.#random() - 1)
    this.#spread.set(worker, factor)
    return factor
  }
}

/** The limit that a worker has passed. `factor`: its share of `maxLifetime`. */
export function whyRecycle(
  { rss, requests }: Pick<WebWorkerStats, 'rss' | 'requests'>,
  uptimeMs: number,
  { maxMemoryMb, maxLifetime, maxRequests }: ResolvedConfig['web']['recycle'],
  factor: number,
): string | undefined {
  if (maxMemoryMb !== null && rss > maxMemoryMb * mebibyte)
    return `max_memory: ${Math.round(rss / mebibyte)} MiB used`
  if (maxLifetime !== null && uptimeMs > maxLifetime * factor)
    return `max_lifetime: ${Math.round(uptimeMs / 1_000)} s old`
  if (maxRequests !== null && requests > maxRequests) return `max_requests: ${requests} requests`
  return undefined
}
