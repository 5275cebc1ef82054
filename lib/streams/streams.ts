import type { Cors, ResolvedConfig } from '../config/options.ts'
import { ClosedError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import type { Connector } from '../db/connector.ts'
import type { Queryable } from '../db/database.ts'
import { Database } from '../db/database.ts'
import { Broadcaster } from './broadcast.ts'
import type { BroadcastJobArgs } from './broadcast-job.ts'
import { Filters } from './filters.ts'
import { createWakeSource } from './hub/choose.ts'
import { type StreamName, streamName } from './name.ts'
import { PresenceTracker, presenceEvent } from './presence-tracker.ts'
import { Renderers } from './renderers.ts'
import { SharedStore } from './shared-store.ts'
import type { StreamStore } from './store.ts'
import { Stream, type StreamContext, type StreamOptions } from './stream.ts'
import { type DrainOptions, type DrainResult, Streamer, type StreamerStats } from './streamer.ts'
import { missingSecret, type SignedName, signName, type TokenOptions, verifyName } from './token.ts'
import type { WakeSource } from './wake-source.ts'

export interface StreamsOptions {
  config: ResolvedConfig
  connector: Connector
  /** The root logger of the instance. */
  log: Logger
  report: Report
  /** Hands a broadcast to the job workers. */
  enqueue(args: BroadcastJobArgs, tx: Queryable | undefined): Promise<unknown>
  /** Where wakes come from. Default: the hub of this host, else a LISTEN connection of this process. */
  createSource?: (() => Promise<WakeSource>) | undefined
  /** Which worker of a web host this process is; the hub's log names it. */
  worker?: { index: number; phase: number } | undefined
}

const defaultPath = '/pgbus/streams'

/**
 * The streams of one instance. The pool is opened by the first statement, the streamer by the first
 * connection; {@link Streams.close} ends both.
 */
export class Streams {
  readonly #options: StreamsOptions
  readonly #log: Logger
  readonly #context: StreamContext
  /** Who sees broadcasts made with `visibleTo`. */
  readonly filters: Filters
  /** What job workers make the HTML of `broadcastLater` with. */
  readonly renderers = new Renderers()
  #db: Database | undefined
  #store: StreamStore | undefined
  #streamer: Promise<Streamer> | undefined
  /** The same, once it is there. */
  #made: Streamer | undefined
  #mountPath: string | undefined
  #closed: Promise<void> | undefined

  constructor(options: StreamsOptions) {
    this.#options = options
    this.#log = options.log.child({ component: 'streams' })
    this.filters = new Filters(this.#log)
    const { streams } = options.config
    // Looked up at each use, so that a handle of a closed instance says so.
    const store = () => this.store
    this.#context = {
      store,
      db: () => this.#pool,
      broadcaster: new Broadcaster({ store, config: streams, log: this.#log, report: options.report }),
      enqueue: options.enqueue,
      sign: (stream, own) => signName(stream, streams.secret, own),
      basePath: () => this.basePath,
    }
  }

  /** Storage of durable broadcasts, on a pool of its own. */
  get store(): StreamStore {
    this.#assertOpen()
    this.#store ??= new SharedStore(this.#pool)
    return this.#store
  }

  /** Path of the endpoint as browsers see it: `streams.path`, else where it was registered. */
  get basePath(): string {
    const path = this.#options.config.streams.path ?? this.#mountPath ?? defaultPath
    return path.replace(/\/+$/, '')
  }

  /** Connections that may be open at once. */
  get maxConnections(): number {
    return this.#options.config.streams.maxConnections
  }

  /** Pages of which other origins may follow streams. */
  get cors(): false | Cors {
    return this.#options.config.streams.cors
  }

  /** Requests are checked, and nothing is opened for them. */
  get testMode(): boolean {
    return this.#options.config.streams.testMode
  }

  get isClosed(): boolean {
    return this.#closed !== undefined
  }

  stream(name: StreamName, options: StreamOptions = {}): Stream {
    return new Stream(streamName(name), options, this.#context)
  }

  /**
   * A signed stream name.
   * @throws MissingSecretError
   */
  token(name: StreamName, options?: TokenOptions): string {
    return this.#context.sign(streamName(name), options)
  }

  /** @throws InvalidSignedNameError, MissingSecretError */
  verify(token: string): SignedName {
    return verifyName(token, this.#options.config.streams.secret)
  }

  /** Highest ids of several streams, in one statement. */
  async watermarks(names: readonly StreamName[]): Promise<number[]> {
    return await this.store.watermarks(names.map(streamName))
  }

  /**
   * Called by whoever serves the endpoint.
   * @throws MissingSecretError when no token could ever be verified.
   * @internal
   */
  mount(path: string): void {
    if (this.#options.config.streams.secret.length === 0) throw missingSecret()
    this.#mountPath = path
  }

  /** The open connections of this process. Made once, by whoever asks first. */
  streamer(): Promise<Streamer> {
    this.#assertOpen()
    if (this.#streamer === undefined) {
      const making = this.#makeStreamer()
      this.#streamer = making
      making.then(
        made => {
          if (this.#streamer === making) this.#made = made
        },
        // Told to whoever asked for it.
        () => undefined,
      )
    }
    return this.#streamer
  }

  /** The state of the open connections of this process; undefined while nobody has asked for a stream. */
  stats(): StreamerStats | undefined {
    return this.#made?.stats()
  }

  /**
   * Ends every open connection so that its client comes back elsewhere. What connects later gets a new
   * streamer, so one application can end while another goes on.
   */
  async drain(options?: DrainOptions): Promise<DrainResult> {
    const streamer = this.#streamer
    this.#streamer = undefined
    this.#made = undefined
    // One that could not be made has told whoever asked for it.
    const made = await streamer?.catch(() => undefined)
    return made ? await made.drain(options) : { closed: 0, destroyed: 0 }
  }

  /** Drains, then closes the pool. Later calls wait for the same end. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    try {
      // What waits for its window was promised to be sent.
      await this.#context.broadcaster.flush()
      await this.drain()
    } finally {
      await this.#db?.close()
    }
  }

  async #makeStreamer(): Promise<Streamer> {
    const { config, connector, log, report, createSource, worker } = this.#options
    const make =
      createSource ??
      (() => createWakeSource({ config, connector, log, report, hubSocket: config.web.hubSocket, worker }))
    const store = this.store
    try {
      const { filters } = this
      return new Streamer({
        config: config.streams,
        store,
        filters,
        presence: this.#trackPresence(),
        source: await make(),
        log: this.#log,
        report,
      })
    } catch (error) {
      this.#streamer = undefined
      throw error
    }
  }

  #trackPresence(): PresenceTracker {
    const { presence, heartbeatInterval } = this.#options.config.streams
    return new PresenceTracker({
      db: () => this.#pool,
      config: presence,
      broadcast: (stream, payload) => this.stream(stream).broadcast(payload, { event: presenceEvent }),
      log: this.#log,
      touchInterval: heartbeatInterval,
    })
  }

  get #pool(): Database {
    if (this.#db) return this.#db
    this.#assertOpen()
    const { config, connector } = this.#options
    this.#db = new Database({
      connector,
      connect: {
        target: 'streamsPool',
        applicationName: `${config.streams.applicationName}_${process.pid}`,
        statementTimeout: config.readTimeout ?? 0,
      },
      size: config.streams.pool.size,
      sizeKey: 'streams.pool.size',
      timeout: config.streams.pool.timeout,
      readTimeout: config.readTimeout,
      requirePrimary: config.requirePrimary,
      log: this.#log,
    })
    return this.#db
  }

  #assertOpen(): void {
    if (this.#closed)
      throw new ClosedError('this pgbus instance is closed; make a new one with createPgbus()')
  }
}
