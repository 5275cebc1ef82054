import { deadline } from '../../core/deadline.ts'
import type { Logger } from '../../core/log.ts'
import type { HubMember } from '../../jobs/notify-hub.ts'
import type {
  BootMessage,
  ChildBeat,
  ChildToSupervisor,
  ListenMessage,
  SupervisorToChild,
} from '../messages.ts'
import { HeldSet } from './held.ts'
import type { Stoppable } from './shutdown.ts'
import type { Watched } from './watchdog.ts'

/** Modules of the application are imported within this time, or the child is replaced. */
const bootTimeoutMs = 60_000

/** From the exit of a process to the end of its channel; longer only when somebody else holds it open. */
const channelGraceMs = 500

/** What is needed of a `ChildProcess`. */
export interface ChildLike {
  readonly pid?: number | undefined
  readonly connected: boolean
  send(message: SupervisorToChild, callback: (error: Error | null) => void): boolean
  kill(signal: NodeJS.Signals): boolean
  on(event: 'message', listener: (message: unknown) => void): unknown
  on(event: 'exit', listener: (code: number | null, signal: NodeJS.Signals | null) => void): unknown
  on(event: 'disconnect', listener: () => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
}

export interface ChildExit {
  code: number | null
  signal: NodeJS.Signals | null
  uptimeMs: number
  /** It was told to stop. */
  expected: boolean
  /** Why it ended, in one line. */
  reason: string
}

export interface ChildHandleOptions {
  slot: string
  child: ChildLike
  boot: BootMessage
  log: Logger
  bootTimeout?: number | undefined
  onReady: () => void
  onListen: (message: ListenMessage) => void
  onRecycle: (reason: string) => void
  onExit: (exit: ChildExit) => void
}

/**
 * A child as its supervisor sees it: `booting → loaded → ready → exited`, each state possibly skipped. It has
 * exited when its process ended **and** everything that it had sent was read: only then is the set of messages
 * it held complete.
 */
export class ChildHandle implements HubMember, Stoppable, Watched {
  readonly slot: string
  readonly pid: number
  /** Messages in the hands of the child. */
  readonly held = new HeldSet()
  readonly #options: ChildHandleOptions
  readonly #child: ChildLike
  readonly #startedAt = performance.now()
  #state: 'booting' | 'loaded' | 'ready' | 'exited' = 'booting'
  #stopping = false
  #life: { at: number; beat: ChildBeat | undefined } | undefined
  #fatal: string | undefined
  #ended: { code: number | null; signal: NodeJS.Signals | null } | undefined
  #cancelBootLimit: () => void
  #cancelKill: () => void = () => undefined
  #channelTimer: NodeJS.Timeout | undefined

  constructor(options: ChildHandleOptions) {
    const { slot, child, boot, bootTimeout = bootTimeoutMs } = options
    this.#options = options
    this.slot = slot
    this.pid = child.pid ?? -1
    this.#child = child
    child.on('message', message => this.#receive(message as ChildToSupervisor))
    child.on('exit', (code, signal) => this.#processEnded(code, signal))
    child.on('disconnect', () => this.#settle())
    child.on('error', error => {
      this.#fatal ??= error.message
      // A process that could not be started has no exit.
      if (this.pid === -1) this.#processEnded(null, null)
    })
    this.#cancelBootLimit = deadline(bootTimeout, () => {
      this.#fatal ??= `its modules were not imported within ${bootTimeout / 1000} s`
      this.kill()
    })
    this.send(boot)
  }

  get state(): 'booting' | 'loaded' | 'ready' | 'exited' {
    return this.#state
  }

  get ready(): boolean {
    return this.#state === 'ready'
  }

  get running(): boolean {
    return this.#state !== 'exited'
  }

  get stopping(): boolean {
    return this.#stopping
  }

  get life(): Watched['life'] {
    // Before it is loaded, and while it ends, it has deadlines of its own.
    return this.#stopping || this.#ended !== undefined ? undefined : this.#life
  }

  get uptimeMs(): number {
    return performance.now() - this.#startedAt
  }

  send(message: SupervisorToChild, sent: () => void = () => undefined): void {
    if (!this.#child.connected) {
      sent()
      return
    }
    // A channel that breaks meanwhile is followed by the exit, which cleans up.
    this.#child.send(message, () => sent())
  }

  /** A signal, because it arrives even when the channel is clogged. */
  stop(signal: 'SIGTERM' | 'SIGQUIT'): void {
    this.#stopping = true
    this.#cancelBootLimit()
    this.#signal(signal)
  }

  kill(reason?: string): void {
    this.#fatal ??= reason
    this.#signal('SIGKILL')
  }

  /** For a child that was told to stop: the longest time that it may take. */
  killAfter(ms: number): void {
    this.#cancelKill()
    this.#cancelKill = deadline(ms, () => this.kill())
  }

  #signal(signal: NodeJS.Signals): void {
    if (this.pid !== -1 && this.#ended === undefined) this.#child.kill(signal)
  }

  #receive(message: ChildToSupervisor): void {
    if (this.#state === 'exited') return
    switch (message.t) {
      case 'loaded':
        this.#cancelBootLimit()
        this.#state = 'loaded'
        this.#life = { at: performance.now(), beat: undefined }
        return
      case 'ready':
        this.#state = 'ready'
        this.#options.onReady()
        return
      case 'listen':
        if (this.#ended === undefined) this.#options.onListen(message)
        return
      case 'beat':
        this.#life = { at: performance.now(), beat: message }
        return
      case 'held':
        this.held.apply(message)
        return
      case 'recycle':
        if (!this.#stopping) this.#options.onRecycle(message.reason)
        return
      case 'fatal':
        this.#fatal ??= message.message
        if (message.stack !== null) {
          this.#options.log.debug(
            { slot: this.slot, child_pid: this.pid, stack: message.stack },
            message.message,
          )
        }
        return
      default:
        message satisfies never
    }
  }

  #processEnded(code: number | null, signal: NodeJS.Signals | null): void {
    if (this.#ended !== undefined) return
    this.#ended = { code, signal }
    this.#cancelBootLimit()
    this.#cancelKill()
    if (this.pid === -1 || !this.#child.connected) this.#settle()
    else {
      this.#channelTimer = setTimeout(() => this.#finish(), channelGraceMs)
    }
  }

  #settle(): void {
    if (this.#ended !== undefined) this.#finish()
  }

  #finish(): void {
    if (this.#state === 'exited' || this.#ended === undefined) return
    clearTimeout(this.#channelTimer)
    this.#state = 'exited'
    const { code, signal } = this.#ended
    this.#options.onExit({
      code,
      signal,
      uptimeMs: this.uptimeMs,
      expected: this.#stopping,
      reason: this.#fatal ?? (signal === null ? `exited with code ${code}` : `was killed by ${signal}`),
    })
  }
}
