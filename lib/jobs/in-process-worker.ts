import type { Duration } from '../core/duration.ts'
import { localMember } from './local-member.ts'
import type { HubMember, NotifyHub } from './notify-hub.ts'
import type { Worker, WorkerOptions, WorkerStats } from './worker.ts'

export interface InProcessWorkerOptions {
  create: (hooks: Pick<WorkerOptions, 'onTables'>) => Worker
  /** Called when it starts; undefined: notifications are switched off, it polls. */
  hub: () => NotifyHub | undefined
  onStopped: (worker: InProcessWorker) => void
}

/**
 * Runs jobs in this process, for tests, scripts and applications that need no job host. The jobs that it is to run
 * must have been defined here. It shares the pool and the LISTEN connection of its instance, which stops it when
 * it is closed.
 *
 * What a host adds is not there: nothing restarts it, and a job that blocks the event loop blocks the application.
 */
export class InProcessWorker {
  readonly #options: InProcessWorkerOptions
  readonly #worker: Worker
  readonly #member: HubMember
  #hub: NotifyHub | undefined

  /** @internal */
  constructor(options: InProcessWorkerOptions) {
    this.#options = options
    this.#worker = options.create({ onTables: () => this.#listen() })
    this.#member = localMember(this.#worker)
  }

  /**
   * Makes sure that its queues exist, then claims. A database that is away only delays that.
   * @throws SchemaNotReadyError; InvalidTransitionError when it was started or stopped before.
   */
  async start(): Promise<void> {
    const started = this.#worker.start()
    this.#hub = this.#options.hub()
    this.#listen()
    try {
      await started
    } catch (error) {
      this.#leave()
      throw error
    }
  }

  /**
   * Claims nothing until {@link resume}; running jobs go on.
   * @throws InvalidTransitionError unless it runs.
   */
  pause(): void {
    this.#worker.pause()
  }

  /** @throws InvalidTransitionError unless it is paused. */
  resume(): void {
    this.#worker.resume()
  }

  /**
   * Claims nothing more and lets running jobs finish for `timeout` (default `drainTimeout`); then their signals
   * abort, and what is left after that is given to others. Resolves when all of that is written.
   */
  async stop(options: { timeout?: Duration | undefined } = {}): Promise<void> {
    await this.#worker.stop(options)
    this.#leave()
  }

  stats(): WorkerStats {
    return this.#worker.stats()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  #listen(): void {
    const { tables, readsPatterns } = this.#worker
    void this.#hub?.listen(this.#member, tables, { wildcard: readsPatterns })
  }

  #leave(): void {
    this.#hub?.remove(this.#member)
    this.#hub = undefined
    this.#options.onStopped(this)
  }
}
