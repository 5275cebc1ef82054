import type { Report } from '../core/report.ts'
import { withDeadline } from '../core/sleep.ts'
import type { Lease } from './lease.ts'

/** The fencing token of a delivery as it travels between processes: table, id, and how often it had been read. */
export type HeldToken = readonly [physical: string, msgId: number, readCount: number]

export interface HeldChange {
  /** In the hands of the worker, not started. */
  claimed?: readonly HeldToken[]
  /** In the hands of a handler. */
  running?: readonly HeldToken[]
  /** No longer held. */
  done?: readonly HeldToken[]
}

/**
 * Told about each claim, start and end, so that somebody else can hand back what a killed process held. Resolves
 * when that is known to whoever outlives this process.
 */
export type OnHeld = (change: HeldChange) => Promise<void>

/** Longest wait for a report to leave. A channel that takes longer has nobody behind it, or nobody that listens. */
const sentLimitMs = 1_000

/** Tells of each delivery that it is held, that it runs, and once that it no longer is held. */
export class HeldTokens {
  readonly #onHeld: OnHeld | undefined
  readonly #report: Report
  /** A release is told before it is written, so before the job ends. */
  readonly #toldDone = new WeakSet<Lease>()

  constructor(options: { onHeld: OnHeld | undefined; report: Report }) {
    this.#onHeld = options.onHeld
    this.#report = options.report
  }

  claimed(leases: readonly Lease[]): Promise<void> {
    return this.#tell({ claimed: leases.map(tokenOf) }, leases)
  }

  running(leases: readonly Lease[]): Promise<void> {
    return this.#tell({ running: leases.map(tokenOf) }, leases)
  }

  done(leases: readonly Lease[]): Promise<void> {
    const news = leases.filter(lease => !this.#toldDone.has(lease))
    for (const lease of news) this.#toldDone.add(lease)
    return this.#tell({ done: news.map(tokenOf) }, news)
  }

  async #tell(change: HeldChange, about: readonly Lease[]): Promise<void> {
    if (!this.#onHeld || about.length === 0) return
    try {
      await withDeadline(this.#onHeld(change), sentLimitMs)
    } catch (error) {
      this.#report(error, { action: 'report_held' })
    }
  }
}

function tokenOf({ delivery }: Lease): HeldToken {
  return [delivery.physical, delivery.msgId, delivery.readCount]
}
