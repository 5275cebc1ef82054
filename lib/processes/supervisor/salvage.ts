import type { Logger } from '../../core/log.ts'
import { forgetProcess } from '../../jobs/heartbeat.ts'
import type { Pgbus } from '../../pgbus.ts'
import { makeVisible } from '../../pgmq/statements.ts'
import type { ChildHandle } from './child-handle.ts'

/** Lets others have what dead children held, at once. Where that fails, the leases run out. */
export class Salvage {
  readonly #pgbus: Pgbus
  readonly #log: Logger
  readonly #running = new Set<Promise<void>>()

  constructor(options: { pgbus: Pgbus; log: Logger }) {
    this.#pgbus = options.pgbus
    this.#log = options.log
  }

  giveBack(handle: ChildHandle): void {
    const { db, report } = this.#pgbus
    const work = [...handle.held.byTable()].map(async ([physical, tokens]) => {
      const { rowCount } = await db.query(makeVisible(physical, tokens))
      this.#log.info(
        { slot: handle.slot, queue: physical },
        `gave back ${rowCount} messages of a dead worker`,
      )
    })
    if (handle.pid !== -1) work.push(forgetProcess(db, 'worker', handle.pid))
    const salvage = Promise.allSettled(work).then(results => {
      for (const result of results) {
        if (result.status === 'rejected')
          report(result.reason, { action: 'give_back_messages', slot: handle.slot })
      }
      this.#running.delete(salvage)
    })
    this.#running.add(salvage)
  }

  /** Resolves when everything that began has ended. */
  async done(): Promise<void> {
    await Promise.all(this.#running)
  }
}
