import { Backoff } from '../core/backoff.ts'
import { OutboxPublishError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep } from '../core/sleep.ts'
import { idleCeilingMs, Wake } from '../jobs/wake.ts'
import type { Outbox, Pass } from './outbox.ts'

export interface PollerOptions {
  outbox: Pick<Outbox, 'pass'>
  /** Time between two looks while notifications do not arrive, ms. */
  interval: number
  /** Entries of one transaction. */
  batchSize: number
  log: Logger
  report: Report
}

const longestPauseMs = 30_000
/** A notification may belong to a transaction that is about to commit: look again. */
const afterWakeMs = 100

/**
 * Publishes what the outbox holds, for as long as full batches come without a pause. Any number may run, on any number of
 * hosts. A look that fails is repeated, later each time.
 */
export class Poller {
  readonly #options: PollerOptions
  readonly #stopping = new AbortController()
  readonly #look = new Wake()
  readonly #backoff: Backoff
  #lastLook = performance.now()
  #published = 0
  /** Entries of the next look: fewer after one that failed, which may have taken too long. */
  #size: number
  #failing = false
  #woken = false
  #delivering = false
  #running: Promise<void> | undefined

  constructor(options: PollerOptions) {
    this.#options = options
    this.#size = options.batchSize
    this.#backoff = new Backoff({ base: options.interval, max: Math.max(longestPauseMs, options.interval) })
  }

  /** Ms since it last looked. */
  get loopAge(): number {
    return performance.now() - this.#lastLook
  }

  /** Entries that it has published. */
  get published(): number {
    return this.#published
  }

  start(): void {
    this.#running ??= this.#run()
  }

  /** Something was written: look now. */
  wake(): void {
    this.#woken = true
    this.#look.set()
  }

  /** Whether notifications arrive. While they do it only looks now and then by itself. */
  setDelivering(on: boolean): void {
    if (this.#delivering === on) return
    this.#delivering = on
    this.wake()
  }

  /** Starts nothing more; resolves when the running look has ended. Never rejects. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#look.set()
    await this.#running
  }

  async #run(): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      this.#lastLook = performance.now()
      // Cleared before the look: whatever is written while it runs sets the flag again.
      this.#look.clear()
      const woken = this.#woken
      this.#woken = false
      const pause = await this.#pass(woken)
      if (pause === 0) continue
      if (this.#failing) await sleep(pause, this.#stopping.signal)
      else await this.#look.wait(pause)
    }
  }

  /** One look; how long to wait for the next. Never rejects. */
  async #pass(woken: boolean): Promise<number> {
    const { outbox, batchSize, interval, log, report } = this.#options
    try {
      const pass = await outbox.pass(this.#size)
      if (this.#failing) log.info('the outbox is published again')
      this.#failing = false
      this.#size = Math.min(batchSize, this.#size * 2)
      this.#backoff.reset()
      this.#published += pass.published
      if (pass.published > 0) log.debug({ entries: pass.published }, `published ${pass.published} entries`)
      this.#tell(pass)
      if (pass.more && pass.published > 0) return 0
      const idle = this.#delivering ? Math.max(idleCeilingMs, interval) : interval
      const soon = woken || pass.published > 0 ? Math.min(afterWakeMs, interval) : idle
      return Math.max(1, Math.min(soon, pass.nextDueMs ?? soon))
    } catch (error) {
      // One report for an outage, not one for each look.
      if (this.#failing) log.debug({ err: error }, 'the outbox still cannot be published')
      else report(error, { action: 'outbox_poll' })
      this.#failing = true
      this.#size = Math.max(1, Math.floor(this.#size / 2))
      return this.#backoff.next()
    }
  }

  /** Once for each entry; its later failures can be seen in the table. */
  #tell({ failures }: Pass): void {
    for (const { id, destination, attempts, error } of failures) {
      const fields = { entry: id, destination, attempts }
      if (attempts === 1) {
        const what = `outbox entry ${id} for "${destination}" was not published: ${error}`
        this.#options.report(new OutboxPublishError(what), { action: 'outbox_publish', ...fields })
      } else this.#options.log.debug(fields, `outbox entry ${id} was not published: ${error}`)
    }
  }
}
