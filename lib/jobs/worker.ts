import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { Backoff } from '../core/backoff.ts'
import { deferred } from '../core/deferred.ts'
import { InvalidTransitionError, SchemaNotReadyError, ShutdownError } from '../core/errors.ts'
import { groupBy } from '../core/group-by.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep, withDeadline } from '../core/sleep.ts'
import { type Database, isConnectionError, sqlState } from '../db/database.ts'
import type { Pgbus } from '../pgbus.ts'
import { logicalOf, workerTables } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { makeVisible } from '../pgmq/statements.ts'
import { claimMessages, type Delivery, type HeldToken } from './claim.ts'
import { type Ending, Executor } from './executor.ts'
import { Heartbeat } from './heartbeat.ts'
import { type Lease, Leases } from './lease.ts'
import { Outcomes } from './outcome.ts'
import { idleCeilingMs, Wake, waitAfterClaim } from './wake.ts'

export type WorkerState = 'starting' | 'running' | 'draining' | 'stopped'

export interface WorkerOptions {
  db: Database
  queues: Queues
  config: ResolvedConfig
  log: Logger
  report: Report
  entry: ResolvedWorkerEntry
  pgbus: Pgbus
  /** Told about each claim and each end, so that somebody else can hand back what a killed process held. */
  onHeld?: ((taken: HeldToken[], done: HeldToken[]) => void) | undefined
}

export interface WorkerStats {
  state: WorkerState
  inFlight: number
  /** Ended here, however they ended. */
  processed: number
  /** Of these, attempts that failed. */
  failed: number
  leasesLost: number
  /** Logical names. */
  queues: readonly string[]
  /** Tables that did not exist at the last look. */
  missing: readonly string[]
  delivering: boolean
  /** Milliseconds since the oldest job in progress was claimed; null: none. */
  oldest: number | null
}

const abortGraceMs = 3_000
const immediateGraceMs = 1_000
/** What a supervisor leaves between the abort and its own deadline. */
const shutdownMarginMs = 4_000
/** Last statements of a worker that gives up. */
const lastWordsMs = 1_000
const claimRetryMaxMs = 5_000

/**
 * Claims jobs from its queues and runs them, `concurrency` at a time.
 *
 * `starting` → `running` → `draining` → `stopped`. Only `running` claims; nothing is claimed without a free slot,
 * so there is no local queue to lose. The loop waits for one thing at a time: a slot, or a reason to look. It never
 * ends by an error.
 */
export class Worker {
  /** Physical tables, in claim order. */
  readonly tables: string[]
  /** Resolves when the first claim came back. */
  readonly onFirstPass: Promise<void>
  readonly #options: WorkerOptions
  readonly #firstPass = deferred()
  readonly #leases: Leases
  readonly #outcomes: Outcomes
  readonly #executor: Executor
  readonly #heartbeat: Heartbeat
  readonly #backoff: Backoff
  /** A reason to claim. */
  readonly #look = new Wake()
  /** A slot became free. */
  readonly #slot = new Wake()
  readonly #jobs = new Set<Promise<void>>()
  /** A release is told before it is written, so before the job ends. */
  readonly #toldDone = new WeakSet<Lease>()
  readonly #hurry = new AbortController()
  readonly #draining = new AbortController()
  #state: WorkerState = 'starting'
  #booting: Promise<void> | undefined
  #stopping: Promise<void> | undefined
  #loop: Promise<void> = Promise.resolve()
  #queuesReady = false
  #delivering = false
  #emptyLooks = 0
  /** What kind of failure that claims are in. */
  #claimFailure: string | undefined
  #missing: readonly string[] = []
  #processed = 0
  #failed = 0

  constructor(options: WorkerOptions) {
    const { db, queues, config, log, report, pgbus, entry } = options
    this.#options = options
    this.tables = workerTables(config, entry.queues)
    this.onFirstPass = this.#firstPass.promise
    this.#leases = new Leases({ db, visibilityTimeout: config.visibilityTimeout, log })
    this.#outcomes = new Outcomes({
      db,
      queues,
      config,
      log,
      report,
      onRelease: lease => this.#tellHeld([], [lease]),
    })
    this.#executor = new Executor({
      db,
      config,
      log,
      report,
      pgbus,
      leases: this.#leases,
      outcomes: this.#outcomes,
      isStopping: () => this.#state !== 'running',
    })
    this.#heartbeat = new Heartbeat({ db, log })
    this.#backoff = new Backoff({
      base: Math.max(100, Math.min(config.pollingInterval, claimRetryMaxMs)),
      max: claimRetryMaxMs,
      random: Math.random,
    })
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
   * Drains: claims nothing more and lets running jobs finish for `timeout` milliseconds (default `drainTimeout`),
   * then aborts their signals, then gives back what is left. Resolves when all of that is written. `immediate`
   * aborts at once, also when the worker is draining already.
   */
  stop(options: { timeout?: number | undefined; immediate?: boolean | undefined } = {}): Promise<void> {
    const { drainTimeout, shutdownTimeout } = this.#options.config
    if (options.immediate) this.#hurry.abort()
    this.#stopping ??= this.#stop(
      options.timeout ?? Math.max(0, Math.min(drainTimeout, shutdownTimeout - shutdownMarginMs)),
    )
    return this.#stopping
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  /** Something was inserted: look now. */
  wake(): void {
    this.#emptyLooks = 0
    this.#look.set()
  }

  /** Whether notifications arrive. Without them the queues are polled. */
  setDelivering(on: boolean): void {
    if (this.#delivering === on) return
    this.#delivering = on
    this.wake()
  }

  stats(): WorkerStats {
    const now = performance.now()
    const held = this.#leases.held
    return {
      state: this.#state,
      inFlight: this.#jobs.size,
      processed: this.#processed,
      failed: this.#failed,
      leasesLost: this.#leases.lostCount,
      queues: this.#options.entry.queues,
      missing: this.#missing,
      delivering: this.#delivering,
      oldest: held.length === 0 ? null : Math.round(Math.max(...held.map(l => now - l.delivery.claimedAt))),
    }
  }

  async #boot(): Promise<void> {
    const { report, log, entry } = this.#options
    try {
      await this.#ensureQueues()
    } catch (error) {
      if (error instanceof SchemaNotReadyError || error instanceof TypeError) {
        this.#state = 'stopped'
        throw error
      }
      report(error, { action: 'bootstrap_queues', queues: entry.queues })
    }
    // Stopped meanwhile.
    if (this.#state !== 'starting') return
    this.#state = 'running'
    log.info({ queues: entry.queues, concurrency: entry.concurrency }, 'worker started')
    void this.#heartbeat.start('worker', () => this.#metadata())
    this.#loop = this.#run()
  }

  async #ensureQueues(): Promise<void> {
    await this.#options.queues.ensure(this.#options.entry.queues)
    this.#queuesReady = true
  }

  async #run(): Promise<void> {
    while (this.#state === 'running') {
      try {
        await this.#pass()
      } catch (error) {
        this.#claimFailed(error)
        await sleep(this.#backoff.next(), this.#draining.signal)
      }
    }
  }

  async #pass(): Promise<void> {
    const { db, config, entry } = this.#options
    if (!this.#queuesReady) await this.#ensureQueues()
    const free = entry.concurrency - this.#jobs.size
    if (free <= 0) {
      // No await since the count: a slot that becomes free sets the flag again.
      this.#slot.clear()
      await this.#slot.wait(idleCeilingMs)
      return
    }
    // Cleared before the claim: whatever is inserted while it runs sets the flag again.
    this.#look.clear()
    const claim = await claimMessages(db, this.tables, free, config.visibilityTimeout)
    this.#claimSucceeded(claim.missing)
    const leases = this.#take(claim.deliveries)
    if (this.#state !== 'running') {
      await this.#giveBack(leases)
      return
    }
    for (const lease of leases) this.#start(lease)
    if (leases.length > 0) this.#emptyLooks = 0
    // As many as asked for: more may be due.
    if (leases.length === free) return
    const wait = waitAfterClaim({
      delivering: this.#delivering,
      pollingInterval: config.pollingInterval,
      emptyLooks: this.#emptyLooks,
      dueInMs: claim.dueInMs,
    })
    this.#emptyLooks += 1
    await this.#look.wait(wait)
  }

  #take(deliveries: readonly Delivery[]): Lease[] {
    const leases = deliveries.map(delivery => this.#leases.add(delivery))
    if (leases.length > 0) this.#tellHeld(leases, [])
    return leases
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
      this.#options.report(error, { action: 'execute_job', queue: lease.delivery.physical })
    }
    this.#leases.end(lease)
    this.#tellHeld([], [lease])
    this.#processed += 1
    if (ending === 'retried' || ending === 'buried') this.#failed += 1
    // The next claim learns when it comes due again.
    if (ending === 'retried' || ending === 'released') this.#look.set()
  }

  async #giveBack(leases: readonly Lease[]): Promise<void> {
    await Promise.all(leases.map(lease => this.#outcomes.write(lease, { kind: 'release' })))
    for (const lease of leases) this.#leases.end(lease)
    if (leases.length > 0) this.#tellHeld([], leases)
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
    log.info({ inFlight: this.#jobs.size }, 'worker is draining')
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
    await withDeadline(this.#heartbeat.stop(), lastWordsMs)
    this.#state = 'stopped'
    log.info({ ms: Math.round(performance.now() - started), processed: this.#processed }, 'worker stopped')
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
    this.#tellHeld([], left)
  }

  #claimFailed(error: unknown): void {
    const failure = isConnectionError(error) ? 'connection' : sqlState(error) || String(error)
    if (failure !== this.#claimFailure) {
      this.#options.report(error, { action: 'fetch_messages', queues: this.#options.entry.queues })
    }
    this.#claimFailure = failure
  }

  #claimSucceeded(missing: readonly string[]): void {
    const { log, config } = this.#options
    if (this.#claimFailure !== undefined) log.info('messages are fetched again')
    this.#claimFailure = undefined
    this.#backoff.reset()
    for (const table of missing) {
      if (this.#missing.includes(table)) continue
      log.warn(
        { queue: logicalOf(config, table), table },
        'a queue is gone; its worker waits until it is made again',
      )
    }
    for (const table of this.#missing) {
      if (!missing.includes(table)) log.info({ queue: logicalOf(config, table), table }, 'a queue is back')
    }
    this.#missing = missing
    this.#firstPass.resolve()
  }

  #tellHeld(taken: readonly Lease[], done: readonly Lease[]): void {
    const { onHeld, report } = this.#options
    const news = done.filter(lease => !this.#toldDone.has(lease))
    for (const lease of news) this.#toldDone.add(lease)
    if (!onHeld || taken.length + news.length === 0) return
    const token = ({ delivery }: Lease): HeldToken => [delivery.physical, delivery.msgId, delivery.readCount]
    try {
      onHeld(taken.map(token), news.map(token))
    } catch (error) {
      report(error, { action: 'report_held' })
    }
  }

  #metadata(): Record<string, unknown> {
    const { entry } = this.#options
    return {
      name: entry.name,
      queues: entry.queues,
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
