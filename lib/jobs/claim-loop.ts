import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { deferred } from '../core/deferred.ts'
import type { Report } from '../core/report.ts'
import { sleep } from '../core/sleep.ts'
import type { Cancelled } from '../pgmq/statements.ts'
import type { Claimer, Delivery } from './claim.ts'
import type { ConsumerPriority } from './consumer-priority.ts'
import type { HeldTokens } from './held-tokens.ts'
import type { Lease, Leases } from './lease.ts'
import type { Outcomes } from './outcome.ts'
import type { RunningJobs } from './running-jobs.ts'
import { planStart } from './suspects.ts'
import { idleCeilingMs, Wake, waitAfterClaim } from './wake.ts'

export interface ClaimLoopOptions {
  config: ResolvedConfig
  entry: ResolvedWorkerEntry
  claimer: Claimer
  jobs: RunningJobs
  leases: Leases
  outcomes: Outcomes
  held: HeldTokens
  priority: ConsumerPriority
  report: Report
  /** Only `running` claims. */
  state: () => 'running' | 'paused' | 'ending'
  /** Aborts when the worker ends: pauses are cut short. */
  ending: AbortSignal
  /** Claims at most so many messages in all. */
  limit?: number | undefined
  /** Told after each claim that found nothing, or may find nothing more, while no job is in progress. */
  onIdle?: (() => void) | undefined
}

const errorPauseMs = 1_000
/** Polling intervals by which a worker of lower priority is later. */
const yieldFactor = 3

/**
 * Claims messages and hands them to the jobs that run.
 *
 * Nothing is claimed without a free slot, so there is no local queue to lose. It waits for one thing at a time: a
 * slot, or a reason to look. It never ends by an error.
 */
export class ClaimLoop {
  /** Resolves when the first claim came back. */
  readonly onFirstPass: Promise<void>
  readonly #options: ClaimLoopOptions
  readonly #firstPass = deferred()
  readonly #slots: number
  /** A reason to claim. */
  readonly #look = new Wake()
  #isDelivering = false
  #tickAt: number | undefined
  #emptyLooks = 0
  /** Cancelled while a claim is under way, which may have it. */
  #cancelledEarly: Cancelled[] | undefined
  #claimed = 0

  constructor(options: ClaimLoopOptions) {
    const { concurrency, prefetchLimit } = options.entry
    this.#options = options
    this.#slots = Math.min(concurrency, prefetchLimit ?? Number.POSITIVE_INFINITY)
    this.onFirstPass = this.#firstPass.promise
  }

  /** Something was inserted: look now. */
  wake(): void {
    this.#emptyLooks = 0
    this.#look.set()
  }

  /** Something may have come due, or the state has changed: look now, whatever is waited for. */
  interrupt(): void {
    this.#look.set()
    this.#options.jobs.interrupt()
  }

  /** Whether notifications arrive. Without them the queues are polled. */
  get isDelivering(): boolean {
    return this.#isDelivering
  }

  set isDelivering(on: boolean) {
    if (this.#isDelivering === on) return
    this.#isDelivering = on
    this.wake()
  }

  /** Ms since it last went round; null: it has not begun. */
  get age(): number | null {
    return this.#tickAt === undefined ? null : performance.now() - this.#tickAt
  }

  /** A message was cancelled that is not held; a claim that is under way may bring it. */
  cancel(cancelled: Cancelled): void {
    this.#cancelledEarly?.push(cancelled)
  }

  /** Resolves when the worker ends. */
  async run(): Promise<void> {
    const { report, entry, config, ending } = this.#options
    while (!ending.aborted) {
      this.#tick()
      try {
        await this.#pass()
      } catch (error) {
        report(error, { action: 'fetch_messages', queues: entry.queues })
        await sleep(Math.max(errorPauseMs, config.pollingInterval), ending)
      }
    }
  }

  async #pass(): Promise<void> {
    const { jobs, claimer, config, priority, held, ending, state } = this.#options
    if (state() === 'paused') {
      this.#look.clear()
      await this.#look.wait(idleCeilingMs)
      return
    }
    const free = Math.min(this.#slots - jobs.size, this.#allowance)
    if (free <= 0) {
      // No await since the count: a slot that becomes free is noticed.
      jobs.clear()
      this.#tellIdle(true)
      await jobs.change()
      return
    }
    if (priority.yielding) {
      await sleep(yieldFactor * config.pollingInterval, ending)
      if (state() !== 'running') return
    }
    // Cleared before the claim: whatever is inserted while it runs sets the flag again.
    this.#look.clear()
    this.#cancelledEarly = []
    const claim = await claimer.claim(free)
    if (claim.failedForMs !== null) {
      await sleep(claim.failedForMs, ending)
      return
    }
    this.#firstPass.resolve()
    const leases = this.#take(claim.deliveries)
    if (state() !== 'running') {
      void held.claimed(leases)
      await this.#giveBack(leases)
      return
    }
    const { start, giveBack, alone } = planStart(leases)
    if (alone) {
      await this.#runAlone(start, giveBack)
      return
    }
    void held.running(start)
    for (const lease of start) jobs.start(lease)
    if (leases.length > 0) this.#emptyLooks = 0
    // As many as asked for: more may be due.
    if (leases.length === free) return
    this.#tellIdle(leases.length === 0)
    const wait = waitAfterClaim({
      delivering: this.#isDelivering,
      pollingInterval: config.pollingInterval,
      emptyLooks: this.#emptyLooks,
      dueInMs: claim.dueInMs,
      blocked: claim.blocked || claimer.locked.length > 0,
    })
    this.#emptyLooks += 1
    await this.#look.wait(wait)
  }

  /** What its limit still lets it claim. */
  get #allowance(): number {
    return (this.#options.limit ?? Number.POSITIVE_INFINITY) - this.#claimed
  }

  #tick(): void {
    this.#tickAt = performance.now()
  }

  #tellIdle(nothingFound: boolean): void {
    if (nothingFound && this.#options.jobs.size === 0) this.#options.onIdle?.()
  }

  #take(deliveries: readonly Delivery[]): Lease[] {
    const { leases: all } = this.#options
    const leases = deliveries.map(delivery => all.add(delivery))
    this.#claimed += leases.length
    for (const cancelled of this.#cancelledEarly ?? []) all.cancel(cancelled)
    this.#cancelledEarly = undefined
    for (const lease of leases) if (lease.cancelled) all.end(lease)
    return leases.filter(lease => !lease.cancelled)
  }

  /** Nothing else runs beside a suspect, and nothing is claimed meanwhile. */
  async #runAlone(suspects: readonly Lease[], others: readonly Lease[]): Promise<void> {
    const { held, jobs, state } = this.#options
    const idle = () => jobs.idle(() => this.#tick())
    void held.claimed([...suspects, ...others])
    await this.#giveBack(others)
    await idle()
    if (state() !== 'running') {
      await this.#giveBack(suspects)
      return
    }
    // Waited for: the next step may be the last of this process.
    await held.running(suspects)
    for (const lease of suspects) jobs.start(lease)
    await idle()
  }

  async #giveBack(leases: readonly Lease[]): Promise<void> {
    const { outcomes, leases: all, held } = this.#options
    await Promise.all(leases.map(lease => outcomes.write(lease, { kind: 'release' })))
    for (const lease of leases) all.end(lease)
    void held.done(leases)
  }
}
