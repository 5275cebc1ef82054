import { setMaxListeners } from 'node:events'
import { JobCancelledError, LeaseLostError } from '../core/errors.ts'
import { groupBy } from '../core/group-by.ts'
import type { Logger } from '../core/log.ts'
import { sleep, withDeadline } from '../core/sleep.ts'
import { type Database, sqlState } from '../db/database.ts'
import { type Cancelled, type ExtendRow, extend } from '../pgmq/statements.ts'
import type { Delivery } from './claim.ts'

const retryMs = 1_000
const lockedRetryMs = 50
const lockedTries = 40
const renewalPatienceMs = 1_000

/** The hold on one delivery, with the signal of the handler that works on it. */
export class Lease {
  readonly delivery: Delivery
  readonly #controller = new AbortController()
  /** Monotonic time of the last renewal that succeeded. */
  renewedAt: number
  /** Held at least until then, by request of the handler. */
  heldUntil = 0
  /** Renewed by itself; set by the job's definition. */
  renew = true
  /** The outcome is being written: that the row is gone may be our own doing. */
  writing = false
  /** Renewals that have no answer yet. */
  readonly #renewals = new Set<Promise<unknown>>()
  #renewalPaused = false
  #lost = false

  constructor(delivery: Delivery) {
    this.delivery = delivery
    this.renewedAt = delivery.claimedAt
    // A handler may pass its signal to any number of calls.
    setMaxListeners(0, this.#controller.signal)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** The message belongs to somebody else, or must be assumed to. */
  get lost(): boolean {
    return this.#lost
  }

  /** Counts a statement that prolongs the hold. */
  track<T>(renewal: Promise<T>): Promise<T> {
    const forget = () => {
      this.#renewals.delete(renewal)
    }
    this.#renewals.add(renewal)
    renewal.then(forget, forget)
    return renewal
  }

  /** Its message was archived by somebody who wants it to end. */
  get cancelled(): boolean {
    return this.signal.reason instanceof JobCancelledError
  }

  get renewable(): boolean {
    return this.renew && !this.#renewalPaused && !this.#lost && !this.cancelled
  }

  /** Renews no more, and waits for what is under way; not for long, because it may hang. */
  async pauseRenewal(): Promise<void> {
    this.#renewalPaused = true
    if (this.#renewals.size > 0) await withDeadline(Promise.allSettled(this.#renewals), renewalPatienceMs)
  }

  resumeRenewal(): void {
    this.#renewalPaused = false
  }

  /** Aborts the signal; the first reason stays. */
  abort(reason: Error): void {
    this.#controller.abort(reason)
  }

  lose(reason: string): void {
    if (this.#lost) return
    this.#lost = true
    const { physical, msgId } = this.delivery
    this.abort(new LeaseLostError(`message ${msgId} of queue "${physical}" ${reason}`))
  }
}

/**
 * Keeps what a worker holds. Every third of the visibility timeout one statement per table renews all of it. A
 * message that does not come back is lost; one that could not be renewed for two visibility timeouts counts as
 * lost. A blocked event loop renews nothing, so its messages move on.
 */
export class Leases {
  readonly #db: Database
  readonly #visibilityTimeout: number
  readonly #log: Logger
  readonly #held = new Set<Lease>()
  readonly #renewing = new Set<string>()
  #timer: NodeJS.Timeout | undefined
  #failing = false
  #lostCount = 0
  #closed = false

  constructor(options: { db: Database; visibilityTimeout: number; log: Logger }) {
    this.#db = options.db
    this.#visibilityTimeout = options.visibilityTimeout
    this.#log = options.log
  }

  get held(): readonly Lease[] {
    return [...this.#held]
  }

  /** How many were lost so far. */
  get lostCount(): number {
    return this.#lostCount
  }

  add(delivery: Delivery): Lease {
    // The same message again: whoever held it here was too late to renew.
    for (const held of this.#held) {
      const { physical, msgId } = held.delivery
      if (physical === delivery.physical && msgId === delivery.msgId) this.#lose(held, 'was delivered again')
    }
    const lease = new Lease(delivery)
    this.#held.add(lease)
    this.#arm(this.#visibilityTimeout / 3)
    return lease
  }

  /** Tells the handler of a message that it is to end. Whether anybody here has it. */
  cancel({ physical, msgId, reason }: Cancelled): boolean {
    const lease = this.held.find(({ delivery }) => delivery.physical === physical && delivery.msgId === msgId)
    lease?.abort(
      new JobCancelledError(
        `message ${msgId} of queue "${physical}" was cancelled${reason === null ? '' : `: ${reason}`}`,
      ),
    )
    return lease !== undefined
  }

  /** Ends the renewal of one. */
  end(lease: Lease): void {
    this.#held.delete(lease)
    if (this.#held.size === 0) this.#disarm()
  }

  /** Ends all renewal. */
  close(): void {
    this.#closed = true
    this.#held.clear()
    this.#disarm()
  }

  /**
   * Renews one now, for `ms`.
   * @throws LeaseLostError
   */
  async extend(lease: Lease, ms: number): Promise<void> {
    const { physical } = lease.delivery
    for (let tries = 0; !lease.lost && !lease.writing && this.#held.has(lease); tries += 1) {
      const sentAt = performance.now()
      const { rows } = await lease.track(this.#db.query<ExtendRow>(extend(physical, [lease.delivery], ms)))
      const state = rows[0]?.state
      if (state === 'extended') {
        lease.heldUntil = Math.max(lease.heldUntil, sentAt + ms)
        return
      }
      if (state === undefined) this.#lose(lease, 'was delivered again or removed')
      else if (tries < lockedTries) await sleep(lockedRetryMs)
      else
        throw new LeaseLostError(
          `message ${lease.delivery.msgId} of queue "${physical}" is locked by somebody`,
        )
    }
    throw new LeaseLostError(`message ${lease.delivery.msgId} of queue "${physical}" is no longer held here`)
  }

  #arm(ms: number): void {
    if (this.#timer || this.#closed || this.#held.size === 0) return
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#loseUnrenewed()
      void this.#renewAll()
      this.#arm(this.#failing ? Math.min(retryMs, this.#visibilityTimeout / 3) : this.#visibilityTimeout / 3)
    }, ms)
    this.#timer.unref()
  }

  #disarm(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #loseUnrenewed(): void {
    const now = performance.now()
    for (const lease of this.#held) {
      if (
        lease.renew &&
        !lease.cancelled &&
        now > Math.max(lease.renewedAt + 2 * this.#visibilityTimeout, lease.heldUntil)
      ) {
        this.#lose(lease, 'could not be renewed for two visibility timeouts')
      }
    }
  }

  async #renewAll(): Promise<void> {
    const leases = this.held.filter(lease => lease.renewable)
    const tables = groupBy(leases, lease => lease.delivery.physical)
    await Promise.all([...tables].map(([physical, leases]) => this.#renew(physical, leases)))
  }

  /** One table at a time, and each table by itself: a statement that hangs delays only its own. */
  async #renew(physical: string, leases: Lease[]): Promise<void> {
    if (this.#renewing.has(physical)) return
    this.#renewing.add(physical)
    const sentAt = performance.now()
    try {
      const tokens = leases.map(lease => lease.delivery)
      const statement = this.#db.query<ExtendRow>(extend(physical, tokens, this.#visibilityTimeout))
      for (const lease of leases) void lease.track(statement)
      const { rows } = await statement
      const states = new Map(rows.map(row => [row.msg_id, row.state]))
      for (const lease of leases) {
        const state = states.get(lease.delivery.msgId)
        if (state === 'extended') lease.renewedAt = sentAt
        // What is being written may be gone because it was written.
        else if (state === undefined && this.#held.has(lease) && !lease.writing) {
          this.#lose(lease, 'was delivered again or removed')
        }
      }
      this.#recovered()
    } catch (error) {
      if (sqlState(error) === '42P01') {
        for (const lease of leases) if (this.#held.has(lease)) this.#lose(lease, 'went with its queue')
        return
      }
      this.#failed(error)
    } finally {
      this.#renewing.delete(physical)
    }
  }

  #lose(lease: Lease, reason: string): void {
    if (lease.lost || lease.cancelled) return
    this.#lostCount += 1
    const { physical, msgId, readCount } = lease.delivery
    this.#log.warn(
      { queue: physical, msg_id: msgId, attempt: readCount },
      `lease lost: the message ${reason}`,
    )
    lease.lose(reason)
  }

  #failed(error: unknown): void {
    if (this.#closed) return
    if (!this.#failing) this.#log.warn({ err: error }, 'leases cannot be renewed at the moment, trying again')
    this.#failing = true
    // Sooner than planned.
    this.#disarm()
    this.#arm(Math.min(retryMs, this.#visibilityTimeout / 3))
  }

  #recovered(): void {
    if (this.#failing) this.#log.info('leases are renewed again')
    this.#failing = false
  }
}
