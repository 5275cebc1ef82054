import { type Deferred, deferred } from '../../core/deferred.ts'
import { BootError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { withDeadline } from '../../core/sleep.ts'
import { forkWorker } from './fork-worker.ts'
import { Recycling } from './recycling.ts'
import type { Release } from './release.ts'
import { RollingRestart } from './rolling-restart.ts'
import { Slot } from './slot.ts'
import { type WorkerExit, WorkerHandle, type WorkerProcess } from './worker-handle.ts'
import { WorkerWatch } from './worker-watch.ts'

/** Workers that may try to boot while none was ever ready; when so many have failed, the start has failed. */
const bootAttempts = 3

/** A worker that was killed is gone within this, or the kernel is in trouble. */
const killWaitMs = 2_000

export interface PrimaryOptions {
  /** What the first workers are started from. */
  release: Release
  log: Logger
  /** Starts a worker process; the default forks with `node:cluster`. */
  fork?: (release: Release, index: number) => WorkerProcess
}

/**
 * The parent of the web workers: keeps each slot filled until it is stopped.
 * `start` → every slot was ready once, or the start failed and nothing is left; `stop` → no worker is left.
 */
export class Primary {
  readonly #log: Logger
  readonly #fork: (release: Release, index: number) => WorkerProcess
  readonly #slots: Slot[]
  readonly #watch: WorkerWatch
  readonly #recycling: Recycling<Slot, WorkerHandle>
  readonly #started: Deferred<readonly string[]> = deferred()
  readonly #empty: Deferred<void> = deferred()
  readonly #notYetReady = new Set<number>()
  /** Slots that are empty until the first worker is ready. */
  readonly #waiting = new Set<Slot>()
  #restart: RollingRestart | undefined
  /** Settles when nothing that was asked for is under way. */
  #replacing: Promise<void> | undefined
  #stopping = false
  #anyReady = false
  #bootFailures = 0
  #addresses: readonly string[] = []

  constructor({ release, log, fork = forkWorker }: PrimaryOptions) {
    this.#log = log
    this.#fork = fork
    this.#recycling = new Recycling({ log, replace: (slot, handle) => this.#recycle(slot, handle) })
    this.#watch = new WorkerWatch({ workers: () => this.#slots.flatMap(({ handles }) => handles), log })
    this.#slots = Array.from(
      { length: release.config.web.workers },
      (_, at) =>
        new Slot({
          index: at + 1,
          release,
          spawn: (slot, release) => this.#spawn(slot, release),
          events: {
            onVacated: (slot, exit, pid) => this.#vacated(slot, exit, pid),
            onDismissed: (slot, exit, pid) => this.#dismissed(slot, exit, pid),
          },
        }),
    )
    for (const { index } of this.#slots) this.#notYetReady.add(index)
  }

  /** Where the workers listen, once known. */
  get addresses(): readonly string[] {
    return this.#addresses
  }

  /**
   * Starts all workers, a few first; resolves to the addresses when each has been ready.
   * @throws BootError when the first workers fail one after the other, or {@link stop} came first.
   */
  async start(): Promise<readonly string[]> {
    const began = performance.now()
    this.#watch.start()
    for (const slot of this.#slots) this.#fillOrWait(slot)
    const addresses = await this.#started.promise
    const seconds = ((performance.now() - began) / 1000).toFixed(1)
    this.#log.info(`booted ${this.#slots.length} workers in ${seconds} s`)
    return addresses
  }

  /**
   * Replaces every worker by one of `release`, new ones first; resolves when the old ones are gone. One at a time.
   * @throws RestartError when a new worker does not become ready: then the old ones that are left go on serving.
   */
  async replaceAll(release: Release): Promise<void> {
    const { surge } = release.config.web.restart
    await this.#alone(async () => {
      const restart = new RollingRestart({ slots: this.#slots, release, surge })
      this.#restart = restart
      try {
        await restart.run()
      } finally {
        this.#restart = undefined
      }
    })
  }

  /** Drains all workers; resolves when they are gone. Those that take longer than `web.shutdownTimeout` are killed. */
  stop(reason: string): Promise<void> {
    if (!this.#stopping) {
      this.#begin(new BootError(`stopped while booting: ${reason}`))
      for (const { handles, release } of this.#slots) {
        for (const handle of handles) handle.stop(reason, release.config.web.shutdownTimeout)
      }
    }
    return this.#empty.promise
  }

  /** Kills all workers; resolves when they are gone, or after 2 s. */
  async kill(): Promise<void> {
    this.#begin(new BootError('killed while booting'))
    this.#killAll()
    await withDeadline(this.#empty.promise, killWaitMs)
  }

  /** One replacement after the other: a restart and the recycling of a worker must not meet in a slot. */
  #alone(replace: () => Promise<void>): Promise<void> {
    const done = this.#replacing === undefined ? replace() : this.#replacing.then(replace)
    const settled = done
      .catch(() => undefined)
      .then(() => {
        if (this.#replacing === settled) this.#replacing = undefined
      })
    this.#replacing = settled
    return done
  }

  #recycle(slot: Slot, handle: WorkerHandle): Promise<void> {
    return this.#alone(async () => {
      // It may have been replaced, or have begun to drain, while it waited for its turn.
      if (slot.current !== handle || handle.state !== 'ready' || this.#stopping) return
      await slot.prepare(slot.release)
      await slot.handOver('recycle')
    })
  }

  #begin(why: BootError): void {
    this.#stopping = true
    this.#watch.stop()
    this.#started.promise.catch(() => undefined)
    this.#started.reject(why)
    for (const slot of this.#slots) slot.close()
    this.#settle()
  }

  #killAll(): void {
    for (const { handles } of this.#slots) for (const handle of handles) handle.kill()
  }

  #settle(): void {
    if (this.#stopping && this.#slots.every(({ handles }) => handles.length === 0)) this.#empty.resolve()
  }

  #spawn(slot: Slot, release: Release): WorkerHandle {
    const { bootTimeout, workerTimeout, shutdownTimeout } = release.config.web
    return new WorkerHandle({
      index: slot.index,
      phase: release.phase,
      worker: this.#fork(release, slot.index),
      bootTimeout,
      workerTimeout,
      drainTimeout: shutdownTimeout,
      now: () => this.#watch.clock.now(),
      log: this.#log,
      onReady: handle => this.#ready(slot, handle),
      onCheckIn: (handle, stats) => {
        if (slot.current === handle && handle.state === 'ready')
          void this.#recycling.checkedIn(slot, handle, stats, release.config.web.recycle)
      },
      onExit: (handle, exit) => slot.exited(handle, exit),
    })
  }

  #ready(slot: Slot, handle: WorkerHandle): void {
    this.#anyReady = true
    this.#log.info({ phase: handle.phase }, `worker ${handle.index} (pid ${handle.pid}) is ready`)
    if (String(handle.addresses) !== String(this.#addresses)) {
      this.#addresses = handle.addresses
      this.#log.info(`listening on ${this.#addresses.join(', ')}`)
    }
    slot.ready(handle)
    for (const waiting of this.#waiting) this.#fill(waiting)
    this.#waiting.clear()
    this.#notYetReady.delete(handle.index)
    if (this.#notYetReady.size === 0) this.#started.resolve(this.#addresses)
  }

  #dismissed({ index }: Slot, exit: WorkerExit, pid: number): void {
    const { code, signal, reason } = exit
    this.#log[exit.expected ? 'info' : 'error'](
      { code, signal },
      `worker ${index} (pid ${pid}) is gone: ${reason}`,
    )
    this.#settle()
  }

  #vacated(slot: Slot, exit: WorkerExit, pid: number | undefined): void {
    if (this.#stopping) {
      this.#log.info(`worker ${slot.index} (pid ${pid}) is gone: ${exit.reason}`)
      this.#settle()
      return
    }
    const firstBoot = !exit.booted && !this.#anyReady
    if (firstBoot) this.#bootFailures += 1
    if (this.#bootFailures >= bootAttempts && firstBoot) {
      this.#log.error(`worker ${slot.index} (pid ${pid}) failed to boot: ${exit.reason}`)
      void this.#abandon(exit.reason)
      return
    }
    const delay = slot.fillLater(exit, () => this.#fillOrWait(slot))
    const what = exit.booted ? `ended after ${(exit.uptimeMs / 1000).toFixed(1)} s` : 'failed to boot'
    this.#log[exit.expected ? 'info' : 'error'](
      { code: exit.code, signal: exit.signal },
      `worker ${slot.index} (pid ${pid}) ${what}: ${exit.reason}; next one in ${delay} ms`,
    )
  }

  /** Until one was ready, nobody knows whether this application can boot at all: then a few tries must do. */
  #fillOrWait(slot: Slot): void {
    const booting = this.#slots.filter(({ current }) => current !== undefined).length
    if (this.#anyReady || booting + this.#bootFailures < bootAttempts) this.#fill(slot)
    else this.#waiting.add(slot)
  }

  /** A new release that has worked once is what a worker that crashes meanwhile is replaced by. */
  #fill(slot: Slot): void {
    const proven = this.#restart !== undefined && this.#restart.replaced > 0
    slot.fill(proven ? this.#restart!.release : slot.release)
  }

  /** The first boot failed for good: end what is still booting, then say why. */
  async #abandon(reason: string): Promise<void> {
    this.#stopping = true
    this.#watch.stop()
    for (const slot of this.#slots) slot.close()
    this.#killAll()
    this.#settle()
    await this.#empty.promise
    this.#started.reject(new BootError(`no worker could boot: ${reason}`))
  }
}
