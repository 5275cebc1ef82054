import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { deferred } from '../core/deferred.ts'
import { type Duration, parseDuration } from '../core/duration.ts'
import {
  ConfigurationError,
  InvalidTransitionError,
  SchemaNotReadyError,
  ShutdownError,
} from '../core/errors.ts'
import { groupBy } from '../core/group-by.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep, withDeadline } from '../core/sleep.ts'
import type { ConnectionBreaker } from '../db/connection-breaker.ts'
import type { Connector } from '../db/connector.ts'
import type { Database } from '../db/database.ts'
import type { Pgbus } from '../pgbus.ts'
import { logicalOf } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { type Cancelled, makeVisible } from '../pgmq/statements.ts'
import { Claimer, type Delivery } from './claim.ts'
import { ConsumerPriority } from './consumer-priority.ts'
import { ExclusiveQueues } from './exclusive-queues.ts'
import { type Ending, Executor } from './executor.ts'
import { Heartbeat } from './heartbeat.ts'
import { HeldTokens, type OnHeld } from './held-tokens.ts'
import { JobWork } from './job-work.ts'
import { type Lease, Leases } from './lease.ts'
import { Outcomes } from './outcome.ts'
import { QueueBreaker } from './queue-breaker.ts'
import { planStart } from './suspects.ts'
import { idleCeilingMs, Wake, waitAfterClaim } from './wake.ts'
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

export interface WorkerStats {
  state: WorkerState
  inFlight: number
  /** Ended here, however they ended. */
  processed: number
  /** Of these, jobs that are done: they returned, or were discarded by their own code. */
  succeeded: number
  /** Of these, attempts that failed. */
  failed: number
  /** Of these, moved to the dead-letter queue. */
  buried: number
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
const errorPauseMs = 1_000
/** Polling intervals by which a worker of lower priority is later. */
const yieldFactor = 3

/**
 * Claims jobs from its queues and runs them, `concurrency` at a time.
 *
 * `starting` → `running` ⇄ `paused` → `draining` → `stopped`. Only `running` claims; nothing is claimed without a
 * free slot, so there is no local queue to lose. The loop waits for one thing at a time: a slot, or a reason to
 * look. It never ends by an error.
 */
export class Worker {
  /** Resolves when the first claim came back. */
  readonly onFirstPass: Promise<void>
  readonly #options: WorkerOptions
  readonly #work: Work
  readonly #firstPass = deferred()
  readonly #slots: number
  readonly #claimer: Claimer
  readonly #exclusive: ExclusiveQueues | undefined
  readonly #priority: ConsumerPriority
  readonly #queueBreaker: QueueBreaker
  readonly #leases: Leases
  readonly #outcomes: Outcomes
  readonly #executor: Executor
  readonly #heartbeat: Heartbeat
  readonly #held: HeldTokens
  /** A reason to claim. */
  readonly #look = new Wake()
  /** A slot became free. */
  readonly #slot = new Wake()
  readonly #jobs = new Set<Promise<void>>()
  readonly #hurry = new AbortController()
  readonly #draining = new AbortController()
  #state: WorkerState = 'starting'
  #booting: Promise<void> | undefined
  #stopping: Promise<void> | undefined
  #loop: Promise<void> = Promise.resolve()
  #queuesReady = false
  #delivering = false
  #tickAt: number | undefined
  #emptyLooks = 0
  /** Cancelled while a claim is under way, which may have it. */
  #cancelledEarly: Cancelled[] | undefined
  #claimed = 0
  #processed = 0
  #succeeded = 0
  #failed = 0
  #buried = 0

  /** @internal */
  constructor(options: WorkerOptions) {
    const { db, connector, breaker, queues, config, log, report, pgbus, entry } = options
    this.#options = options
    this.#work = options.work ?? new JobWork({ config, queues, log, report, pgbus })
    this.onFirstPass = this.#firstPass.promise
    this.#slots = Math.min(entry.concurrency, entry.prefetchLimit ?? Number.POSITIVE_INFINITY)
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
    this.#queueBreaker = new QueueBreaker({ db, config: config.circuitBreaker, log, report })
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
    this.#emptyLooks = 0
    this.#look.set()
  }

  /** A queue was made: resolve the patterns anew. */
  refresh(): void {
    if (!this.#claimer.list.hasPatterns) return
    this.#claimer.refresh()
    this.wake()
  }

  /** A message was cancelled; if it runs here its handler is told. Without being told, a renewal notices. */
  cancel(cancelled: Cancelled): void {
    if (!this.#leases.cancel(cancelled)) this.#cancelledEarly?.push(cancelled)
  }

  /** Whether notifications arrive. Without them the queues are polled. */
  setDelivering(on: boolean): void {
    if (this.#delivering === on) return
    this.#delivering = on
    this.wake()
  }

  stats(): WorkerStats {
    const [oldest] = this.#leases.held
    return {
      state: this.#state,
      inFlight: this.#jobs.size,
      processed: this.#processed,
      succeeded: this.#succeeded,
      failed: this.#failed,
      buried: this.#buried,
      leasesLost: this.#leases.lostCount,
      queues: this.#claimer.list.names,
      missing: this.#claimer.missing,
      paused: this.#claimer.paused,
      locked: this.#claimer.locked,
      yielding: this.#priority.yielding,
      delivering: this.#delivering,
      stuck: this.#executor.stuck,
      oldest: oldest ? this.#ageOf(oldest) : null,
    }
  }

  /** Ms since the loop last went round; null: it does not run. */
  get loopAge(): number | null {
    return this.#tickAt === undefined || this.#isEnding ? null : performance.now() - this.#tickAt
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
    this.#loop = this.#run()
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

  async #run(): Promise<void> {
    const { report, entry, config } = this.#options
    while (!this.#isEnding) {
      this.#tickAt = performance.now()
      try {
        await this.#pass()
      } catch (error) {
        report(error, { action: 'fetch_messages', queues: entry.queues })
        await sleep(Math.max(errorPauseMs, config.pollingInterval), this.#draining.signal)
      }
    }
  }

  async #pass(): Promise<void> {
    if (this.#state === 'paused') {
      this.#look.clear()
      await this.#look.wait(idleCeilingMs)
      return
    }
    const free = Math.min(this.#slots - this.#jobs.size, this.#allowance)
    if (free <= 0) {
      // No await since the count: a slot that becomes free sets the flag again.
      this.#slot.clear()
      this.#tellIdle(true)
      await this.#slot.wait(idleCeilingMs)
      return
    }
    if (this.#priority.yielding) {
      await sleep(yieldFactor * this.#options.config.pollingInterval, this.#draining.signal)
      if (this.#state !== 'running') return
    }
    // Cleared before the claim: whatever is inserted while it runs sets the flag again.
    this.#look.clear()
    this.#cancelledEarly = []
    const claim = await this.#claimer.claim(free)
    if (claim.failedForMs !== null) {
      await sleep(claim.failedForMs, this.#draining.signal)
      return
    }
    this.#firstPass.resolve()
    const leases = this.#take(claim.deliveries)
    if (this.#state !== 'running') {
      void this.#held.claimed(leases)
      await this.#giveBack(leases)
      return
    }
    const { start, giveBack, alone } = planStart(leases)
    if (alone) {
      await this.#runAlone(start, giveBack)
      return
    }
    void this.#held.running(start)
    for (const lease of start) this.#start(lease)
    if (leases.length > 0) this.#emptyLooks = 0
    // As many as asked for: more may be due.
    if (leases.length === free) return
    this.#tellIdle(leases.length === 0)
    const wait = waitAfterClaim({
      delivering: this.#delivering,
      pollingInterval: this.#options.config.pollingInterval,
      emptyLooks: this.#emptyLooks,
      dueInMs: claim.dueInMs,
      blocked: claim.blocked || this.#claimer.locked.length > 0,
    })
    this.#emptyLooks += 1
    await this.#look.wait(wait)
  }

  /** What its limit still lets it claim. */
  get #allowance(): number {
    return (this.#options.limit ?? Number.POSITIVE_INFINITY) - this.#claimed
  }

  #tellIdle(nothingFound: boolean): void {
    if (nothingFound && this.#jobs.size === 0) this.#options.onIdle?.()
  }

  #take(deliveries: readonly Delivery[]): Lease[] {
    const leases = deliveries.map(delivery => this.#leases.add(delivery))
    this.#claimed += leases.length
    for (const cancelled of this.#cancelledEarly ?? []) this.#leases.cancel(cancelled)
    this.#cancelledEarly = undefined
    for (const lease of leases) if (lease.cancelled) this.#leases.end(lease)
    return leases.filter(lease => !lease.cancelled)
  }

  /** Nothing else runs beside a suspect, and nothing is claimed meanwhile. */
  async #runAlone(suspects: readonly Lease[], others: readonly Lease[]): Promise<void> {
    void this.#held.claimed([...suspects, ...others])
    await this.#giveBack(others)
    await this.#idle()
    if (this.#state !== 'running') {
      await this.#giveBack(suspects)
      return
    }
    // Waited for: the next step may be the last of this process.
    await this.#held.running(suspects)
    for (const lease of suspects) this.#start(lease)
    await this.#idle()
  }

  /** Resolves when no job runs. Jobs may take hours; the loop is alive meanwhile. */
  async #idle(): Promise<void> {
    while (this.#jobs.size > 0) {
      this.#tickAt = performance.now()
      this.#slot.clear()
      await this.#slot.wait(idleCeilingMs)
    }
  }

  #start(lease: Lease): void {
    const job = this.#execute(lease).finally(() => {
      this.#jobs.delete(job)
      this.#slot.set()
    })
    this.#jobs.add(job)
  }

  async #execute(lease: Lease): Promise<void> {
    let ending: Ending = 'unrecorded'
    try {
      ending = await this.#executor.run(lease)
    } catch (error) {
      this.#options.report(error, { action: 'process_message', queue: lease.delivery.physical })
    }
    this.#leases.end(lease)
    void this.#held.done([lease])
    this.#processed += 1
    if (ending === 'succeeded' || ending === 'discarded') this.#succeeded += 1
    if (ending === 'retried' || ending === 'postponed' || ending === 'buried') this.#failed += 1
    if (ending === 'buried' || ending === 'expired') this.#buried += 1
    const resumed = await this.#judge(lease.delivery, ending)
    // The next claim learns when it comes due again; the next of its group may come due by its end.
    const anew = ending === 'retried' || ending === 'postponed' || ending === 'released'
    if (anew || resumed || this.#options.entry.groupMode !== null) this.#look.set()
  }

  /** Tells the breaker of the queue. Whether that ended a pause. */
  async #judge(delivery: Delivery, ending: Ending): Promise<boolean> {
    const queue = logicalOf(this.#options.config, delivery.physical)
    if (ending === 'succeeded') return this.#queueBreaker.succeeded(queue, delivery)
    if (ending === 'retried' || ending === 'buried') await this.#queueBreaker.failed(queue, delivery)
    return false
  }

  /** Others may read these queues from now on, and with them what runs here. */
  #loseQueues(names: readonly string[]): void {
    for (const lease of this.#leases.held) {
      const queue = logicalOf(this.#options.config, lease.delivery.physical)
      if (names.includes(queue)) lease.lose('is of a queue that this worker no longer reads alone')
    }
    this.#look.set()
  }

  async #giveBack(leases: readonly Lease[]): Promise<void> {
    await Promise.all(leases.map(lease => this.#outcomes.write(lease, { kind: 'release' })))
    for (const lease of leases) this.#leases.end(lease)
    void this.#held.done(leases)
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
    this.#look.set()
    this.#slot.set()
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
      { ms: Math.round(performance.now() - started), processed: this.#processed },
      `${this.#work.kind} stopped`,
    )
  }

  /** Resolves when nothing is claimed, runs, or is being written. */
  async #finish(): Promise<void> {
    await this.#booting?.catch(() => undefined)
    await this.#loop
    while (this.#jobs.size > 0) await Promise.all(this.#jobs)
  }

  /** Lets others have what is still held here. It stays charged: what hangs must end as a dead letter. */
  async #abandon(): Promise<void> {
    const { db, log, report } = this.#options
    this.#outcomes.close()
    const left = this.#leases.held
    const tables = groupBy(
      left.map(lease => lease.delivery),
      delivery => delivery.physical,
    )
    for (const { delivery } of left) {
      log.warn(
        { queue: delivery.physical, msg_id: delivery.msgId, attempt: delivery.readCount },
        'a job ignored its abort; its message is given to others while it may still run',
      )
    }
    this.#leases.close()
    await Promise.all(
      [...tables].map(([physical, tokens]) =>
        db.query(makeVisible(physical, tokens)).catch(error => {
          report(error, { action: 'abandon_jobs', queue: physical })
        }),
      ),
    )
    void this.#held.done(left)
  }

  get #isEnding(): boolean {
    return this.#state === 'draining' || this.#state === 'stopped'
  }

  #change(from: WorkerState, to: WorkerState): void {
    if (this.#state !== from) {
      throw new InvalidTransitionError(`a worker that is ${this.#state} cannot become ${to}`)
    }
    this.#state = to
    this.#slot.set()
    this.#look.set()
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
      jobs_processed: this.#processed,
      jobs_failed: this.#failed,
      in_flight: this.#jobs.size,
      capacity: entry.concurrency,
      busy: this.#jobs.size,
    }
  }
}

/** Whether `promise` resolves within `ms`, and before `signal` aborts. */
async function within(promise: Promise<void>, ms: number, signal?: AbortSignal): Promise<boolean> {
  const cancel = new AbortController()
  const timer = sleep(ms, signal ? AbortSignal.any([signal, cancel.signal]) : cancel.signal)
  const done = await Promise.race([promise.then(() => true), timer.then(() => false)])
  cancel.abort()
  return done
}
