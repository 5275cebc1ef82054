import type { RestartKind } from './restarts.ts'

const kinds = { SIGUSR1: 'rolling', SIGUSR2: 'reload' } as const

/**
 * The signals that ask for a restart, caught from the first moment on: without a listener the first one opens Node's
 * inspector, and the second ends the process. What arrives before there is somebody to act on it is kept.
 */
export class RestartSignals {
  #early: { signal: NodeJS.Signals; kind: RestartKind }[] = []
  #listener: ((signal: NodeJS.Signals, kind: RestartKind) => void) | undefined
  readonly #undo: (() => void)[] = []

  constructor() {
    for (const [signal, kind] of Object.entries(kinds) as [keyof typeof kinds, RestartKind][]) {
      const received = () => {
        if (this.#listener) this.#listener(signal, kind)
        else this.#early.push({ signal, kind })
      }
      process.on(signal, received)
      this.#undo.push(() => process.removeListener(signal, received))
    }
  }

  listen(listener: (signal: NodeJS.Signals, kind: RestartKind) => void): void {
    this.#listener = listener
    for (const { signal, kind } of this.#early.splice(0)) listener(signal, kind)
  }

  /** Stops listening. A signal that arrives later has Node's default effect. */
  release(): void {
    for (const undo of this.#undo) undo()
  }
}
