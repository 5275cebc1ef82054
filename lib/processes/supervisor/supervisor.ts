import { hostname } from 'node:os'
import type { LoadedConfig } from '../../config/load.ts'
import { toPortable } from '../../config/portable.ts'
import { type Deferred, deferred } from '../../core/deferred.ts'
import { BootError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import { withDeadline } from '../../core/sleep.ts'
import { Heartbeat } from '../../jobs/heartbeat.ts'
import { NotifyHub } from '../../jobs/notify-hub.ts'
import { Pgbus } from '../../pgbus.ts'
import { HealthServer } from '../health-server.ts'
import type { ChildSpec, HostReadyMessage } from '../messages.ts'
import { listenForStop } from '../signals.ts'
import { bannerLines, schemaLine } from './banner.ts'
import { ensureQueues, orAborted, prepareSchema, waitForDatabase } from './boot.ts'
import type { ChildExit, ChildHandle } from './child-handle.ts'
import { forkChild } from './fork-child.ts'
import { Recycler } from './recycler.ts'
import { listens, planSlots, processKinds, queuesOf } from './roles.ts'
import { Salvage } from './salvage.ts'
import { Shutdown } from './shutdown.ts'
import { Slot } from './slot.ts'
import { Watchdog } from './watchdog.ts'

/** Connections of the supervisor itself: heartbeat and giving back messages. */
const poolSize = 2

/** The last statements of a supervisor, when all children are gone. */
const lastWordsMs = 1_000

export type SupervisorStatus = 'BOOTING' | 'OK' | 'DEGRADED' | 'DRAINING'

export interface ChildInfo {
  slot: string
  role: ChildSpec['role']
  /** Null: between two processes. */
  pid: number | null
  ready: boolean
  queues: readonly string[]
  uptimeMs: number | null
  /** Early ends in a row. */
  streak: number
}

export interface SupervisorOptions {
  loaded: LoadedConfig
  /** Stop at TERM, INT, HUP, QUIT, an uncaught error, or when the process that forked this one is gone. */
  signals?: boolean | undefined
}

/**
 * Boots a supervisor and its children; resolves when they are forked, or when it was told to stop before.
 * @throws ConfigurationError, BootError, SchemaNotReadyError, MigrationError. Nothing is left running then.
 */
export async function startSupervisor(options: SupervisorOptions): Promise<Supervisor> {
  const supervisor = new Supervisor(options)
  await supervisor.boot()
  return supervisor
}

/**
 * The parent of all children of a job host: keeps each slot filled, owns the one LISTEN connection, and gives back what a
 * dead child held. It runs no job itself and reads nothing from the database while it runs.
 */
export class Supervisor {
  /** The exit code, once everything has ended. */
  readonly done: Promise<number>
  readonly #loaded: LoadedConfig
  readonly #pgbus: Pgbus
  readonly #log: Logger
  readonly #heartbeat: Heartbeat
  readonly #shutdown: Shutdown
  readonly #slots: Slot[]
  readonly #done: Deferred<number> = deferred<number>()
  readonly #stopping = new AbortController()
  readonly #salvage: Salvage
  readonly #recycler: Recycler
  readonly #watchdog: Watchdog | undefined
  #forgetSignals: () => void = () => undefined
  #hub: NotifyHub | undefined
  #health: HealthServer | undefined
  #forked = false
  #childDied = false
  #everReady = false
  #crashed = false
  #finishing: Promise<void> | undefined

  constructor({ loaded, signals = false }: SupervisorOptions) {
    const { config } = loaded
    this.#loaded = loaded
    this.done = this.#done.promise
    this.#pgbus = new Pgbus(config, { poolSize })
    this.#log = this.#pgbus.log.child({ component: 'supervisor' })
    this.#salvage = new Salvage({ pgbus: this.#pgbus, log: this.#log })
    this.#recycler = new Recycler({ overlap: config.recycle.overlap, log: this.#log })
    if (config.stallThreshold !== null) {
      this.#watchdog = new Watchdog({
        threshold: config.stallThreshold,
        children: () => this.#slots.flatMap(slot => slot.handles),
        log: this.#log,
      })
    }
    this.#heartbeat = new Heartbeat({ db: this.#pgbus.db, log: this.#log })
    this.#shutdown = new Shutdown({
      shutdownTimeout: config.shutdownTimeout,
      children: () => this.#slots.flatMap(slot => slot.handles),
    })
    const portable = toPortable(config)
    this.#slots = planSlots(config).map(
      plan =>
        new Slot({
          plan,
          config: portable,
          configFile: loaded.file,
          log: this.#log,
          shutdownTimeout: config.shutdownTimeout,
          fork: forkChild,
          events: {
            onReady: handle => this.#ready(handle),
            onListen: (handle, message) => void this.#hub?.listen(handle, message.tables, message),
            onRecycle: (slot, reason) => void this.#recycler.recycle(slot, reason),
            onGone: (slot, handle, exit) => this.#gone(slot, handle, exit),
            onVacated: (slot, pid, exit, delay) => this.#vacated(slot, pid, exit, delay),
          },
        }),
    )
    // First of all: a signal during the boot must be able to cancel it.
    if (signals) {
      this.#forgetSignals = listenForStop({
        graceful: reason => this.#stop(false, reason),
        immediate: reason => this.#stop(true, reason),
        recycle: () => void this.recycle(),
        crashed: error => this.#crash(error),
      })
    }
  }

  get status(): SupervisorStatus {
    if (this.#stopping.signal.aborted) return 'DRAINING'
    if (!this.#forked) return 'BOOTING'
    if (this.live >= this.expected) return 'OK'
    return this.#everReady || this.#childDied ? 'DEGRADED' : 'BOOTING'
  }

  /** Slots that must be filled. */
  get expected(): number {
    return this.#forked ? this.#slots.length : 0
  }

  /** Slots whose process is ready. */
  get live(): number {
    return this.#slots.filter(slot => slot.ready).length
  }

  children(): ChildInfo[] {
    return this.#slots.map(({ name, spec, current, streak }) => ({
      slot: name,
      role: spec.role,
      pid: current?.pid ?? null,
      ready: current?.ready ?? false,
      queues: queuesOf(spec),
      uptimeMs: current ? Math.round(current.uptimeMs) : null,
      streak,
    }))
  }

  /** Drains and ends all children; resolves to the exit code. `immediate` does not wait for running jobs. */
  stop({ immediate = false }: { immediate?: boolean } = {}): Promise<number> {
    this.#stop(immediate, 'stop() was called')
    return this.done
  }

  /** Replaces every child, one after the other; resolves when the last was told to leave. */
  async recycle(): Promise<void> {
    await Promise.all(this.#slots.map(slot => this.#recycler.recycle(slot, 'requested')))
  }

  /** @internal Use {@link startSupervisor}. */
  async boot(): Promise<void> {
    try {
      await this.#boot()
    } catch (error) {
      if (this.#stopping.signal.aborted) return
      this.#forgetSignals()
      this.#stopping.abort()
      await this.#close()
      throw error
    }
  }

  async #boot(): Promise<void> {
    const { config, warnings } = this.#loaded
    const { connector, db, schema, report } = this.#pgbus
    const { signal } = this.#stopping
    const log = this.#log
    if (this.#slots.length === 0) {
      throw new BootError(
        'no role has anything to run: set roles to null, or workers to, for example, "default: 5"',
      )
    }
    for (const { path, rule } of warnings) log.warn({ key: path }, `configuration: ${path} ${rule}`)
    for (const line of bannerLines(config, connector)) log.info(line)

    // Before the database is looked for: an orchestrator must see a host that waits as alive and not ready.
    await this.#openHealth()
    if (signal.aborted) return
    await waitForDatabase({ loaded: this.#loaded, connector, log, signal })
    if (signal.aborted) return
    const status = await orAborted(prepareSchema({ loaded: this.#loaded, schema, db, log }), signal)
    if (signal.aborted) return
    log.info(schemaLine(config, status))
    await orAborted(
      this.#heartbeat.start('supervisor', () => ({ hostname: hostname(), children: this.live })),
      signal,
    )
    if (signal.aborted) return
    await orAborted(ensureQueues({ config, queues: this.#pgbus.queues, report, signal }), signal)
    if (signal.aborted) return
    this.#openHub()
    for (const slot of this.#slots) slot.fill()
    this.#watchdog?.start()
    this.#forked = true
  }

  async #openHealth(): Promise<void> {
    const { port, bind } = this.#loaded.config.health
    if (port === null) return
    const health = new HealthServer({ port, host: bind, readiness: () => this })
    const { address, port: actual } = await health.open()
    // Told to stop meanwhile: whoever closed everything did not know of this one.
    if (this.#finishing) return health.close()
    this.#health = health
    this.#log.info(`health: /livez and /readyz on ${address}:${actual}`)
  }

  #openHub(): void {
    const { enabled, scope } = this.#loaded.config.notify
    if (!enabled || scope !== 'supervisor' || !this.#slots.some(({ spec }) => listens(spec))) return
    this.#hub = NotifyHub.open(this.#pgbus)
  }

  #ready(handle: ChildHandle): void {
    this.#log.info({ slot: handle.slot, child_pid: handle.pid }, `${handle.slot} is ready`)
    if (this.#everReady || this.live < this.expected) return
    this.#everReady = true
    this.#log.info(`ready: ${this.live} children`)
    const message: HostReadyMessage = { pgbus: 'host', t: 'ready', addresses: [] }
    if (process.connected) process.send?.(message, undefined, undefined, () => undefined)
  }

  #gone({ spec }: Slot, handle: ChildHandle, exit: ChildExit): void {
    this.#hub?.remove(handle)
    // A child that ends by itself has given back everything and deleted its row.
    if (exit.code !== 0 || handle.held.size > 0) this.#salvage.giveBack(handle, exit, processKinds(spec))
    this.#finishWhenEmpty()
  }

  #vacated({ name, streak }: Slot, pid: number, exit: ChildExit, delay: number): void {
    this.#childDied = true
    const { code, signal, uptimeMs, reason } = exit
    this.#log.warn(
      { slot: name, child_pid: pid, code, signal, streak },
      `${name} ended after ${(uptimeMs / 1000).toFixed(1)} s: ${reason}; next one in ${delay / 1000} s`,
    )
  }

  #stop(immediate: boolean, reason: string): void {
    const first = !this.#stopping.signal.aborted
    // Before anything else: from here on nothing is forked or restarted.
    this.#stopping.abort()
    if (first || (immediate && this.#shutdown.state !== 'immediate')) {
      this.#log.info(`stopping${immediate ? ' now' : ''}: ${reason}`)
    }
    this.#watchdog?.stop()
    for (const slot of this.#slots) slot.close()
    if (immediate) this.#shutdown.immediate()
    else this.#shutdown.graceful()
    // After the children were told: those that drain need no wakes.
    void this.#hub?.close()
    this.#finishWhenEmpty()
  }

  #crash(thrown: unknown): void {
    const error = toError(thrown)
    this.#crashed = true
    this.#pgbus.report(error, { action: 'uncaught_exception' })
    if (!this.#stopping.signal.aborted) this.#stop(false, `an error: ${error.message}`)
  }

  #finishWhenEmpty(): void {
    if (!this.#stopping.signal.aborted || this.#slots.some(({ handles }) => handles.length > 0)) return
    this.#finishing ??= this.#finish()
  }

  async #finish(): Promise<void> {
    this.#shutdown.finished()
    await this.#close()
    const code = this.#crashed ? 1 : this.#shutdown.exitCode
    this.#log.info(`stopped${code === 0 ? '' : `, exit code ${code}`}`)
    this.#forgetSignals()
    this.#done.resolve(code)
  }

  /** Whatever the database does, this takes a second at most. */
  async #close(): Promise<void> {
    const work = Promise.all([this.#salvage.done(), this.#heartbeat.stop(), this.#hub?.close()])
    await withDeadline(
      work.then(() => this.#pgbus.close()),
      lastWordsMs,
    )
    // Idempotent: for the case that the deadline came first.
    void this.#pgbus.close()
    // Last: until then the host is seen to drain.
    await this.#health?.close()
  }
}
