import cluster from 'node:cluster'
import { fileURLToPath } from 'node:url'
import type { ResolvedConfig } from '../../config/options.ts'
import { type Deferred, deferred } from '../../core/deferred.ts'
import { BootError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import { RestartPolicy } from '../restart-policy.ts'
import { type WorkerExit, WorkerHandle, type WorkerProcess } from './worker-handle.ts'

/** Workers that may try to boot while none was ever ready; when so many have failed, the start has failed. */
const bootAttempts = 3

/** A worker that was killed is gone within this, or the kernel is in trouble. */
const killWaitMs = 2_000

export interface PrimaryOptions {
  config: ResolvedConfig
  log: Logger
  /** Added to the environment of workers. */
  env: Readonly<Record<string, string>>
  /** Starts a worker process; the default forks with `node:cluster`. */
  fork?: (env: Record<string, string>) => WorkerProcess
}

/** The place of one worker: who fills it now, and how fast the next one may come. */
interface Slot {
  readonly index: number
  readonly policy: RestartPolicy
  handle: WorkerHandle | undefined
  timer: NodeJS.Timeout | undefined
}

/**
 * The parent of the web workers: keeps each slot filled until it is stopped.
 * `start` → every slot was ready once, or the start failed and nothing is left; `stop` → no worker is left.
 */
export class Primary {
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #env: Readonly<Record<string, string>>
  readonly #fork: (env: Record<string, string>) => WorkerProcess
  readonly #slots: Slot[]
  readonly #started: Deferred<readonly string[]> = deferred()
  readonly #empty: Deferred<void> = deferred()
  readonly #notYetReady = new Set<number>()
  /** Slots that are empty until the first worker is ready. */
  readonly #waiting = new Set<Slot>()
  #stopping = false
  #anyReady = false
  #bootFailures = 0
  #addresses: readonly string[] = []

  constructor({ config, log, env, fork = forkWithCluster }: PrimaryOptions) {
    this.#config = config
    this.#log = log
    this.#env = env
    this.#fork = fork
    this.#slots = Array.from({ length: config.web.workers }, (_, at) => ({
      index: at + 1,
      policy: new RestartPolicy(),
      handle: undefined,
      timer: undefined,
    }))
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
    for (const slot of this.#slots) this.#start(slot)
    const addresses = await this.#started.promise
    const seconds = ((performance.now() - began) / 1000).toFixed(1)
    this.#log.info(`booted ${this.#slots.length} workers in ${seconds} s`)
    return addresses
  }

  /** Drains all workers; resolves when they are gone. Those that take longer than `web.shutdownTimeout` are killed. */
  stop(reason: string): Promise<void> {
    if (!this.#stopping) {
      this.#begin(new BootError(`stopped while booting: ${reason}`))
      for (const { handle } of this.#slots) handle?.stop(reason, this.#config.web.shutdownTimeout)
    }
    return this.#empty.promise
  }

  /** Kills all workers; resolves when they are gone, or after 2 s. */
  async kill(): Promise<void> {
    this.#begin(new BootError('killed while booting'))
    for (const { handle } of this.#slots) handle?.kill()
    let timer: NodeJS.Timeout | undefined
    const limit = new Promise<void>(resolve => {
      timer = setTimeout(resolve, killWaitMs)
    })
    await Promise.race([this.#empty.promise, limit])
    clearTimeout(timer)
  }

  #begin(why: BootError): void {
    this.#stopping = true
    this.#started.promise.catch(() => undefined)
    this.#started.reject(why)
    for (const slot of this.#slots) clearTimeout(slot.timer)
    this.#settle()
  }

  #settle(): void {
    if (this.#stopping && this.#slots.every(({ handle }) => handle === undefined)) this.#empty.resolve()
  }

  #fill(slot: Slot): void {
    if (this.#stopping) return
    let worker: WorkerProcess
    try {
      worker = this.#fork({ ...this.#env, PGBUS_WEB_INDEX: String(slot.index) })
    } catch (error) {
      // Out of processes or memory for a moment: as if it had died at once.
      this.#exited(slot, {
        code: null,
        signal: null,
        uptimeMs: 0,
        booted: false,
        expected: false,
        reason: `it could not be started: ${toError(error).message}`,
      })
      return
    }
    slot.handle = new WorkerHandle({
      index: slot.index,
      worker,
      bootTimeout: this.#config.web.bootTimeout,
      drainTimeout: this.#config.web.shutdownTimeout,
      log: this.#log,
      onReady: handle => this.#ready(handle),
      onExit: (_handle, exit) => this.#exited(slot, exit),
    })
  }

  #ready(handle: WorkerHandle): void {
    this.#anyReady = true
    this.#log.info(`worker ${handle.index} (pid ${handle.pid}) is ready`)
    if (String(handle.addresses) !== String(this.#addresses)) {
      this.#addresses = handle.addresses
      this.#log.info(`listening on ${this.#addresses.join(', ')}`)
    }
    for (const slot of this.#waiting) this.#fill(slot)
    this.#waiting.clear()
    this.#notYetReady.delete(handle.index)
    if (this.#notYetReady.size === 0) this.#started.resolve(this.#addresses)
  }

  #exited(slot: Slot, exit: WorkerExit): void {
    const pid = slot.handle?.pid
    slot.handle = undefined
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
    const delay = slot.policy.exited(exit.uptimeMs, exit.expected)
    const what = exit.booted ? `ended after ${(exit.uptimeMs / 1000).toFixed(1)} s` : 'failed to boot'
    this.#log[exit.expected ? 'info' : 'error'](
      { code: exit.code, signal: exit.signal },
      `worker ${slot.index} (pid ${pid}) ${what}: ${exit.reason}; next one in ${delay} ms`,
    )
    slot.timer = setTimeout(() => this.#start(slot), delay)
  }

  /** Until one was ready, nobody knows whether this application can boot at all: then a few tries must do. */
  #start(slot: Slot): void {
    slot.timer = undefined
    const booting = this.#slots.filter(({ handle }) => handle !== undefined).length
    if (this.#anyReady || booting + this.#bootFailures < bootAttempts) this.#fill(slot)
    else this.#waiting.add(slot)
  }

  /** The first boot failed for good: end what is still booting, then say why. */
  async #abandon(reason: string): Promise<void> {
    this.#stopping = true
    for (const { handle, timer } of this.#slots) {
      clearTimeout(timer)
      handle?.kill()
    }
    this.#settle()
    await this.#empty.promise
    this.#started.reject(new BootError(`no worker could boot: ${reason}`))
  }
}

function forkWithCluster(env: Record<string, string>): WorkerProcess {
  cluster.setupPrimary({ exec: fileURLToPath(new URL('./worker-entry.js', import.meta.url)), args: [] })
  return cluster.fork(env)
}
