import { fromPortable } from '../../config/portable.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import { Pgbus } from '../../pgbus.ts'
import type { BootMessage, ChildSpec, ChildToSupervisor, SupervisorToChild } from '../messages.ts'
import { DeliveryStatus } from './delivery-status.ts'
import { findModules, importModules } from './imports.ts'
import { MaintenanceRunner } from './maintenance-runner.ts'
import { needsModules, poolSize, queuesOf } from './roles.ts'
import type { Runner, RunnerContext } from './runner.ts'
import { WorkerRunner } from './worker-runner.ts'

/** Beyond the supervisor's own deadline, for a child that has no supervisor any more. */
const overdueMs = 1_000

const beatMs = 1_000

/** A last message has this long to leave. */
const lastMessageMs = 500

/** Runs what one slot is for, from the boot message to the end of the process. */
export function runChild(): void {
  new Child().listen()
}

interface Ending {
  code: 0 | 1
  immediate: boolean
}

/**
 * `waiting → booting → running → ending`. The first reason to end decides the exit code; a later QUIT only makes
 * it quicker. Whatever the runner, its jobs or the database do, the process ends by itself.
 */
class Child {
  #runner: Runner | undefined
  #pgbus: Pgbus | undefined
  #log: Logger | undefined
  /** Longest time from the first reason to end to the end. */
  #limit = 0
  #ending: Promise<void> | undefined
  readonly #delivery = new DeliveryStatus(delivering =>
    this.#runner?.receive?.({ t: delivering ? 'healthy' : 'degraded' }),
  )

  listen(): void {
    process.on('message', message => this.#receive(message as SupervisorToChild))
    process.on('SIGTERM', () => this.#end({ code: 0, immediate: false }))
    process.on('SIGQUIT', () => this.#end({ code: 0, immediate: true }))
    process.on('disconnect', () => {
      this.#delivery.lost()
      if (!this.#ending) this.#log?.warn('the supervisor is gone; finishing the running jobs')
      this.#end({ code: 0, immediate: false })
    })
    // Rejections that nobody handles arrive here as well.
    process.on('uncaughtException', error => this.#fail(error, 'uncaught_exception'))
    // The supervisor may have left before the handlers were there.
    if (!process.connected) this.#end({ code: 0, immediate: false })
  }

  #receive(message: SupervisorToChild): void {
    switch (message.t) {
      case 'boot':
        this.#start(message).catch(error => this.#fail(error, 'boot'))
        return
      case 'healthy':
      case 'degraded':
        this.#delivery.heard(message.t === 'healthy')
        return
      default:
        this.#runner?.receive?.(message)
    }
  }

  async #start({ slot, spec, config: portable, configFile }: BootMessage): Promise<void> {
    process.title = `pgbus: ${slot} ${queuesOf(spec).join(',')}`.trimEnd()
    const config = await fromPortable(portable, configFile)
    this.#limit = config.shutdownTimeout
    if (this.#ending) return
    const pgbus = new Pgbus(config, { poolSize: poolSize(config, spec) })
    this.#pgbus = pgbus
    this.#log = pgbus.log.child({ component: 'child', slot })

    if (needsModules(spec)) {
      const { files, unmatched } = findModules(config.imports, configFile)
      for (const pattern of unmatched) this.#log.warn(`imports: "${pattern}" matches no module`)
      await importModules(files)
    }
    tell({ t: 'loaded' })
    if (this.#ending) return

    this.#runner = runnerOf(spec, { pgbus, tell, delivering: this.#delivery.delivering })
    this.#beat()
    await this.#runner.start()
    if (!this.#ending) tell({ t: 'ready' })
  }

  /** Not by a timer of its own rhythm: a process that stood still for a minute owes one beat, not sixty. */
  #beat(): void {
    if (!this.#runner || !process.connected) return
    tell({ t: 'beat', ...this.#runner.beat() })
    setTimeout(() => this.#beat(), beatMs).unref()
  }

  #fail(thrown: unknown, action: string): void {
    const error = toError(thrown)
    if (this.#ending) {
      this.#log?.error({ err: error }, `while stopping: ${error.message}`)
      return
    }
    tell({ t: 'fatal', message: error.message, stack: error.stack ?? null })
    // What fails before there is a logger is told by the supervisor.
    this.#pgbus?.report(error, { action })
    this.#end({ code: 1, immediate: false })
  }

  #end({ code, immediate }: Ending): void {
    if (immediate && this.#ending) void this.#runner?.stop({ immediate: true })
    this.#ending ??= this.#finish(code, immediate)
  }

  async #finish(code: 0 | 1, immediate: boolean): Promise<void> {
    // Set first: it holds when the steps below throw, hang, or are overtaken by an exit of somebody else.
    process.exitCode = code
    setTimeout(() => process.exit(1), this.#limit + overdueMs).unref()
    try {
      await this.#runner?.stop({ immediate })
      await this.#pgbus?.close()
    } catch (error) {
      this.#log?.error({ err: toError(error) }, 'the end of a child failed')
    }
    await flushed()
    process.exit(code)
  }
}

function runnerOf(spec: ChildSpec, context: RunnerContext): Runner {
  switch (spec.role) {
    case 'worker':
      return new WorkerRunner(hooks => context.pgbus.createWorker(spec.entry, hooks), context)
    case 'consumer':
      return new WorkerRunner(hooks => context.pgbus.createConsumer(spec.entry, hooks), context)
    case 'maintenance':
      return new MaintenanceRunner(spec.parts, context)
  }
}

/** A channel that is closed has nobody behind it. */
function tell(message: ChildToSupervisor, sent: () => void = () => undefined): void {
  if (process.connected && process.send) process.send(message, undefined, undefined, () => sent())
  else sent()
}

/** Resolves when everything sent so far has left: messages leave in order. */
function flushed(): Promise<void> {
  return new Promise(resolve => {
    if (!process.connected || !process.send) return resolve()
    setTimeout(resolve, lastMessageMs).unref()
    const nothing: ChildToSupervisor = { t: 'held', claimed: [], running: [], done: [] }
    process.send(nothing, undefined, undefined, () => resolve())
  })
}
