import type { ResolvedConfig } from '../config/options.ts'
import type { Report } from '../core/report.ts'
import { logicalOf } from '../pgmq/names.ts'
import type { Delivery } from './claim.ts'
import type { Ending, Executor } from './executor.ts'
import type { HeldTokens } from './held-tokens.ts'
import type { Lease, Leases } from './lease.ts'
import type { QueueBreaker } from './queue-breaker.ts'
import { idleCeilingMs, Wake } from './wake.ts'

export interface RunningJobsOptions {
  config: ResolvedConfig
  executor: Pick<Executor, 'run'>
  leases: Leases
  held: HeldTokens
  queueBreaker: QueueBreaker
  report: Report
  /** An end by which something may have come due: its own next attempt, the next of its group, its queue. */
  onDue: () => void
  /** Whether the end of a job lets the next of its group come due. */
  inGroups: boolean
}

/** How jobs ended here. */
export interface JobCounts {
  /** However they ended. */
  processed: number
  /** Of these, jobs that are done: they returned, or were discarded by their own code. */
  succeeded: number
  /** Of these, attempts that failed. */
  failed: number
  /** Of these, moved to the dead-letter queue. */
  buried: number
}

/** The jobs that a worker runs at this moment, from their start until all of their ends is written. */
export class RunningJobs {
  readonly #options: RunningJobsOptions
  readonly #jobs = new Set<Promise<void>>()
  readonly #slot = new Wake()
  readonly #counts: JobCounts = { processed: 0, succeeded: 0, failed: 0, buried: 0 }

  constructor(options: RunningJobsOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#jobs.size
  }

  get counts(): Readonly<JobCounts> {
    return this.#counts
  }

  start(lease: Lease): void {
    const job = this.#run(lease).finally(() => {
      this.#jobs.delete(job)
      this.#slot.set()
    })
    this.#jobs.add(job)
  }

  /** Forgets the ends until now. Without an `await` between this and {@link change} none is overlooked. */
  clear(): void {
    this.#slot.clear()
  }

  /** Resolves when a job has ended since {@link clear}, {@link interrupt} was called, or some seconds passed. */
  change(): Promise<void> {
    return this.#slot.wait(idleCeilingMs)
  }

  interrupt(): void {
    this.#slot.set()
  }

  /** Resolves when none runs. They may take hours: `onTurn` is called every few seconds. */
  async idle(onTurn: () => void): Promise<void> {
    while (this.size > 0) {
      onTurn()
      this.clear()
      await this.change()
    }
  }

  async #run(lease: Lease): Promise<void> {
    const { executor, leases, held, report, onDue, inGroups } = this.#options
    let ending: Ending = 'unrecorded'
    try {
      ending = await executor.run(lease)
    } catch (error) {
      report(error, { action: 'process_message', queue: lease.delivery.physical })
    }
    leases.end(lease)
    void held.done([lease])
    this.#count(ending)
    const resumed = await this.#judge(lease.delivery, ending)
    const anew = ending === 'retried' || ending === 'postponed' || ending === 'released'
    if (anew || resumed || inGroups) onDue()
  }

  #count(ending: Ending): void {
    const counts = this.#counts
    counts.processed += 1
    if (ending === 'succeeded' || ending === 'discarded') counts.succeeded += 1
    if (ending === 'retried' || ending === 'postponed' || ending === 'buried') counts.failed += 1
    if (ending === 'buried' || ending === 'expired') counts.buried += 1
  }

  /** Tells the breaker of the queue. Whether that ended a pause. */
  async #judge(delivery: Delivery, ending: Ending): Promise<boolean> {
    const { config, queueBreaker } = this.#options
    const queue = logicalOf(config, delivery.physical)
    if (ending === 'succeeded') return queueBreaker.succeeded(queue, delivery)
    if (ending === 'retried' || ending === 'buried') await queueBreaker.failed(queue, delivery)
    return false
  }
}
