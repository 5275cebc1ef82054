import { fromPortable } from '../../config/portable.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import type { Worker } from '../../jobs/worker.ts'
import { Pgbus } from '../../pgbus.ts'
import type { BootMessage, ChildToSupervisor, SupervisorToChild } from '../messages.ts'
import { workerPoolSize } from './banner.ts'
import { DeliveryStatus } from './delivery-status.ts'
import { HeldReporter } from './held.ts'
import { findModules, importModules } from './imports.ts'

/** Beyond the supervisor's own deadline, for a child that has no supervisor any more. */
const overdueMs = 1_000

/** A last message has this long to leave. */
const lastMessageMs = 500

/** Runs the worker of one slot, from the boot message to the end of the process. */
export function runChild(): void {
  new Child().listen()
}

interface Ending {
  code: 0 | 1
  immediate: boolean
}

/**
 * `waiting → booting → running → ending`. The first reason to end decides the exit code; a later QUIT only makes
 * it quicker. Whatever the worker, its jobs or the database do, the process ends by itself.
 */
class Child {
  #worker: Worker | undefined
  #pgbus: Pgbus | undefined
  #log: Logger | undefined
  /** Longest time from the first reason to end to the end. */
  #limit = 0
  #ending: Promise<void> | undefined
  readonly #delivery = new DeliveryStatus(delivering => this.#worker?.setDelivering(delivering))
  readonly #held = new HeldReporter((difference, sent) => tell({ t: 'held', ...difference }, sent))

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
      case 'wake':
        this.#worker?.wake()
        return
      case 'healthy':
      case 'degraded':
        this.#delivery.heard(message.t === 'healthy')
        return
      default:
        message satisfies never
    }
  }

  async #start({ slot, entry, config: portable, configFile }: BootMessage): Promise<void> {
    process.title = `pgbus: ${slot} ${entry.queues.join(',')}`
    const config = await fromPortable(portable, configFile)
    this.#limit = config.shutdownTimeout
    if (this.#ending) return
    const pgbus = new Pgbus(config, { poolSize: workerPoolSize(config, entry.concurrency) })
    this.#pgbus = pgbus
    this.#log = pgbus.log.child({ component: 'child', slot })

    const { files, unmatched } = findModules(config.imports, configFile)
    for (const pattern of unmatched) this.#log.warn(`imports: "${pattern}" matches no module`)
    await importModules(files)
    tell({ t: 'loaded' })
    if (this.#ending) return

    const worker = pgbus.createWorker(entry, (taken, done) => this.#held.report(taken, done))
    this.#worker = worker
    worker.setDelivering(this.#delivery.delivering)
    // LISTEN and the first claim go on at the same time: what falls between them is found by the wake that
    // follows LISTEN.
    tell({ t: 'listen', tables: worker.tables })
    await worker.start()
    await worker.onFirstPass
    if (!this.#ending) tell({ t: 'ready' })
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
    if (immediate && this.#ending) void this.#worker?.stop({ immediate: true })
    this.#ending ??= this.#finish(code, immediate)
  }

  async #finish(code: 0 | 1, immediate: boolean): Promise<void> {
    // Set first: it holds when the steps below throw, hang, or are overtaken by an exit of somebody else.
    process.exitCode = code
    setTimeout(() => process.exit(1), this.#limit + overdueMs).unref()
    try {
      await this.#worker?.stop({ immediate })
      await this.#pgbus?.close()
    } catch (error) {
      this.#log?.error({ err: toError(error) }, 'the end of a worker failed')
    }
    await flushed()
    process.exit(code)
  }
}

/** A channel that is closed has nobody behind it. */
function tell(message: ChildToSupervisor, sent: () => void = () => undefined): void {
  if (!process.connected || !process.send) return
  process.send(message, undefined, undefined, () => sent())
}

/** Resolves when everything sent so far has left: messages leave in order. */
function flushed(): Promise<void> {
  return new Promise(resolve => {
    if (!process.connected || !process.send) return resolve()
    setTimeout(resolve, lastMessageMs).unref()
    process.send({ t: 'held', taken: [], done: [] } satisfies ChildToSupervisor, undefined, undefined, () =>
      resolve(),
    )
  })
}
