import type { Report } from '../core/report.ts'
import type { HeldToken } from './claim.ts'
import type { Lease } from './lease.ts'

/** Told about each claim and each end, so that somebody else can hand back what a killed process held. */
export type OnHeld = (taken: HeldToken[], done: HeldToken[]) => void

/** Tells of each delivery once that it is held, and once that it no longer is. */
export class HeldTokens {
  readonly #onHeld: OnHeld | undefined
  readonly #report: Report
  /** A release is told before it is written, so before the job ends. */
  readonly #toldDone = new WeakSet<Lease>()

  constructor(options: { onHeld: OnHeld | undefined; report: Report }) {
    this.#onHeld = options.onHeld
    this.#report = options.report
  }

  tell(taken: readonly Lease[], done: readonly Lease[]): void {
    const news = done.filter(lease => !this.#toldDone.has(lease))
    for (const lease of news) this.#toldDone.add(lease)
    if (!this.#onHeld || taken.length + news.length === 0) return
    try {
      this.#onHeld(taken.map(tokenOf), news.map(tokenOf))
    } catch (error) {
      this.#report(error, { action: 'report_held' })
    }
  }
}

function tokenOf({ delivery }: Lease): HeldToken {
  return [delivery.physical, delivery.msgId, delivery.readCount]
}
