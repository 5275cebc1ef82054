import type { ResolvedConfig } from '../config/options.ts'
import { ClosedError, PoolTimeoutError, ReadTimeoutError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep } from '../core/sleep.ts'
import {
  type Database,
  isConflict,
  isConnectionError,
  provesNothingRan,
  type Statement,
  sqlState,
} from '../db/database.ts'
import { buryTracked, finishTracked, isLockedWhileRunning, isTracked } from '../limits/statements.ts'
import { deadLetterName, failedName, logicalOf } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import {
  archiveMany,
  type BuryItem,
  buryMany,
  deleteMany,
  extend,
  type MessageIdRow,
  type RetryItem,
  release,
  retryMany,
  type Token,
} from '../pgmq/statements.ts'
import { deadLetterText } from './dead-letter.ts'
import type { ErrorRecord } from './failures.ts'
import { GroupCommit } from './group-commit.ts'
import type { Lease } from './lease.ts'

/** How an attempt ended, as it is written. */
export type Outcome =
  /** Done, or discarded. */
  | { kind: 'archive'; discarded?: boolean | undefined }
  /** The same for a job that keeps no archive. */
  | { kind: 'delete'; discarded?: boolean | undefined }
  /** Failed, to run again. */
  | { kind: 'retry'; delayMs: number; record: ErrorRecord }
  /** Hopeless. */
  | { kind: 'bury'; record: ErrorRecord | null; failedAt: Date }
  /** Given back unrun, not charged: to the front of the line, or for later. */
  | { kind: 'release'; delayMs?: number | undefined }
  /** Done, by a statement of whoever knows what else belongs to that end. */
  | { kind: 'own'; token: Token; ending: OwnEnding<Token> }

/** How messages of one kind end. Those that end together share a statement. */
export interface OwnEnding<T extends Token> {
  /** Among all such endings. */
  readonly name: string
  /** Fenced and idempotent; rows `{ msg_id }` of the deliveries that have ended, now or by an earlier try. */
  statement(physical: string, tokens: readonly T[], failedName: string): Statement
}

/**
 * `written`; `lost`: the message was not ours any more, nothing changed; `unrecorded`: it could not be written
 * while the message was held, so it will be delivered again.
 */
export type Written = 'written' | 'lost' | 'unrecorded'

const repeatMs = [100, 500, 1_000, 2_000, 4_000, 5_000]
const conflictTries = 3

/**
 * Writes how attempts ended. Each end is one fenced statement: it changes rows that are still this delivery, and
 * nothing else. Ends of one kind and queue that come while such a statement runs share the next one.
 *
 * A statement that fails with its connection is repeated for as long as the lease can be renewed: the handler has
 * done its work, and only the database knows whether that was recorded. A repeat that finds nothing to change then
 * means that the lost reply was a good one.
 */
export class Outcomes {
  readonly #db: Database
  readonly #queues: Queues
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #report: Report
  readonly #onRelease: (lease: Lease) => Promise<void>
  readonly #groups = new Map<string, unknown>()
  /** Errors of statements that may have been executed all the same. */
  readonly #uncertain = new WeakSet<object>()
  readonly #closed = new AbortController()
  #outage = false

  constructor(options: {
    db: Database
    queues: Queues
    config: ResolvedConfig
    log: Logger
    report: Report
    /** Waited for before a delivery is given back. */
    onRelease: (lease: Lease) => Promise<void>
  }) {
    this.#db = options.db
    this.#queues = options.queues
    this.#config = options.config
    this.#log = options.log
    this.#report = options.report
    this.#onRelease = options.onRelease
  }

  /** Writes one end. Never rejects. */
  async write(lease: Lease, outcome: Outcome): Promise<Written> {
    lease.writing = true
    let conflicts = 0
    let maybeWritten = false
    // At least once: a lease that is lost for want of a renewal may still be ours in the database.
    for (let tries = 0; (tries === 0 || !lease.lost) && !this.#closed.signal.aborted; tries += 1) {
      try {
        const mine = await this.#send(lease, outcome)
        this.#recovered()
        return mine || maybeWritten ? 'written' : 'lost'
      } catch (error) {
        if (error instanceof ClosedError) return 'unrecorded'
        if (isTransient(error)) {
          this.#failing(error)
          // What is archived can be found there, so a repeat of that knows by itself.
          if (outcome.kind !== 'archive' && outcome.kind !== 'own')
            maybeWritten ||= this.#uncertain.has(error as object)
          // Never repeated: the next claim carries the token of what was released, and would lose its message.
          if (outcome.kind === 'release' && maybeWritten) return 'written'
          if (!maybeWritten) lease.resumeRenewal()
          await sleep(repeatMs[tries] ?? repeatMs.at(-1)!, this.#closed.signal)
        } else if (isConflict(error) && conflicts < conflictTries) {
          conflicts += 1
          await sleep(10 + Math.random() * 40, this.#closed.signal)
        } else if (sqlState(error) === '42P01') {
          return 'lost'
        } else {
          return this.#giveUp(lease, outcome, error)
        }
      }
    }
    return 'unrecorded'
  }

  /** Lets no statement begin any more; whoever waits to repeat one gives up. */
  close(): void {
    this.#closed.abort()
  }

  async #send(lease: Lease, outcome: Outcome): Promise<boolean> {
    const { physical, msgId, readCount, message } = lease.delivery
    const token = { msgId, readCount }
    const failed = failedName(this.#config, physical)
    const tracked = isTracked(message)
    const unlock = tracked && isLockedWhileRunning(message)
    switch (outcome.kind) {
      case 'archive':
      case 'delete': {
        const { kind, discarded = false } = outcome
        const plain = kind === 'archive' ? archiveMany : deleteMany
        return this.#group<Token>(tracked ? `${kind} tracked ${discarded}` : kind, physical, items =>
          tracked ? finishTracked(physical, outcome, items, failed) : plain(physical, items, failed),
        ).add(token)
      }
      case 'retry':
        // A renewal that is executed after it would put off the next attempt.
        await lease.pauseRenewal()
        return this.#group<RetryItem>(`retry ${unlock}`, physical, items =>
          retryMany(physical, items, failed, { unlock }),
        ).add({
          ...token,
          ...outcome.record,
          delayMs: outcome.delayMs,
        })
      case 'bury':
        return this.#bury(physical, tracked, {
          ...token,
          deadLetter: deadLetterText(physical, token, outcome.record, outcome.failedAt),
        })
      case 'release':
        // Told first, and waited for until it is told: the next claim carries the same token, and whoever still
        // counts this one as held here would give away a message that runs elsewhere.
        await this.#onRelease(lease)
        return this.#group<Token>(`release ${outcome.delayMs ?? ''} ${unlock}`, physical, items =>
          release(physical, items, outcome.delayMs ?? null, { unlock }),
        ).add(token)
      case 'own':
        return this.#group<Token>(`own ${outcome.ending.name}`, physical, items =>
          outcome.ending.statement(physical, items, failed),
        ).add(outcome.token)
    }
  }

  async #bury(physical: string, tracked: boolean, item: BuryItem): Promise<boolean> {
    const { deadLetters, group } = this.#burial(physical, tracked)
    await this.#queues.ensurePhysical(deadLetters, 'dlq')
    try {
      return await group.add(item)
    } catch (error) {
      if (sqlState(error) !== '42P01') throw error
      // A peer dropped the dead-letter queue, or the queue itself: then the second try says so.
      this.#queues.forget(deadLetters)
      await this.#queues.ensurePhysical(deadLetters, 'dlq')
      return group.add(item)
    }
  }

  #burial(
    physical: string,
    tracked: boolean,
  ): { deadLetters: string; group: GroupCommit<BuryItem, boolean> } {
    const write = tracked ? buryTracked : buryMany
    const deadLetters = deadLetterName(this.#config, logicalOf(this.#config, physical))
    const failed = failedName(this.#config, physical)
    return {
      deadLetters,
      group: this.#group<BuryItem>(tracked ? 'bury tracked' : 'bury', physical, items =>
        write(physical, deadLetters, items, failed),
      ),
    }
  }

  #group<T extends Token>(
    kind: string,
    physical: string,
    statement: (items: readonly T[]) => Statement,
  ): GroupCommit<T, boolean> {
    const key = `${kind}:${physical}`
    let group = this.#groups.get(key) as GroupCommit<T, boolean> | undefined
    if (!group) {
      group = new GroupCommit<T, boolean>({
        run: async items => {
          const { rows } = await this.#db.query<MessageIdRow>(statement(items)).catch((error: unknown) => {
            if (mayHaveRun(error)) this.#uncertain.add(error as object)
            throw error
          })
          const moved = new Set(rows.map(row => row.msg_id))
          return items.map(item => moved.has(item.msgId))
        },
      })
      this.#groups.set(key, group)
    }
    return group
  }

  #failing(error: unknown): void {
    if (!this.#outage) {
      this.#log.warn({ err: error }, 'ends of jobs cannot be recorded at the moment, trying again')
    }
    this.#outage = true
  }

  #recovered(): void {
    if (this.#outage) this.#log.info('ends of jobs are recorded again')
    this.#outage = false
  }

  /** Not the connection: repeating would not help. A failure still gets its delay, unrecorded. */
  async #giveUp({ delivery }: Lease, outcome: Outcome, error: unknown): Promise<Written> {
    const { physical, msgId } = delivery
    const action = outcome.kind === 'retry' ? 'record_failed_event' : 'record_outcome'
    this.#report(error, { action, outcome: outcome.kind, queue: physical, msg_id: msgId })
    if (outcome.kind !== 'retry') return 'unrecorded'
    try {
      await this.#db.query(extend(physical, [delivery], outcome.delayMs))
      return 'written'
    } catch {
      // Reported above; the lease runs out, which retries the job too.
      return 'unrecorded'
    }
  }
}

/** The database, or the way to it, is not there at the moment. */
function isTransient(error: unknown): boolean {
  return (
    isConnectionError(error) ||
    error instanceof PoolTimeoutError ||
    error instanceof ReadTimeoutError ||
    // A standby that is being promoted; a server that refuses writes meanwhile.
    sqlState(error) === '25006'
  )
}

/** The answer was lost, rather than bad. */
function mayHaveRun(error: unknown): boolean {
  const reason = error instanceof ReadTimeoutError ? error.cause : error
  return isConnectionError(reason) && !provesNothingRan(reason)
}
