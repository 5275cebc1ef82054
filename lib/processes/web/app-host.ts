import type { ResolvedConfig } from '../../config/options.ts'
import { ShutdownError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { withDeadline } from '../../core/sleep.ts'
import { Pgbus } from '../../pgbus.ts'
import type { WebWorkerStats } from '../messages.ts'
import { type App, loadApp } from './app-module.ts'
import { bindsOf } from './bind.ts'
import { Connections } from './connections.ts'
import { Listeners } from './listeners.ts'
import { VitalSigns } from './vital-signs.ts'

/** What the last steps of a drain may take after the application had its time. */
const reserveMs = 1_000

/** How long a connection without a request may stay when the whole host ends: a request may be on its way. */
const idleMs = 500
/** The same when another worker serves already. As long as Node keeps such connections anyway. */
const handoverIdleMs = 5_000
/** How long an event stream may go on that began while draining. */
const lateStreamsMs = 250

export interface AppHostOptions {
  config: ResolvedConfig
  /** Absolute path of the application module. */
  app: string
  /** Number of the worker; 0 in a process without workers. */
  index: number
  /** Generation of the worker. */
  phase?: number | undefined
}

/**
 * The application in this process, from import to the last byte: a worker of the cluster has one, and so has
 * a launcher without workers. It owns the process's pgbus instance.
 */
export class AppHost {
  readonly log: Logger
  readonly #config: ResolvedConfig
  readonly #path: string
  readonly #worker: { index: number; phase: number }
  readonly #pgbus: Pgbus
  readonly #vitalSigns = new VitalSigns()
  readonly #draining = new AbortController()
  #app: App | undefined
  #connections: Connections | undefined
  #listeners: Listeners | undefined
  #drained: Promise<void> | undefined

  constructor({ config, app, index, phase = 0 }: AppHostOptions) {
    this.#config = config
    this.#path = app
    this.#worker = { index, phase }
    this.#pgbus = new Pgbus(config, { worker: this.#worker })
    this.log = this.#pgbus.log.child({ component: 'web.worker', worker: index })
  }

  /** Open client connections. */
  get connections(): number {
    return this.#connections?.open ?? 0
  }

  /** What there is to say about this process now. */
  stats(): WebWorkerStats {
    const streams = this.#pgbus.streams.stats()
    const { joining, live, lagging } = streams?.connections ?? { joining: 0, live: 0, lagging: 0 }
    return {
      ...this.#vitalSigns.take(),
      requests: this.#connections?.requests ?? 0,
      inFlight: this.#connections?.inFlight ?? 0,
      connections: this.connections,
      sse: joining + live + lagging,
      source: streams?.source.mode ?? null,
    }
  }

  /** Imports the application and listens. Resolves to the URLs; to none when draining began meanwhile. */
  async boot(): Promise<string[]> {
    const app = await loadApp(this.#path, {
      pgbus: this.#pgbus,
      config: this.#config,
      worker: { ...this.#worker, pid: process.pid },
      log: this.log,
      signal: this.#draining.signal,
    })
    // A drain that began before this line does not know of the application: it ends here.
    if (this.#draining.signal.aborted) {
      await app.close()
      return []
    }
    this.#app = app
    this.#connections = new Connections(app.server)
    const { tls } = this.#config.web
    this.#listeners = new Listeners({ app, connections: this.#connections, tls })
    return await this.#listeners.open(bindsOf(this.#config.web))
  }

  /**
   * Lets running requests and streams end, closes the application, then the instance; within `budget`
   * milliseconds, after which connections are cut. An error in one step is logged and the next one runs.
   * `handover`: somebody else serves already, so clients get more time to let go of idle connections.
   */
  drain(budget: number, { handover = false }: { handover?: boolean } = {}): Promise<void> {
    this.#drained ??= this.#drain(budget, handover ? handoverIdleMs : idleMs)
    return this.#drained
  }

  async #drain(budget: number, idle: number): Promise<void> {
    const until = performance.now() + budget
    const left = () => Math.max(0, until - performance.now())
    this.#draining.abort(new ShutdownError('pgbus-web is stopping'))
    const app = this.#app
    if (app !== undefined) {
      const closed = this.#attempt('close the application', () => this.#closeApp(app, Math.min(idle, left())))
      if (!(await withDeadline(closed, Math.max(0, left() - reserveMs)))) {
        this.log.warn({ connections: this.connections }, 'the drain took too long; cutting what is left')
        this.#connections?.destroy()
        await withDeadline(closed, Math.max(reserveMs / 4, left() / 2))
      }
    }
    this.#vitalSigns.stop()
    const closed = this.#attempt('close pgbus', () => this.#pgbus.close())
    if (!(await withDeadline(closed, Math.max(reserveMs / 4, left()))))
      this.log.warn('pgbus did not close in time')
  }

  /**
   * An application that closes cuts idle connections, and a client that is about to use one sees an error. So that
   * comes only when clients have let go of them, or have had the time to.
   */
  async #closeApp(app: App, idle: number): Promise<void> {
    this.#listeners?.close()
    const quiet = this.#connections?.refuse(idle)
    const endStreams = () => this.#attempt('end event streams', () => this.#pgbus.streams.drain())
    // Event streams hold their connections until they are told to come back elsewhere; one may still begin on a
    // connection that was kept.
    const late = setInterval(() => void endStreams(), lateStreamsMs)
    try {
      await Promise.all([endStreams(), quiet])
      await app.close()
    } finally {
      clearInterval(late)
    }
  }

  async #attempt(what: string, step: () => Promise<unknown>): Promise<true> {
    try {
      await step()
    } catch (error) {
      this.log.error(
        { err: error },
        `failed to ${what}: ${error instanceof Error ? error.message : String(error)}`,
      )
    }
    return true
  }
}
