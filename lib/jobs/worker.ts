import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { type Duration, parseDuration } from '../core/duration.ts'
import {
  ConfigurationError,
  InvalidTransitionError,
  SchemaNotReadyError,
  ShutdownError,
} from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { withDeadline, within } from '../core/sleep.ts'
import type { ConnectionBreaker } from '../db/connection-breaker.ts'
import type { Connector } from '../db/connector.ts'
import type { Database } from '../db/database.ts'
import type { Pgbus } from '../pgbus.ts'
import { logicalOf } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import type { Cancelled } from '../pgmq/statements.ts'
import { abandon } from './abandon.ts'
import { Claimer } from './claim.ts'
import { ClaimLoop } from './claim-loop.ts'
import { ConsumerPriority } from './consumer-priority.ts'
import { ExclusiveQueues } from './exclusive-queues.ts'
import { Executor } from './executor.ts'
import { Heartbeat } from './heartbeat.ts'
import { HeldTokens, type OnHeld } from './held-tokens.ts'
import { JobWork } from './job-work.ts'
import { type Lease, Leases } from './lease.ts'
import { Outcomes } from './outcome.ts'
import { QueueBreaker } from './queue-breaker.ts'
import { type JobCounts, RunningJobs } from './running-jobs.ts'
import type { Work } from './work.ts'

export type WorkerState = 'starting' | 'running' | 'paused' | 'draining' | 'stopped'

export interface WorkerOptions {
  db: Database
  connector: Connector
  breaker: ConnectionBreaker
  queues: Queues
  config: ResolvedConfig
  log: Logger
  report: Report
  entry: ResolvedWorkerEntry
  pgbus: Pgbus
  /** What it works on. Default: jobs. */
  work?: Work | undefined
  onHeld?: OnHeld | undefined
  /** Told when the set of tables that it reads has changed. */
  onTables?: ((tables: string[]) => void) | undefined
  /** Claims at most so many messages in all. */
  limit?: number | undefined
  /** Told after each claim that found nothing, or may find nothing more, while no job is in progress. */
  onIdle?: (() => void) | undefined
}

export interface WorkerStats extends JobCounts {
  state: WorkerState
  inFlight: number
  leasesLost: number
  /** Logical names; those that patterns found are among them. */
  queues: readonly string[]
  /** Tables that did not exist at the last look. */
  missing: readonly string[]
  /** Queues that were paused at the last look. */
  paused: readonly string[]
  /** Queues that another worker reads alone. */
  locked: readonly string[]
  /** A preferred worker reads one of the queues. */
  yielding: boolean
  delivering: boolean
  /** Handlers that run on although their timeout is over. */
  stuck: number
  /** The job that runs longest, and for how many ms; null: none. */
  oldest: { queue: string; msgId: number; ms: number } | null
}

const abortGraceMs = 3_000
const immediateGraceMs = 1_000
/** What a supervisor leaves between the abort and its own deadline. */
const shutdownMarginMs = 4_000
/** Last statements of a worker that gives up. */
const lastWordsMs = 1_000

/**
 * Claims jobs from its queues and runs them, `concurrency` at a time.
 *
 * `starting` → `running` ⇄ `paused` → `draining` → `stopped`. Only `running` claims.
 */
export class Worker {
  /** Resolves when the first claim came back. */
  readonly onFirstPass: Promise<void>
  readonly #options: WorkerOptions
  readonly #work: Work
  readonly #claimer: Claimer
  readonly #exclusive: ExclusiveQueues | undefined
  readonly #priority: ConsumerPriority
  readonly #leases: Leases
  readonly #outcomes: Outcomes
  readonly #executor: Executor
  readonly #heartbeat: Heartbeat
  readonly #held: HeldTokens
  readonly #jobs: RunningJobs
  readonly #loop: ClaimLoop
  readonly #hurry = new AbortController()
  readonly #draining = new AbortController()
  #state: WorkerState = 'starting'
  #booting: Promise<void> | undefined
  #stopping: Promise<void> | undefined
  #looping: Promise<void> = Promise.resolve()
  #queuesReady = false

  /** @internal */
  constructor(options: WorkerOptions) {
    const { db, connector, breaker, queues, config, log, report, pgbus, entry } = options
    this.#options = options
    this.#work = options.work ?? new JobWork({ config, queues, log, report, pgbus })
    this.#held = new HeldTokens({ onHeld: options.onHeld, report })
    this.#leases = new Leases({ db, visibilityTimeout: config.visibilityTimeout, log })
    if (entry.singleActiveConsumer) {
      const { readTimeout } = config
      const onLost = (names: readonly string[]) => this.#loseQueues(names)
      this.#exclusive = new ExclusiveQueues({ connector, readTimeout, log, onLost })
    }
    this.#claimer = new Claimer({
      db,
      queues,
      breaker,
      config,
      entry,
      work: this.#work,
      log,
      report,
      exclusive: this.#exclusive,
      onTables: tables => options.onTables?.(tables),
      prepare: () => this.#ensureQueues(),
    })
    this.#priority = new ConsumerPriority({
      db,
      log,
      priority: entry.consumerPriority,
      queues: entry.queues,
    })
    this.#outcomes = new Outcomes({
      db,
      queues,
      config,
      log,
      report,
      onRelease: lease => this.#held.done([lease]),
    })
    this.#executor = new Executor({
      db,
      config,
      log,
      report,
      work: this.#work,
      leases: this.#leases,
      outcomes: this.#outcomes,
      isStopping: () => this.#isEnding,
    })
    this.#jobs = new RunningJobs({
      config,
      executor: this.#executor,
      leases: this.#leases,
      held: this.#held,
      queueBreaker: new QueueBreaker({ db, config: config.circuitBreaker, log, report }),
      report,
      onDue: () => this.#loop.interrupt(),
      inGroups: entry.groupMode !== null,
    })
    this.#loop = new ClaimLoop({
      config,
      entry,
      claimer: this.#claimer,
      jobs: this.#jobs,
      leases: this.#leases,
      outcomes: this.#outcomes,
      held: this.#held,
      priority: this.#priority,
      report,
      state: () => this.#phase,
      ending: this.#draining.signal,
      limit: options.limit,
      onIdle: options.onIdle,
    })
    this.onFirstPass = this.#loop.onFirstPass
    this.#heartbeat = new Heartbeat({
      db,
      log,
      onBeat: id => void this.#priority.check(id),
      loopAge: () => this.loopAge,
    })
  }

  /** Physical tables, those found by patterns included. */
  get tables(): string[] {
    return this.#claimer.list.tables
  }

  /** It reads queues by pattern, so it wants to know of new ones. */
  get readsPatterns(): boolean {
    return this.#claimer.list.hasPatterns
  }

  /**
   * Makes sure that its queues exist, then claims. A database that is away only delays that.
   * @throws SchemaNotReadyError; InvalidTransitionError when it was started or stopped before.
   */
  start(): Promise<void> {
    if (this.#state !== 'starting' || this.#booting) {
      throw new InvalidTransitionError(`a worker starts once; this one is ${this.#state}`)
    }
    this.#booting = this.#boot()
    return this.#booting
  }

  /**
   * Drains: claims nothing more and lets running jobs finish for `timeout` (default `drainTimeout`), then aborts
   * their signals, then gives back what is left. Resolves when all of that is written. `immediate` aborts at once,
   * also when the worker is draining already.
   */
  stop(options: { timeout?: Duration | undefined; immediate?: boolean | undefined } = {}): Promise<void> {
    const { drainTimeout, shutdownTimeout } = this.#options.config
    const timeout = options.timeout === undefined ? undefined : parseDuration(options.timeout)
    if (options.timeout !== undefined && timeout === undefined) {
      throw new TypeError(`stop: timeout must be a duration such as "30s", got ${String(options.timeout)}`)
    }
    if (options.immediate) this.#hurry.abort()
    this.#stopping ??= this.#stop(
      timeout ?? Math.max(0, Math.min(drainTimeout, shutdownTimeout - shutdownMarginMs)),
    )
    return this.#stopping
  }

  /**
   * Claims nothing until {@link resume}; running jobs go on.
   * @throws InvalidTransitionError unless it runs.
   */
  pause(): void {
    this.#change('running', 'paused')
  }

  /** @throws InvalidTransitionError unless it is paused. */
  resume(): void {
    this.#change('paused', 'running')
    this.wake()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  /** Something was inserted: look now. */
  wake(): void {
    this.#loop.wake()
  }

  /** A queue was made: resolve the patterns anew. */
  refresh(): void {
    if (!this.#claimer.list.hasPatterns) return
    this.#claimer.refresh()
    this.wake()
  }

  /** A message was cancelled; if it runs here its handler is told. Without being told, a renewal notices. */
  cancel(cancelled: Cancelled): void {
    if (!this.#leases.cancel(cancelled)) this.#loop.cancel(cancelled)
  }

  /** Whether notifications arrive. Without them the queues are polled. */
  setDelivering(on: boolean): void {
    this.#loop.isDelivering = on
  }

  stats(): WorkerStats {
    const [oldest] = this.#leases.held
    return {
      state: this.#state,
      inFlight: this.#jobs.size,
      ...this.#jobs.counts,
      leasesLost: this.#leases.lostCount,
      queues: this.#claimer.list.names,
      missing: this.#claimer.missing,
      paused: this.#claimer.paused,
      locked: this.#claimer.locked,
      yielding: this.#priority.yielding,
      delivering: this.#loop.isDelivering,
      stuck: this.#executor.stuck,
      oldest: oldest ? this.#ageOf(oldest) : null,
    }
  }

  /** Ms since the loop last went round; null: it does not run. */
  get loopAge(): number | null {
    return this.#isEnding ? null : this.#loop.age
  }

  #ageOf({ delivery: { physical, msgId, claimedAt } }: Lease): WorkerStats['oldest'] {
    const queue = logicalOf(this.#options.config, physical)
    return { queue, msgId, ms: Math.round(performance.now() - claimedAt) }
  }

  async #boot(): Promise<void> {
    const { report, log, entry } = this.#options
    try {
      await this.#ensureQueues()
    } catch (error) {
      if (
        error instanceof SchemaNotReadyError ||
        error instanceof ConfigurationError ||
        error instanceof TypeError
      ) {
        this.#state = 'stopped'
        throw error
      }
      report(error, { action: 'bootstrap_queues', queues: entry.queues })
    }
    // Stopped meanwhile.
    if (this.#state !== 'starting') return
    this.#state = 'running'
    const { kind } = this.#work
    log.info({ queues: entry.queues, concurrency: entry.concurrency }, `${kind} started`)
    this.#looping = this.#loop.run()
    // After the loop, whose age it tells.
    void this.#heartbeat.start(kind, () => this.#metadata())
  }

  async #ensureQueues(): Promise<void> {
    if (this.#queuesReady) return
    await this.#work.prepare(this.#claimer.list.named)
    // Behind a pooler that shares sessions it must not start at all.
    await this.#exclusive?.acquire(this.#claimer.list.names).catch(error => {
      if (error instanceof ConfigurationError) throw error
    })
    this.#queuesReady = true
  }

  /** Others may read these queues from now on, and with them what runs here. */
  #loseQueues(names: readonly string[]): void {
    for (const lease of this.#leases.held) {
      const queue = logicalOf(this.#options.config, lease.delivery.physical)
      if (names.includes(queue)) lease.lose('is of a queue that this worker no longer reads alone')
    }
    this.#loop.interrupt()
  }

  async #stop(drainMs: number): Promise<void> {
    const { log } = this.#options
    if (this.#state === 'stopped' || (this.#state === 'starting' && !this.#booting)) {
      this.#state = 'stopped'
      return
    }
    const started = performance.now()
    this.#state = 'draining'
    this.#draining.abort()
    this.#loop.interrupt()
    log.info({ inFlight: this.#jobs.size }, `${this.#work.kind} is draining`)
    const finished = this.#finish()
    if (!(await within(finished, drainMs, this.#hurry.signal))) {
      for (const lease of this.#leases.held) {
        lease.abort(new ShutdownError('the worker is stopping and the time to finish is over'))
      }
      const grace = this.#hurry.signal.aborted ? immediateGraceMs : abortGraceMs
      if (!(await within(finished, grace))) await withDeadline(this.#abandon(), lastWordsMs)
    }
    this.#outcomes.close()
    this.#leases.close()
    this.#priority.close()
    // After the last job: only then another worker may take over.
    await this.#exclusive?.close()
    await withDeadline(this.#heartbeat.stop(), lastWordsMs)
    this.#state = 'stopped'
    log.info(
      { ms: Math.round(performance.now() - started), processed: this.#jobs.counts.processed },
      `${this.#work.kind} stopped`,
    )
  }

  /** Resolves when nothing is claimed, runs, or is being written. */
  async #finish(): Promise<void> {
    await this.#booting?.catch(() => undefined)
    await this.#looping
    await this.#jobs.idle(() => undefined)
  }

  /** Writes nothing more for what is still held here, and lets others have it. */
  async #abandon(): Promise<void> {
    const left = this.#leases.held
    this.#outcomes.close()
    this.#leases.close()
    await abandon(left, this.#options)
    void this.#held.done(left)
  }

  get #isEnding(): boolean {
    return this.#state === 'draining' || this.#state === 'stopped'
  }

  get #phase(): 'running' | 'paused' | 'ending' {
    return this.#state === 'running' || this.#state === 'paused' ? this.#state : 'ending'
  }

  #change(from: WorkerState, to: WorkerState): void {
    if (this.#state !== from) {
      throw new InvalidTransitionError(`a worker that is ${this.#state} cannot become ${to}`)
    }
    this.#state = to
    this.#loop.interrupt()
  }

  #metadata(): Record<string, unknown> {
    const { entry } = this.#options
    return {
      name: entry.name,
      queues: entry.queues,
      consumer_priority: entry.consumerPriority,
      single_active_consumer: entry.singleActiveConsumer,
      threads: entry.concurrency,
      execution_mode: 'async',
      jobs_processed: this.#jobs.counts.processed,
      jobs_failed: this.#jobs.counts.failed,
      in_flight: this.#jobs.size,
      capacity: entry.concurrency,
      busy: this.#jobs.size,
    }
  }
}
