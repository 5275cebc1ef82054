import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { Backoff } from '../core/backoff.ts'
import { ConnectionCircuitOpenError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { type ConnectionBreaker, concernsConnection } from '../db/connection-breaker.ts'
import { type Database, sqlState } from '../db/database.ts'
import { logicalOf } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { type ClaimManyRow, claimMany } from '../pgmq/statements.ts'
import type { ExclusiveQueues } from './exclusive-queues.ts'
import { QueueList } from './queue-list.ts'
import type { Work } from './work.ts'

/** One delivery of a message. Table, id and read count identify it. */
export interface Delivery {
  readonly physical: string
  readonly msgId: number
  readonly readCount: number
  readonly enqueuedAt: Date
  /** JSON text; null: SQL NULL. */
  readonly message: string | null
  readonly headers: string | null
  /** Monotonic time before the claim was sent: the lease lasts at least `visibilityTimeout` from here. */
  readonly claimedAt: number
  /** The one message that a queue gives after the pause of its breaker. */
  readonly probe: boolean
}

export interface Claim {
  /** In the order in which they are to start. */
  readonly deliveries: Delivery[]
  /** Time until the next message comes due; null: none known. Only meaningful when fewer came than were asked for. */
  readonly dueInMs: number | null
  /** No queue could be read: all are paused, missing, or in the hands of another worker. */
  readonly blocked: boolean
  /** It failed, which was reported; how long to wait before the next. */
  readonly failedForMs: number | null
}

export interface ClaimerOptions {
  db: Database
  queues: Queues
  breaker: ConnectionBreaker
  config: ResolvedConfig
  entry: ResolvedWorkerEntry
  /** Knows the tables of a queue. */
  work: Pick<Work, 'tablesOf' | 'isForPatterns'>
  log: Logger
  report: Report
  /** Told when the set of tables has changed. */
  onTables: (tables: string[]) => void
  /** Run before each claim; when it fails, the claim fails. */
  prepare: () => Promise<void>
  /** Holds the queues that only one worker may read; absent: all may. */
  exclusive?: ExclusiveQueues | undefined
}

/** How often patterns are resolved without being told of a new queue. */
const refreshMs = 30_000
const retryMaxMs = 5_000
const circuitPollMs = 1_000

/**
 * Claims messages from the queues of one worker. What is claimed is hidden from others and charged one read. Never
 * throws: a claim that fails says how long to wait.
 */
export class Claimer {
  readonly list: QueueList
  readonly #options: ClaimerOptions
  readonly #backoff: Backoff
  /** What kind of failure claims are in. */
  #failure: string | undefined
  #missing: readonly string[] = []
  #paused: readonly string[] = []
  #refreshAt = 0
  #refreshFailed = false
  readonly #grouped = new Set<string>()

  constructor(options: ClaimerOptions) {
    const { config, entry, work, log, onTables } = options
    this.#options = options
    this.list = new QueueList({ config, entry, work, log, onTables })
    this.#backoff = new Backoff({
      base: Math.max(100, Math.min(config.pollingInterval, retryMaxMs)),
      max: retryMaxMs,
      random: Math.random,
    })
  }

  /** Tables that did not exist at the last look. */
  get missing(): readonly string[] {
    return this.#missing
  }

  /** Queues that were paused at the last look. */
  get paused(): readonly string[] {
    return this.#paused
  }

  /** Queues that another worker holds. */
  get locked(): readonly string[] {
    const { exclusive } = this.#options
    return exclusive ? this.list.names.filter(name => !exclusive.holds(name)) : []
  }

  /** Makes the next claim resolve the patterns. */
  refresh(): void {
    this.#refreshAt = 0
  }

  /** Claims up to `quantity` messages. */
  async claim(quantity: number): Promise<Claim> {
    try {
      const claim = await this.#claim(quantity)
      if (this.#failure !== undefined) this.#options.log.info('messages are fetched again')
      this.#failure = undefined
      this.#backoff.reset()
      return claim
    } catch (error) {
      const failedForMs = this.#failed(error)
      return { deliveries: [], dueInMs: null, blocked: true, failedForMs }
    }
  }

  async #claim(quantity: number): Promise<Claim> {
    const { exclusive, entry } = this.#options
    await this.#options.prepare()
    await this.#resolvePatterns()
    await exclusive?.acquire(this.list.names)
    const target = this.list.next(quantity, name => exclusive?.holds(name) ?? true)
    if (target.tables.length === 0) {
      return { deliveries: [], dueInMs: null, blocked: true, failedForMs: null }
    }
    if (entry.groupMode !== null) await this.#prepareGroups(target.tables)
    const { visibilityTimeout, zombieDetection } = this.#options.config
    const statement = claimMany(target.tables, quantity, Math.round(visibilityTimeout), {
      ...target,
      mode: entry.groupMode ?? 'plain',
      failedNames: zombieDetection ? target.failedNames : null,
    })
    const claimedAt = performance.now()
    const { rows } = exclusive
      ? await exclusive.query<ClaimManyRow>(statement)
      : await this.#options.breaker.guard(() => this.#options.db.query<ClaimManyRow>(statement))
    return this.#read(rows, target.tables.length, claimedAt)
  }

  #read(rows: readonly ClaimManyRow[], tables: number, claimedAt: number): Claim {
    const deliveries: Delivery[] = []
    const missing: string[] = []
    const paused: string[] = []
    let dueInMs: number | null = null
    // A full claim stops early and tells nothing of the tables behind.
    let complete = false
    for (const row of rows) {
      if (row.physical === null) {
        dueInMs = row.due_in_ms
        complete = true
      } else if (row.state === 'missing') missing.push(row.physical)
      else if (row.state === 'paused') paused.push(row.physical)
      else if (row.msg_id !== null) {
        deliveries.push(deliveryOf(row, row.physical, row.msg_id, claimedAt))
        this.list.served(row.physical, row.turn)
        if (row.unrecorded) this.#warnOfZombie(row.physical, row.msg_id, row.read_ct)
      }
    }
    this.#noteMissing(complete ? missing : [...new Set([...this.#missing, ...missing])])
    const names = paused.map(table => logicalOf(this.#options.config, table))
    this.#paused = [...new Set(complete ? names : [...this.#paused, ...names])]
    const blocked = missing.length + paused.length === tables
    return { deliveries, dueInMs, blocked, failedForMs: null }
  }

  async #resolvePatterns(): Promise<void> {
    const now = performance.now()
    if (!this.list.hasPatterns || now < this.#refreshAt) return
    const { queues, breaker, report, entry } = this.#options
    // Set before the answer: what is made while the question is under way asks again.
    this.#refreshAt = now + refreshMs
    try {
      this.list.resolve(await breaker.guard(() => queues.workTables()))
      this.#refreshFailed = false
    } catch (error) {
      this.#refreshAt = Math.min(this.#refreshAt, now + retryMaxMs)
      if (this.list.names.length === 0) this.list.fallBack()
      // The claim that follows tells of a connection that is away.
      if (concernsConnection(error) || error instanceof ConnectionCircuitOpenError) return
      if (!this.#refreshFailed) report(error, { action: 'resolve_queues', queues: entry.queues })
      this.#refreshFailed = true
    }
  }

  /** Best effort: without its index a queue with groups is only slower. */
  async #prepareGroups(tables: readonly string[]): Promise<void> {
    for (const table of tables) {
      if (this.#grouped.has(table)) continue
      this.#grouped.add(table)
      try {
        await this.#options.queues.indexGroups(table)
      } catch (error) {
        this.#options.report(error, { action: 'index_groups', queue: table })
      }
    }
  }

  /** How long to wait. */
  #failed(error: unknown): number {
    if (error instanceof ConnectionCircuitOpenError) return Math.min(error.retryInMs, circuitPollMs)
    const failure = concernsConnection(error) ? 'connection' : sqlState(error) || String(error)
    if (failure !== this.#failure) {
      this.#options.report(error, { action: 'fetch_messages', queues: this.#options.entry.queues })
    }
    this.#failure = failure
    return this.#backoff.next()
  }

  #noteMissing(missing: readonly string[]): void {
    const { log, config } = this.#options
    for (const table of missing) {
      this.#grouped.delete(table)
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
  }

  #warnOfZombie(physical: string, msgId: number, readCount: number | null): void {
    this.#options.log.warn(
      { queue: physical, msg_id: msgId, read_ct: readCount },
      'message redelivered without a recorded failure: the process that had it died, froze or lost its connection',
    )
  }
}

export function deliveryOf(row: ClaimManyRow, physical: string, msgId: number, claimedAt: number): Delivery {
  return {
    physical,
    msgId,
    readCount: row.read_ct ?? 1,
    enqueuedAt: row.enqueued_at ?? new Date(0),
    message: row.message,
    headers: row.headers,
    claimedAt,
    probe: row.state === 'probe',
  }
}
