import { type Deferred, deferred } from '../../core/deferred.ts'
import { RestartError } from '../../core/errors.ts'
import { toError } from '../../core/report.ts'
import { RestartPolicy } from '../restart-policy.ts'
import type { Release } from './release.ts'
import type { WorkerExit, WorkerHandle } from './worker-handle.ts'

/** How a slot gets its worker. May throw when the machine cannot start a process. */
export type Spawn = (slot: Slot, release: Release) => WorkerHandle

export interface SlotEvents {
  /** The slot is empty, not by plan. Whoever listens decides when it is filled again. */
  onVacated(slot: Slot, exit: WorkerExit, pid: number | undefined): void
  /** A process is gone that was meant to go: replaced, or a replacement that was of no use. */
  onDismissed(slot: Slot, exit: WorkerExit, pid: number): void
}

export interface SlotOptions {
  index: number
  release: Release
  spawn: Spawn
  events: SlotEvents
}

interface Occupant {
  readonly handle: WorkerHandle
  readonly release: Release
}

/**
 * The place of one worker.
 *
 *   fill ──▶ current ── ends by itself ──▶ vacated ──▶ fill, later
 *              │
 *              └─ prepare ──▶ current and next ── next is ready ──▶ handOver: next is current, the old one drains
 *                                    │
 *                                    └─ next ends first, or discard ──▶ current, as before
 *
 * A current worker that ends while the next one boots leaves its place to that one. Nothing is started once the
 * slot is closed.
 */
export class Slot {
  readonly index: number
  readonly #options: SlotOptions
  #policy = new RestartPolicy()
  #release: Release
  #current: Occupant | undefined
  #next: (Occupant & { ready: Deferred }) | undefined
  /** Told to go. */
  readonly #leaving = new Set<WorkerHandle>()
  #timer: NodeJS.Timeout | undefined
  #restarts = 0
  #closed = false

  constructor(options: SlotOptions) {
    this.index = options.index
    this.#options = options
    this.#release = options.release
  }

  /** What the last worker that served here was started from; at first, what the first one is started from. */
  get release(): Release {
    return this.#release
  }

  get current(): WorkerHandle | undefined {
    return this.#current?.handle
  }

  /** Workers that took this place after the first. */
  get restarts(): number {
    return this.#restarts
  }

  /** Everything that still runs. */
  get handles(): WorkerHandle[] {
    return [this.#current?.handle, this.#next?.handle, ...this.#leaving].filter(
      handle => handle !== undefined,
    )
  }

  /** A replacement is ready and waits for {@link handOver}. */
  get prepared(): boolean {
    return this.#next?.handle.state === 'ready'
  }

  fill(release: Release): void {
    this.#cancelFill()
    if (this.#closed || this.#current || this.#next) return
    try {
      this.#current = { handle: this.#options.spawn(this, release), release }
    } catch (error) {
      this.#options.events.onVacated(this, couldNotStart(error), undefined)
    }
  }

  /** Takes note of an end; calls `fill` after the delay that it earned, and returns that delay in ms. */
  fillLater(exit: WorkerExit, fill: () => void): number {
    this.#restarts += 1
    const delay = this.#policy.exited(exit.uptimeMs, exit.expected)
    this.#timer = setTimeout(fill, delay)
    return delay
  }

  /**
   * Starts a replacement beside the current worker; resolves when it is ready.
   * @throws RestartError when it ended, or could not be started.
   */
  async prepare(release: Release): Promise<void> {
    this.#cancelFill()
    if (this.#closed) throw new RestartError('pgbus-web is stopping')
    let handle: WorkerHandle
    try {
      handle = this.#options.spawn(this, release)
    } catch (error) {
      const exit = couldNotStart(error)
      this.#leaveEmpty(exit, undefined)
      throw new RestartError(this.#blame(release, exit.reason), { cause: error })
    }
    this.#next = { handle, release, ready: deferred() }
    await this.#next.ready.promise
  }

  /**
   * The replacement takes the place, then the old worker is told to drain; resolves when that one is gone.
   * @throws RestartError when there is no replacement that is ready (any more).
   */
  async handOver(reason: string): Promise<void> {
    const next = this.#next
    if (next === undefined || !this.prepared)
      throw new RestartError(`worker ${this.index}: its replacement did not live to take over`)
    const old = this.#current
    this.#current = next
    this.#next = undefined
    this.#release = next.release
    this.#restarts += 1
    // What ended early belongs to the past.
    this.#policy = new RestartPolicy()
    if (old) await this.#dismiss(old, reason, { handover: true })
  }

  /** Drains the worker without a replacement; resolves when it is gone and the slot is empty. */
  async vacate(reason: string): Promise<void> {
    this.#cancelFill()
    const old = this.#current
    this.#current = undefined
    if (old) await this.#dismiss(old, reason, { handover: true })
  }

  /** Gives up a replacement. One that has become the only worker of the slot stays. */
  discard(reason: string): void {
    const next = this.#next
    if (next === undefined) return
    next.ready.reject(new RestartError(reason))
    next.ready.promise.catch(() => undefined)
    this.#next = undefined
    if (this.#current !== undefined) {
      void this.#dismiss(next, reason)
      return
    }
    this.#current = next
    if (next.handle.state === 'ready') this.#release = next.release
  }

  /** Nothing is started any more. The processes are left to whoever stops them. */
  close(): void {
    this.#closed = true
    this.#cancelFill()
    this.#next?.ready.promise.catch(() => undefined)
    this.#next?.ready.reject(new RestartError('pgbus-web is stopping'))
  }

  /** @internal For whoever made the handle. */
  ready(handle: WorkerHandle): void {
    if (handle === this.#next?.handle) this.#next.ready.resolve()
    if (handle === this.#current?.handle) this.#release = this.#current.release
  }

  /** @internal For whoever made the handle. */
  exited(handle: WorkerHandle, exit: WorkerExit): void {
    if (this.#leaving.delete(handle)) {
      this.#options.events.onDismissed(this, exit, handle.pid)
      return
    }
    if (handle === this.#next?.handle) {
      const { ready, release } = this.#next
      this.#next = undefined
      ready.promise.catch(() => undefined)
      ready.reject(new RestartError(this.#blame(release, exit.reason)))
      this.#leaveEmpty(exit, handle.pid)
      return
    }
    this.#current = undefined
    // A replacement that is on its way takes this place.
    if (this.#next) this.#options.events.onDismissed(this, exit, handle.pid)
    else this.#options.events.onVacated(this, exit, handle.pid)
  }

  #leaveEmpty(exit: WorkerExit, pid: number | undefined): void {
    if (this.#current === undefined) this.#options.events.onVacated(this, exit, pid)
    else if (pid !== undefined) this.#options.events.onDismissed(this, exit, pid)
  }

  #dismiss({ handle, release }: Occupant, reason: string, options?: { handover: boolean }): Promise<void> {
    this.#leaving.add(handle)
    handle.stop(reason, release.config.web.shutdownTimeout, options)
    return handle.gone
  }

  #blame({ phase }: Release, reason: string): string {
    return `worker ${this.index} of phase ${phase} did not become ready: ${reason}`
  }

  #cancelFill(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }
}

/** Out of processes or memory for a moment: as if it had died at once. */
function couldNotStart(error: unknown): WorkerExit {
  return {
    code: null,
    signal: null,
    uptimeMs: 0,
    booted: false,
    expected: false,
    reason: `it could not be started: ${toError(error).message}`,
  }
}
