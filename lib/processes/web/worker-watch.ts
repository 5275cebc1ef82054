import type { Logger } from '../../core/log.ts'
import { AwakeClock } from '../awake-clock.ts'
import type { WorkerHandle } from './worker-handle.ts'

const lookMs = 1_000
/** A look that comes later than this says something about this process. */
const maxStepMs = 3_000

/**
 * Looks after workers that are alive and say nothing: those that do not become ready, and those whose event loop
 * stands still. It goes by a clock that stands still when this process does.
 */
export class WorkerWatch {
  readonly clock: AwakeClock
  readonly #workers: () => Iterable<Pick<WorkerHandle, 'killIfSilent'>>
  readonly #log: Logger
  #timer: NodeJS.Timeout | undefined

  constructor(options: {
    workers: () => Iterable<Pick<WorkerHandle, 'killIfSilent'>>
    log: Logger
    now?: (() => number) | undefined
  }) {
    this.#workers = options.workers
    this.#log = options.log
    this.clock = new AwakeClock({ maxStep: maxStepMs, ...(options.now && { now: options.now }) })
  }

  start(): void {
    this.clock.tick()
    this.#timer = setInterval(() => this.look(), lookMs)
    this.#timer.unref()
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  look(): void {
    const gap = this.clock.tick()
    if (gap > 0)
      this.#log.warn(`this process stood still for ${(gap / 1000).toFixed(1)} s; workers get their time anew`)
    // Messages that arrived meanwhile are handled before immediates: a process that was too busy to read a sign of
    // life must not take it for missing.
    setImmediate(() => {
      for (const worker of this.#workers()) worker.killIfSilent()
    })
  }
}
