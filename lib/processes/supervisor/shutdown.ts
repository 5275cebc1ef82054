import { deadline } from '../../core/deadline.ts'

/** From QUIT to SIGKILL. */
export const immediateKillMs = 2_000

/** What is told to stop. */
export interface Stoppable {
  readonly running: boolean
  stop(signal: 'SIGTERM' | 'SIGQUIT'): void
  kill(): void
}

export interface ShutdownOptions {
  /** From the first request to SIGKILL, ms. */
  shutdownTimeout: number
  /** Those that are there at the moment of asking. */
  children: () => Iterable<Stoppable>
  /** Calls `fn` after `ms`; returns the function that cancels. */
  after?: ((ms: number, fn: () => void) => () => void) | undefined
}

/**
 * The end of all children. Its deadlines start with the request, and nothing that a child or the database does
 * moves them: TERM, and SIGKILL after `shutdownTimeout`; or QUIT, and SIGKILL after 2 s.
 */
export class Shutdown {
  readonly #options: ShutdownOptions
  readonly #after: (ms: number, fn: () => void) => () => void
  #state: 'none' | 'graceful' | 'immediate' = 'none'
  #killed = 0
  #cancel: () => void = () => undefined

  constructor(options: ShutdownOptions) {
    this.#options = options
    this.#after = options.after ?? deadline
  }

  get state(): 'none' | 'graceful' | 'immediate' {
    return this.#state
  }

  /** How many had to be killed. */
  get killed(): number {
    return this.#killed
  }

  /** 0 when everything ended by itself within its time. */
  get exitCode(): 0 | 1 {
    return this.#killed > 0 || this.#state === 'immediate' ? 1 : 0
  }

  graceful(): void {
    if (this.#state !== 'none') return
    this.#state = 'graceful'
    for (const child of this.#options.children()) child.stop('SIGTERM')
    this.#killAfter(this.#options.shutdownTimeout)
  }

  immediate(): void {
    if (this.#state === 'immediate') return
    this.#state = 'immediate'
    this.#cancel()
    for (const child of this.#options.children()) child.stop('SIGQUIT')
    this.#killAfter(immediateKillMs)
  }

  /** All are gone: nobody is left to kill. */
  finished(): void {
    this.#cancel()
  }

  #killAfter(ms: number): void {
    this.#cancel = this.#after(ms, () => {
      for (const child of this.#options.children()) {
        if (!child.running) continue
        this.#killed += 1
        child.kill()
      }
    })
  }
}
