import { deadline } from '../../core/deadline.ts'
import { type Deferred, deferred } from '../../core/deferred.ts'
import type { Logger } from '../../core/log.ts'
import type { PrimaryToWebWorker, WebWorkerStats, WebWorkerToPrimary } from '../messages.ts'

/** What is needed of a `cluster.Worker`. */
export interface WorkerProcess {
  readonly process: { readonly pid?: number | undefined; kill(signal: NodeJS.Signals): boolean }
  isConnected(): boolean
  send(message: PrimaryToWebWorker, callback: (error: Error | null) => void): boolean
  on(event: 'message', listener: (message: unknown) => void): unknown
  on(event: 'exit', listener: (code: number | null, signal: string | null) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
}

export type WorkerState = 'booting' | 'ready' | 'draining' | 'exited'

export interface WorkerExit {
  code: number | null
  signal: string | null
  uptimeMs: number
  /** It had been ready. */
  booted: boolean
  /** It was told to stop, or had said that it drains. */
  expected: boolean
  /** Why it ended, as far as known, in one line. */
  reason: string
}

export interface WorkerHandleOptions {
  index: number
  /** Generation of the release that it runs. */
  phase: number
  worker: WorkerProcess
  bootTimeout: number
  /** How long a ready worker may say nothing. */
  workerTimeout: number
  /** How long a drain that the worker began by itself may take. */
  drainTimeout: number
  /** Ms of a clock that stands still when this process does. */
  now: () => number
  log: Logger
  onReady: (handle: WorkerHandle) => void
  onCheckIn: (handle: WorkerHandle, stats: WebWorkerStats) => void
  onExit: (handle: WorkerHandle, exit: WorkerExit) => void
}

/**
 * A worker as the primary sees it: `booting → ready → draining → exited`, each state possibly skipped. None but
 * the last may go on for ever: the first two end in {@link WorkerHandle.killIfSilent}, which somebody calls now and
 * then, draining ends at a deadline of its own.
 */
export class WorkerHandle {
  readonly index: number
  readonly phase: number
  readonly pid: number
  readonly #gone: Deferred = deferred()
  readonly #worker: WorkerProcess
  readonly #options: WorkerHandleOptions
  readonly #startedAt = performance.now()
  #state: WorkerState = 'booting'
  #booted = false
  #addresses: readonly string[] = []
  #fatal: string | undefined
  #order: PrimaryToWebWorker | undefined
  #cancelKill: () => void = () => undefined
  #bornAt: number
  #checkIn: { at: number; stats: WebWorkerStats | undefined } | undefined

  constructor(options: WorkerHandleOptions) {
    this.#options = options
    this.index = options.index
    this.phase = options.phase
    this.#worker = options.worker
    this.pid = options.worker.process.pid ?? -1
    this.#bornAt = options.now()
    this.#worker.on('message', message => this.#receive(message))
    // A failed fork or send; an exit follows where it matters.
    this.#worker.on('error', error => {
      this.#fatal ??= error.message
      this.#options.log.warn({ err: error }, `worker ${this.index}: ${error.message}`)
      if (this.pid === -1) this.#exited(null, null)
    })
    this.#worker.on('exit', (code, signal) => this.#exited(code, signal))
  }

  get state(): WorkerState {
    return this.#state
  }

  get addresses(): readonly string[] {
    return this.#addresses
  }

  /** Resolves when the process has ended. */
  get gone(): Promise<void> {
    return this.#gone.promise
  }

  /**
   * Asks the worker to drain and leave; SIGKILL when it has not within `deadlineMs`. The first order counts.
   * `handover`: another worker serves already, so idle connections need not be cut.
   */
  stop(reason: string, deadlineMs: number, { handover = false }: { handover?: boolean } = {}): void {
    if (this.#state === 'exited' || this.#order !== undefined) return
    this.#drainFor(deadlineMs)
    this.#order = { pgbus: 'web', t: 'stop', reason, deadlineMs, handover }
    this.#sendOrder()
  }

  #sendOrder(): void {
    if (this.#order === undefined || !this.#worker.isConnected()) return
    this.#worker.send(this.#order, error => {
      // The channel closes before the exit is seen: then there is nobody left to ask.
      if (error) this.#options.log.debug({ err: error }, `worker ${this.index} could not be told to stop`)
    })
  }

  get uptimeMs(): number {
    return performance.now() - this.#startedAt
  }

  /** What it said last about itself. */
  get stats(): WebWorkerStats | undefined {
    return this.#checkIn?.stats
  }

  /** Ms since its last sign of life; undefined before the first. */
  get silentMs(): number | undefined {
    return this.#checkIn && this.#options.now() - this.#checkIn.at
  }

  /** SIGKILL when it has not become ready in time, or has said nothing for too long: its event loop stands still. */
  killIfSilent(): void {
    const { bootTimeout, workerTimeout, log, now } = this.#options
    if (this.#state === 'booting' && now() - this.#bornAt > bootTimeout) {
      this.#fatal = `not ready within ${bootTimeout / 1000}s (web.bootTimeout)`
      log.error(`worker ${this.index} (pid ${this.pid}) failed to boot within ${bootTimeout / 1000}s`)
      this.kill()
    }
    if (this.#state === 'ready' && (this.silentMs ?? 0) > workerTimeout) {
      this.#fatal = `no check-in within ${workerTimeout / 1000}s (web.workerTimeout)`
      log.error(`worker ${this.index} (pid ${this.pid}) failed to check in within ${workerTimeout / 1000}s`)
      this.kill()
    }
  }

  kill(): void {
    if (this.#state !== 'exited') this.#worker.process.kill('SIGKILL')
  }

  #receive(message: unknown): void {
    if (!isOurs(message) || this.#state === 'exited') return
    switch (message.t) {
      case 'booting':
        // What was sent while the process was starting had no listener yet.
        this.#sendOrder()
        return
      case 'ready':
        if (this.#state !== 'booting') return
        this.#state = 'ready'
        this.#checkIn = { at: this.#options.now(), stats: undefined }
        this.#booted = true
        this.#addresses = message.addresses
        this.#options.onReady(this)
        return
      case 'checkin':
        this.#checkIn = { at: this.#options.now(), stats: message.stats }
        this.#options.onCheckIn(this, message.stats)
        return
      case 'draining':
        if (this.#state !== 'draining') this.#drainFor(this.#options.drainTimeout)
        return
      case 'fatal':
        this.#fatal ??= message.message
        return
    }
    message satisfies never
  }

  #drainFor(ms: number): void {
    this.#state = 'draining'
    this.#cancelKill()
    this.#cancelKill = deadline(ms, () => {
      this.#options.log.warn(`worker ${this.index} (pid ${this.pid}) did not stop in time; killing it`)
      this.kill()
    })
  }

  #exited(code: number | null, signal: string | null): void {
    if (this.#state === 'exited') return
    const expected = this.#state === 'draining' && this.#fatal === undefined
    this.#state = 'exited'
    this.#cancelKill()
    this.#options.onExit(this, {
      code,
      signal,
      uptimeMs: this.uptimeMs,
      booted: this.#booted,
      expected,
      reason: this.#fatal ?? this.#describe(code, signal),
    })
    this.#gone.resolve()
  }

  #describe(code: number | null, signal: string | null): string {
    const how = signal === null ? `exited with code ${code}` : `was killed by ${signal}`
    if (this.#booted || this.#state === 'draining') return how
    return code === 0
      ? `${how} before it was ready: the application must not end the process`
      : `${how} before it was ready`
  }
}

function isOurs(message: unknown): message is WebWorkerToPrimary {
  return typeof message === 'object' && message !== null && (message as { pgbus?: unknown }).pgbus === 'web'
}
