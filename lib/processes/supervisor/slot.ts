import { deadline } from '../../core/deadline.ts'
import { type Deferred, deferred } from '../../core/deferred.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import type { BootMessage, ChildSpec, ListenMessage } from '../messages.ts'
import { RestartPolicy, type RestartPolicyOptions } from '../restart-policy.ts'
import { type ChildExit, ChildHandle, type ChildLike } from './child-handle.ts'
import type { SlotPlan } from './roles.ts'

/** A replacement that is not ready after this long is not waited for. */
const replacementTimeoutMs = 300_000

export interface SlotEvents {
  onReady(handle: ChildHandle): void
  onListen(handle: ChildHandle, message: ListenMessage): void
  /** The child asks to be replaced. */
  onRecycle(slot: Slot, reason: string): void
  /** A process is gone, and all that it sent was read. The slot has taken note of it already. */
  onGone(slot: Slot, handle: ChildHandle, exit: ChildExit): void
  /** The slot is empty, not by plan: the next process comes after `delay` ms. `pid` -1: it never was. */
  onVacated(slot: Slot, pid: number, exit: ChildExit, delay: number): void
}

export interface SlotOptions {
  plan: SlotPlan
  config: BootMessage['config']
  configFile: string | null
  log: Logger
  /** From TERM to SIGKILL of a child that was replaced, ms. */
  shutdownTimeout: number
  /** Starts a process; may throw. */
  fork: () => ChildLike
  events: SlotEvents
  restart?: RestartPolicyOptions | undefined
}

/**
 * A place that one child fills. When the child dies, the next one follows, later and later if it dies early. To
 * recycle it, its replacement is started first; the old child is told to leave once the new one is ready.
 */
export class Slot {
  readonly name: string
  readonly spec: ChildSpec
  readonly #options: SlotOptions
  readonly #policy: RestartPolicy
  #current: ChildHandle | undefined
  #next: ChildHandle | undefined
  /** Replaced, draining. */
  readonly #leaving = new Set<ChildHandle>()
  /** Runs until the next process is started. */
  #timer: NodeJS.Timeout | undefined
  /** Settled when the old child was told to leave. Until then a new process is its replacement. */
  #recycling: Deferred | undefined
  #closed = false

  constructor(options: SlotOptions) {
    this.#options = options
    this.name = options.plan.name
    this.spec = options.plan.spec
    this.#policy = new RestartPolicy(options.restart)
  }

  /** Early ends in a row. */
  get streak(): number {
    return this.#policy.streak
  }

  /** The process that does the work, or will. */
  get current(): ChildHandle | undefined {
    return this.#current
  }

  get ready(): boolean {
    return this.#current?.ready ?? false
  }

  /** Everything that still runs. */
  get handles(): ChildHandle[] {
    return [this.#current, this.#next, ...this.#leaving].filter(handle => handle !== undefined)
  }

  fill(): void {
    this.#timer = undefined
    if (this.#closed) return
    const { config, configFile, events, log } = this.#options
    let child: ChildLike
    try {
      child = this.#options.fork()
    } catch (error) {
      const reason = `could not be started: ${toError(error).message}`
      this.#fillLater(-1, { code: null, signal: null, uptimeMs: 0, expected: false, reason })
      return
    }
    const handle = new ChildHandle({
      slot: this.name,
      child,
      boot: { t: 'boot', slot: this.name, spec: this.spec, config, configFile },
      log,
      onReady: () => this.#ready(handle),
      onListen: message => events.onListen(handle, message),
      onRecycle: reason => {
        if (handle === this.#current) events.onRecycle(this, reason)
      },
      onExit: exit => this.#exited(handle, exit),
    })
    if (this.#recycling) this.#next = handle
    else this.#current = handle
  }

  /** Nothing is started any more. The processes are left to whoever stops them. */
  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
    this.#endRecycling()
  }

  /**
   * Replaces the child; resolves when the old one was told to leave. `overlap`: only once the new one is ready,
   * so that there is always one that works.
   */
  async recycle(overlap: boolean): Promise<void> {
    const old = this.#current
    if (this.#closed || this.#recycling || old === undefined || old.stopping) return
    if (!overlap || !old.ready) {
      // Its exit is expected, so the next process follows at once.
      this.#dismiss(old)
      return
    }
    const cancel = deadline(replacementTimeoutMs, () => {
      this.#options.log.warn({ slot: this.name }, `${this.name}: no replacement is ready, recycling anyway`)
      this.#takeOver()
    })
    this.#recycling = deferred()
    this.fill()
    await this.#recycling.promise
    cancel()
  }

  #ready(handle: ChildHandle): void {
    if (handle === this.#next) this.#takeOver()
    this.#options.events.onReady(handle)
  }

  /** The replacement, or the one that a timer is about to start, is the child from now on. */
  #takeOver(): void {
    const old = this.#current
    this.#current = this.#next
    this.#next = undefined
    this.#endRecycling()
    if (!old) return
    this.#leaving.add(old)
    this.#dismiss(old)
  }

  #endRecycling(): void {
    this.#recycling?.resolve()
    this.#recycling = undefined
  }

  #dismiss(handle: ChildHandle): void {
    handle.stop('SIGTERM')
    handle.killAfter(this.#options.shutdownTimeout)
  }

  #exited(handle: ChildHandle, exit: ChildExit): void {
    const planned = this.#leaving.delete(handle) || this.#closed
    if (handle === this.#next) this.#next = undefined
    if (handle === this.#current) this.#current = undefined
    if (planned) {
      this.#options.log.info(
        { slot: this.name, child_pid: handle.pid, code: exit.code, signal: exit.signal },
        `${this.name} is gone: ${exit.reason}`,
      )
    } else if (this.#recycling && !this.#current && (this.#next || this.#timer)) {
      // The old child did not live to see its replacement ready; that one is on its way.
      this.#takeOver()
    } else this.#fillLater(handle.pid, exit)
    this.#options.events.onGone(this, handle, exit)
  }

  #fillLater(pid: number, exit: ChildExit): void {
    const delay = this.#policy.exited(exit.uptimeMs, exit.expected)
    this.#timer = setTimeout(() => this.fill(), delay)
    this.#options.events.onVacated(this, pid, exit, delay)
  }
}
