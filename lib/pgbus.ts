import { isDeepStrictEqual } from 'node:util'
import { type ConsumerEntry, resolveConsumer } from './config/consumers.ts'
import { type LoadConfigOptions, loadConfig } from './config/load.ts'
import type { PgbusConfig, ResolvedConfig, WorkerEntry } from './config/options.ts'
import { assertValid, resolveLayers } from './config/resolve.ts'
import { resolveWorker } from './config/workers.ts'
import { openInstances } from './core/context.ts'
import type { Duration } from './core/duration.ts'
import { ClosedError, type ConfigIssue } from './core/errors.ts'
import { createLogger, type Logger } from './core/log.ts'
import { createReport, type Report } from './core/report.ts'
import { ConnectionBreaker } from './db/connection-breaker.ts'
import { Connector } from './db/connector.ts'
import { Database, type Queryable } from './db/database.ts'
import { type MigrationStatus, migrate, migrationStatus } from './db/migrate.ts'
import { checkApart, handlersOf, uncovered, workerOf } from './events/consumers.ts'
import { definedHandlers } from './events/define.ts'
import { EventWork } from './events/event-work.ts'
import { Events } from './events/events.ts'
import { Idempotency } from './events/idempotency.ts'
import {
  type EventItem,
  Publisher,
  type PublishOptions,
  type PublishResult,
  prepareEvent,
} from './events/publish.ts'
import { Health, type HealthOptions } from './health/health.ts'
import { HealthProbe } from './health/probe.ts'
import type { HealthVerdict } from './health/verdict.ts'
import { DeadLetters } from './jobs/dead-letters.ts'
import type { Job } from './jobs/define.ts'
import { type EnqueueItem, type EnqueueOptions, type EnqueueResult, Enqueuer } from './jobs/enqueue.ts'
import { InProcessWorker } from './jobs/in-process-worker.ts'
import { type CancelOptions, type CancelResult, Jobs } from './jobs/jobs.ts'
import { NotifyHub } from './jobs/notify-hub.ts'
import { type RunResult, type RunUntilEmptyOptions, runUntilEmpty } from './jobs/run-until-empty.ts'
import { Worker, type WorkerOptions } from './jobs/worker.ts'
import { Locks } from './limits/locks.ts'
import { Outbox } from './outbox/outbox.ts'
import { Queues } from './pgmq/queues.ts'
import { Recurring } from './recurring/recurring.ts'
import { broadcastJobName } from './streams/broadcast-job.ts'
import type { Filters } from './streams/filters.ts'
import type { StreamName } from './streams/name.ts'
import type { Renderers } from './streams/renderers.ts'
import type { Stream, StreamOptions } from './streams/stream.ts'
import { Streams } from './streams/streams.ts'

/** Connections of a process that runs no worker: a web server, a script. */
const defaultPoolSize = 5

/** The schema of one instance's database. */
export interface Schema {
  status(): Promise<MigrationStatus>
  /** Applies what is pending, under a lock; resolves to the names applied. */
  migrate(options?: { dryRun?: boolean; log?: (line: string) => void }): Promise<string[]>
}

/** What a host process knows about an instance that it makes. */
interface PgbusInternals {
  /** Connections of the job pool, unless `pool.size` says otherwise. */
  poolSize?: number | undefined
  /** Which worker of a web host this process is. */
  worker?: { index: number; phase: number } | undefined
}

/** What whoever runs a worker wants to be told, and sets. */
type WorkerHooks = Pick<WorkerOptions, 'onHeld' | 'onTables' | 'onIdle' | 'limit'>

/**
 * One pgbus on one database. Nothing connects before it is needed; {@link Pgbus.close} ends every connection.
 * Made by {@link createPgbus} or {@link loadPgbus}.
 */
export class Pgbus {
  readonly config: ResolvedConfig
  readonly log: Logger
  /** @internal */
  readonly report: Report
  /** @internal */
  readonly connector: Connector
  readonly schema: Schema
  readonly #internals: PgbusInternals
  readonly #breaker: ConnectionBreaker
  #db: Database | undefined
  #queues: Queues | undefined
  #enqueuer: Enqueuer | undefined
  #publisher: Publisher | undefined
  #outbox: Outbox | undefined
  #streams: Streams | undefined
  #hub: NotifyHub | undefined
  #health: Health | undefined
  #probe: HealthProbe | undefined
  readonly #workers = new Set<InProcessWorker>()
  #closing: Promise<void> | undefined
  #closed = false

  /** @internal */
  constructor(config: ResolvedConfig, options: PgbusInternals = {}) {
    this.config = config
    this.#internals = options
    this.log = createLogger(config.log)
    this.report = createReport(this.log, config.errorReporters)
    this.connector = new Connector(config)
    this.#breaker = new ConnectionBreaker({ log: this.log.child({ component: 'database' }) })
    const schemaOptions = { connector: this.connector, config }
    this.schema = {
      status: () => migrationStatus(schemaOptions),
      migrate: (own = {}) => migrate({ ...schemaOptions, ...own }),
    }
    openInstances.add(this)
  }

  /**
   * The job pool, opened at first use.
   * @internal
   */
  get db(): Database {
    this.#assertOpen()
    this.#db ??= new Database({
      connector: this.connector,
      connect: {
        target: 'base',
        applicationName: this.config.connection.applicationName,
        statementTimeout: this.config.readTimeout ?? 0,
      },
      size: this.config.pool.size ?? this.#internals.poolSize ?? defaultPoolSize,
      sizeKey: 'pool.size',
      timeout: this.config.pool.timeout,
      readTimeout: this.config.readTimeout,
      requirePrimary: this.config.requirePrimary,
      log: this.log.child({ component: 'database' }),
    })
    return this.#db
  }

  /** Queues: make, drop, purge, list, measure. */
  get queues(): Queues {
    this.#queues ??= new Queues({
      db: this.db,
      config: this.config,
      log: this.log.child({ component: 'queues' }),
    })
    return this.#queues
  }

  /** What was given up: list, look at, retry, discard. */
  get deadLetters(): DeadLetters {
    return new DeadLetters({ db: this.db, queues: this.queues, config: this.config })
  }

  /** Jobs that wait or run: list, look at, cancel. */
  get jobs(): Jobs {
    return new Jobs({ db: this.db, queues: this.queues, config: this.config })
  }

  /** Locks of unique jobs: list, discard. */
  get locks(): Locks {
    return new Locks({ db: this.db, config: this.config })
  }

  /** The event bus: handlers of this process, and where the database routes events. */
  get events(): Events {
    return new Events({
      db: this.db,
      queues: this.queues,
      config: this.config,
      log: this.log.child({ component: 'events' }),
    })
  }

  /** Messages on their way to queues and the event bus; a host with `outbox.enabled` publishes them. */
  get outbox(): Outbox {
    this.#outbox ??= new Outbox({
      db: this.db,
      config: this.config,
      log: this.log.child({ component: 'outbox' }),
      prepareJob: (job, args, options) => this.#enqueuing.prepare(job, args, options),
      prepareEvent: (routingKey, payload, options) => prepareEvent('outbox', routingKey, payload, options),
    })
    return this.#outbox
  }

  /** Recurring tasks: make, change, list, enable, run now. A host with the role `scheduler` enqueues them. */
  get recurring(): Recurring {
    return new Recurring({
      db: this.db,
      config: this.config,
      enqueue: (job, args, options) => this.enqueue(job, args, options),
    })
  }

  /**
   * Looks at queues and processes of the whole cluster and says how it is: `OK`, `DEGRADED` or `STALLED`, and why.
   * Takes `health.timeout` at most, on a connection of its own.
   * @throws HealthTimeoutError; SchemaNotReadyError; the driver's error: then nothing is known, least of all that all
   * is well.
   */
  async health(options?: HealthOptions): Promise<HealthVerdict> {
    return this.#checks.check(options)
  }

  /**
   * What the plugins answer to probes.
   * @internal
   */
  get healthProbe(): HealthProbe {
    this.#probe ??= new HealthProbe({
      check: () => this.health(),
      config: this.config,
      log: this.log.child({ component: 'health' }),
      report: this.report,
    })
    return this.#probe
  }

  /** Streams of this process: the endpoint's side, and signed names. Broadcast with {@link Pgbus.stream}. */
  get streams(): Streams {
    this.#assertOpen()
    this.#streams ??= new Streams({
      config: this.config,
      connector: this.connector,
      log: this.log,
      report: this.report,
      enqueue: (args, tx) =>
        this.enqueue(broadcastJobName, args, {
          tx,
          queue: this.config.streams.broadcastQueue ?? this.config.defaultQueue,
        }),
      worker: this.#internals.worker,
    })
    return this.#streams
  }

  /** Filters of broadcasts that are made with `visibleTo`. */
  get filters(): Filters {
    return this.streams.filters
  }

  /** Renderers of `stream.broadcastLater`. */
  get renderers(): Renderers {
    return this.streams.renderers
  }

  /** A stream by name. */
  stream(name: StreamName, options?: StreamOptions): Stream {
    return this.streams.stream(name, options)
  }

  /**
   * Puts one job on a queue. Resolves when its statement committed (with `tx`: when it was written into the
   * caller's transaction).
   * @throws SerializationError before any SQL when the arguments cannot be stored.
   */
  enqueue<A>(job: Job<A> | string, args: A, options?: EnqueueOptions): Promise<EnqueueResult> {
    return this.#enqueuing.enqueue(job, args, options)
  }

  /** Puts many jobs on their queues in one transaction: all or none. Results are in list order. */
  enqueueMany(
    items: readonly EnqueueItem[],
    options?: { tx?: Queryable | undefined },
  ): Promise<EnqueueResult[]> {
    return this.#enqueuing.enqueueMany(items, options)
  }

  /**
   * Publishes an event: each queue with a handler that its key matches gets a copy, all of them or none. Resolves when
   * that is committed (with `tx`: when it was written into the caller's transaction). Whoever is bound later does not
   * get it.
   * @throws TypeError for a key or an option that is wrong; SerializationError before any SQL; UnroutableEventError.
   */
  publish(routingKey: string, payload: unknown, options?: PublishOptions): Promise<PublishResult> {
    return this.#publishing.publish(routingKey, payload, options)
  }

  /** Publishes an event that is delivered later; see {@link Pgbus.publish}. */
  async publishLater(
    routingKey: string,
    payload: unknown,
    options: PublishOptions & { delay: Duration | Date },
  ): Promise<PublishResult> {
    if (options?.delay === undefined) throw new TypeError('publishLater needs a delay')
    return this.#publishing.publish(routingKey, payload, options)
  }

  /** Publishes many events in one transaction: all or none. Results are in list order. */
  publishMany(
    items: readonly EventItem[],
    options?: { tx?: Queryable | undefined },
  ): Promise<PublishResult[]> {
    return this.#publishing.publishMany(items, options)
  }

  /** Ends a job of a queue, whether it waits or runs; see {@link Jobs.cancel}. */
  cancel(queue: string, msgId: number, options?: CancelOptions): Promise<CancelResult> {
    return this.jobs.cancel(queue, msgId, options)
  }

  /**
   * A worker of this process; it begins with `start()`, and the end of the instance stops it.
   * @throws ConfigurationError that names everything that is wrong with the entry.
   */
  worker(entry: Omit<WorkerEntry, 'processes'>): InProcessWorker {
    if ('processes' in entry)
      throw new TypeError('a worker in process has no "processes"; start a second one, or use pgbus start')
    return this.#runHere(hooks => this.createWorker(entry, hooks))
  }

  /**
   * A consumer of this process, for the event handlers that it defines; it begins with `start()`, and the end of the
   * instance stops it.
   * @throws TypeError naming what is wrong with the entry; ConfigurationError.
   */
  consumer(entry: ConsumerEntry): InProcessWorker {
    return this.#runHere(hooks => this.createConsumer(entry, hooks))
  }

  #runHere(create: (hooks: Pick<WorkerHooks, 'onTables'>) => Worker): InProcessWorker {
    if (this.#closing) throw closedError()
    const worker = new InProcessWorker({
      create,
      hub: () => {
        if (this.config.notify.enabled) this.#hub ??= NotifyHub.open(this)
        return this.#hub
      },
      onStopped: stopped => this.#workers.delete(stopped),
    })
    this.#workers.add(worker)
    return worker
  }

  /**
   * Runs, in this process, what is due now and what becomes due while it runs, then resolves. Made for tests and
   * scripts: a job that is to run later, a retry for example, is not waited for.
   * @throws ConfigurationError; SchemaNotReadyError; the reason of `signal`, after what runs has ended.
   */
  runUntilEmpty(options: RunUntilEmptyOptions): Promise<RunResult> {
    return runUntilEmpty((entry, hooks) => this.createWorker(entry, hooks), options)
  }

  /** @internal */
  createWorker(entry: WorkerEntry, hooks: WorkerHooks = {}): Worker {
    const issues: ConfigIssue[] = []
    const resolved = resolveWorker(entry, this.config, issues)
    assertValid(issues)
    checkApart(definedHandlers(), [resolved])
    return new Worker({ ...this.#workerParts('worker'), entry: resolved, ...hooks })
  }

  /** @internal */
  createConsumer(entry: ConsumerEntry, hooks: WorkerHooks = {}): Worker {
    const consumer = resolveConsumer(entry)
    const handlers = definedHandlers()
    const parts = this.#workerParts('consumer')
    const { config, db, log } = parts
    const worker = workerOf(consumer, handlers, config)
    if (worker.queues.length === 0) {
      log.warn({ topics: consumer.topics }, 'no handler wants what this consumer gets; it has nothing to do')
    }
    const { size } = config.pool
    const takesConnections = handlersOf(consumer, handlers).some(
      ({ idempotent }) => idempotent === 'transaction',
    )
    if (takesConnections && size !== null && size <= consumer.concurrency) {
      log.warn(
        `handlers in a transaction hold ${consumer.concurrency} connections, and pool.size is ${size}; raise it, or nothing is left for what they call`,
      )
    }
    const [first] = config.consumers
    // One process of a host tells, not all.
    if (first === undefined || isDeepStrictEqual(first, consumer)) {
      for (const { name, on } of uncovered(handlers, { consumers: [consumer, ...config.consumers] })) {
        log.warn({ handler: name, on }, `no consumer reads handler "${name}" (${on.join(', ')})`)
      }
    }
    const idempotency = new Idempotency({ db, log })
    const setup = () => this.events.setup()
    const work = new EventWork({ config, db, log, pgbus: this, idempotency, setup })
    return new Worker({ ...parts, entry: worker, work, ...hooks })
  }

  #workerParts(component: string) {
    return {
      db: this.db,
      connector: this.connector,
      breaker: this.#breaker,
      queues: this.queues,
      config: this.config,
      log: this.log.child({ component }),
      report: this.report,
      pgbus: this,
    }
  }

  /** Ends streams and connections; resolves when they are closed. Calling it again waits for the same end. */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(): Promise<void> {
    // Their jobs may still enqueue and broadcast, and their last statements need the pool.
    if (this.#workers.size > 0) await Promise.all([...this.#workers].map(worker => worker.stop()))
    this.#closed = true
    openInstances.delete(this)
    await this.#hub?.close()
    await this.#health?.close()
    // Streams first: their last frames are read through connections of their own.
    await this.#streams?.close()
    await this.#db?.close()
  }

  get #checks(): Health {
    this.#assertOpen()
    this.#health ??= new Health({
      config: this.config,
      connector: this.connector,
      log: this.log.child({ component: 'health' }),
    })
    return this.#health
  }

  get #enqueuing(): Enqueuer {
    this.#assertOpen()
    this.#enqueuer ??= new Enqueuer({
      db: this.db,
      queues: this.queues,
      config: this.config,
      log: this.log.child({ component: 'enqueue' }),
    })
    return this.#enqueuer
  }

  get #publishing(): Publisher {
    this.#assertOpen()
    this.#publisher ??= new Publisher({ db: this.db })
    return this.#publisher
  }

  #assertOpen(): void {
    if (this.#closed) throw closedError()
  }
}

/**
 * Makes an instance from options, `PGBUS_*` variables and defaults; reads no file and opens no connection.
 * @throws ConfigurationError that names everything that is wrong.
 */
export function createPgbus(options: PgbusConfig = {}): Pgbus {
  const { config, issues, warnings } = resolveLayers({ overrides: options, env: process.env, file: {} })
  assertValid(issues)
  return withWarnings(new Pgbus(config), warnings)
}

/** Loads the configuration file as the commands do, then makes an instance. */
export async function loadPgbus(options: LoadConfigOptions = {}): Promise<Pgbus> {
  const { config, warnings } = await loadConfig(options)
  return withWarnings(new Pgbus(config), warnings)
}

function closedError(): ClosedError {
  return new ClosedError('this pgbus instance is closed; make a new one with createPgbus()')
}

function withWarnings(pgbus: Pgbus, warnings: readonly ConfigIssue[]): Pgbus {
  for (const { path, rule } of warnings) pgbus.log.warn({ key: path }, `configuration: ${path} ${rule}`)
  return pgbus
}
