import { deferred } from '../../core/deferred.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import { listenForStop } from '../signals.ts'

/** Everything that tells the launcher to stop, as promises. */
export class StopSignals {
  /** Resolves to the reason to stop. */
  readonly first: Promise<string>
  /** Resolves when there is no more time for a graceful stop. */
  readonly second: Promise<void>
  /** Told about errors. There is none before the configuration is read. */
  log: Logger | undefined
  #received = false
  #crashed = false
  readonly #undo: (() => void)[] = []

  constructor() {
    const first = deferred<string>()
    const second = deferred()
    this.first = first.promise
    this.second = second.promise
    const stop = (reason: string) => {
      this.#received = true
      first.resolve(reason)
    }
    this.#undo.push(
      listenForStop({
        graceful: stop,
        immediate: reason => {
          stop(reason)
          second.resolve()
        },
        crashed: thrown => {
          const error = toError(thrown)
          this.#crashed = true
          if (this.log) this.log.error({ err: error }, `fatal: ${error.message}`)
          else process.stderr.write(`pgbus-web: ${error.message}\n`)
          stop(`an error: ${error.message}`)
        },
      }),
    )
  }

  get received(): boolean {
    return this.#received
  }

  /** An error that nobody caught was seen: the exit is a failure. */
  get crashed(): boolean {
    return this.#crashed
  }

  /** Stops listening. A signal that arrives later has Node's default effect. */
  release(): void {
    for (const undo of this.#undo) undo()
  }
}
