import { deferred } from '../../core/deferred.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'

const stopping = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** Without a listener the first opens Node's inspector, and the second ends the process. */
const unsupported = ['SIGUSR1', 'SIGUSR2'] as const

/** Everything that tells the launcher to stop: signals, a parent that leaves, an error that nobody caught. */
export class StopSignals {
  /** Why to stop; resolves once. */
  readonly first: Promise<string>
  /** Resolves at the second signal. */
  readonly second: Promise<void>
  /** Told about signals that do nothing. Known only once the configuration is. */
  log: Logger | undefined
  #received = 0
  #crashed = false
  readonly #undo: (() => void)[] = []

  constructor() {
    const first = deferred<string>()
    const second = deferred()
    this.first = first.promise
    this.second = second.promise
    const stop = (reason: string) => {
      this.#received += 1
      if (this.#received === 1) first.resolve(reason)
      else second.resolve()
    }
    for (const signal of stopping) this.#on(signal, () => stop(signal))
    for (const signal of unsupported)
      this.#on(signal, () => this.log?.warn(`${signal} is not supported; restart the process instead`))
    if (process.connected) {
      // The parent's end is no second signal: one that stops us may leave while we drain.
      this.#on('disconnect', () => {
        if (this.#received === 0) stop('the parent process is gone')
      })
    }
    this.#on('uncaughtException', thrown => {
      const error = toError(thrown)
      this.#crashed = true
      this.log?.error({ err: error }, `fatal: ${error.message}`)
      if (this.#received === 0) stop(`an error: ${error.message}`)
    })
  }

  get received(): boolean {
    return this.#received > 0
  }

  /** An error that nobody caught was seen: the exit is a failure. */
  get crashed(): boolean {
    return this.#crashed
  }

  /** Stops listening. A signal that arrives later has Node's default effect. */
  release(): void {
    for (const undo of this.#undo) undo()
  }

  #on(event: string, listener: (value: unknown) => void): void {
    process.on(event, listener)
    this.#undo.push(() => process.removeListener(event, listener))
  }
}
