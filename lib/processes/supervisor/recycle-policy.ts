import type { ResolvedConfig } from '../../config/options.ts'

/** What a process has done so far. */
export interface Wear {
  /** Messages handled, however they ended. */
  readonly processed: number
  /** Handlers that run on although their timeout is over. */
  readonly stuck: number
}

const memorySampleMs = 5_000
const mebibyte = 1024 * 1024
/** Siblings that started together should not go together. */
const lifetimeSpread = 0.1

/** When a process has done enough, so that another should take its place. Answers once. */
export class RecyclePolicy {
  readonly #limits: ResolvedConfig['recycle']
  readonly #now: () => number
  readonly #memory: () => number
  readonly #lifetime: number
  readonly #startedAt: number
  #sampledAt = Number.NEGATIVE_INFINITY
  #asked = false

  constructor(
    limits: ResolvedConfig['recycle'],
    options: { now?: () => number; memory?: () => number; random?: () => number } = {},
  ) {
    const { now = () => performance.now(), memory = process.memoryUsage.rss, random = Math.random } = options
    this.#limits = limits
    this.#now = now
    this.#memory = memory
    this.#startedAt = now()
    this.#lifetime = (limits.maxLifetime ?? Number.POSITIVE_INFINITY) * (1 + lifetimeSpread * random())
  }

  /** Why, the first time that a limit is passed; else undefined. */
  reason(wear: Wear): string | undefined {
    if (this.#asked) return undefined
    const reason = this.#passed(wear)
    this.#asked = reason !== undefined
    return reason
  }

  #passed({ processed, stuck }: Wear): string | undefined {
    const { maxJobs } = this.#limits
    if (maxJobs !== null && processed >= maxJobs) return `max_jobs: ${processed} jobs handled`
    const used = this.#sample()
    if (used !== undefined) return `max_memory: ${Math.round(used)} MiB used`
    const age = this.#now() - this.#startedAt
    if (age > this.#lifetime) return `max_lifetime: ${Math.round(age / 1_000)} s old`
    if (stuck > 0) return `stuck_job: ${stuck} handlers ignore their timeout`
    return undefined
  }

  /** MiB, when they are too many. */
  #sample(): number | undefined {
    const { maxMemoryMb } = this.#limits
    const now = this.#now()
    if (maxMemoryMb === null || now - this.#sampledAt < memorySampleMs) return undefined
    this.#sampledAt = now
    const used = this.#memory() / mebibyte
    return used > maxMemoryMb ? used : undefined
  }
}
