import { type Deferred, deferred } from '../../core/deferred.ts'
import { RestartError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'

/** `rolling`: the same configuration again. `reload`: the configuration is read anew first. */
export type RestartKind = 'rolling' | 'reload'

/** How a restart ended, or that it goes on. */
export interface RestartReport {
  readonly kind: RestartKind
  readonly startedAt: Date
  readonly finishedAt: Date | null
  readonly ok: boolean | null
  readonly error: string | null
}

export interface RestartsOptions {
  /** Replaces all workers. */
  run: (kind: RestartKind) => Promise<void>
  log: Logger
}

/**
 * Restarts, one at a time. What is asked for before the host has booted waits until then; what is asked for
 * while one runs becomes one more run afterwards, however often it is asked for.
 */
export class Restarts {
  readonly #options: RestartsOptions
  #state: 'booting' | 'idle' | 'running' | 'closed' = 'booting'
  #waiting: { kind: RestartKind; done: Deferred } | undefined
  #last: RestartReport | undefined

  constructor(options: RestartsOptions) {
    this.#options = options
  }

  get running(): boolean {
    return this.#state === 'running'
  }

  get last(): RestartReport | undefined {
    return this.#last
  }

  /** Resolves when all workers were replaced. @throws RestartError, ConfigurationError or BootError when they were not. */
  request(kind: RestartKind): Promise<void> {
    if (this.#state === 'closed') return Promise.reject(new RestartError('pgbus-web is stopping'))
    if (this.#state !== 'idle')
      this.#options.log.info(
        this.running ? 'one more restart follows this one' : 'the restart follows the boot',
      )
    this.#waiting ??= { kind, done: deferred() }
    if (kind === 'reload') this.#waiting.kind = kind
    const { done } = this.#waiting
    // Everything is logged; a signal has nobody to tell.
    done.promise.catch(() => undefined)
    if (this.#state === 'idle') void this.#runWaiting()
    return done.promise
  }

  /** The host has booted. */
  open(): void {
    if (this.#state !== 'booting') return
    this.#state = 'idle'
    void this.#runWaiting()
  }

  /** Nothing begins any more. */
  close(): void {
    this.#state = 'closed'
    this.#waiting?.done.reject(new RestartError('pgbus-web is stopping'))
    this.#waiting = undefined
  }

  async #runWaiting(): Promise<void> {
    while (this.#state === 'idle' && this.#waiting !== undefined) {
      const { kind, done } = this.#waiting
      this.#waiting = undefined
      this.#state = 'running'
      try {
        await this.#run(kind)
        done.resolve()
      } catch (error) {
        done.reject(error)
      }
      // Closing may have come in between.
      if (this.running) this.#state = 'idle'
    }
  }

  async #run(kind: RestartKind): Promise<void> {
    const startedAt = new Date()
    const began = performance.now()
    const report = (ok: boolean | null, error: string | null = null) => {
      this.#last = { kind, startedAt, finishedAt: ok === null ? null : new Date(), ok, error }
    }
    report(null)
    try {
      await this.#options.run(kind)
      report(true)
      const seconds = ((performance.now() - began) / 1000).toFixed(1)
      this.#options.log.info(`restart finished in ${seconds} s`)
    } catch (thrown) {
      const error = toError(thrown)
      report(false, error.message)
      // A stop ends a restart too, and says so itself.
      if (this.running) this.#options.log.error({ err: error }, `restart given up: ${error.message}`)
      throw error
    }
  }
}
