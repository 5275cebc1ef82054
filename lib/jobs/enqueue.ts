import { randomUUID } from 'node:crypto'
import type { ResolvedConfig } from '../config/options.ts'
import { type Duration, longestDelayMs, parseDelay } from '../core/duration.ts'
import { EnqueueError, QueueNotFoundError } from '../core/errors.ts'
import { groupBy } from '../core/group-by.ts'
import { encodeText, type JsonValue } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import { sleep } from '../core/sleep.ts'
import { checkTx } from '../db/caller-client.ts'
import { type Database, isConflict, type Queryable, type Statement, sqlState } from '../db/database.ts'
import { type NeededSlot, neededSlot } from '../limits/concurrency.ts'
import { enqueueTracked, type TrackedRow } from '../limits/statements.ts'
import { type UniqueLock, uniqueLock } from '../limits/unique.ts'
import { type PhysicalName, targetQueue, validateQueueName } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { groupHeader, type MessageIdRow, type SendItem, sendChunks, sendMany } from '../pgmq/statements.ts'
import { findJob, type Job } from './define.ts'
import { writeEnvelope } from './envelope.ts'
import { GroupCommit } from './group-commit.ts'
import { applySchema } from './standard-schema.ts'
import { trackedResults } from './tracked-results.ts'

export interface EnqueueOptions {
  /** Logical queue. Default: that of the definition, else `defaultQueue`. */
  queue?: string | undefined
  /** Lower runs first, with `priority.levels`. Default: that of the definition, else `priority.default`. */
  priority?: number | undefined
  /** Earliest start, from now. Not together with `runAt`. */
  delay?: Duration | undefined
  /** Earliest start: a date, ISO 8601, or milliseconds of the epoch. In the past: now. */
  runAt?: Date | string | number | undefined
  /** Jobs of one group run one at a time and in order, where the worker has a `groupMode`. 1 to 255 characters. */
  group?: string | undefined
  /** Plain JSON, stored beside the message and found in `ctx.job.headers`. */
  headers?: Record<string, JsonValue> | undefined
  /** At most 255 characters. Default: a random UUID. */
  jobId?: string | undefined
  /** A connected client: the job exists exactly if its transaction commits. */
  tx?: Queryable | undefined
}

/**
 * `enqueued`. Of unique jobs also `replaced`: the job that waited has the new arguments; `duplicate`: one with the same
 * key has not ended yet, and nothing was stored. Where a limit is reached: `blocked`, it waits until others have ended;
 * `discarded`, nothing was stored.
 */
export type EnqueueStatus = 'enqueued' | 'replaced' | 'duplicate' | 'blocked' | 'discarded'

export interface EnqueueResult {
  status: EnqueueStatus
  jobId: string
  /** Null: it is in no queue. Void if the transaction given as `tx` rolls back. */
  msgId: number | null
  /** Logical name. */
  queue: string
}

/** One of `enqueueMany`. */
export interface EnqueueItem extends Omit<EnqueueOptions, 'tx'> {
  job: Pick<Job, 'name'> | string
  args: unknown
}

/** Checked, serialised, and knowing its table. */
export interface Prepared {
  readonly name: string
  readonly physical: PhysicalName
  readonly queue: string
  readonly jobId: string
  readonly message: string
  readonly headers: string | null
  /** From now, or a point in time that the clock of the database has to translate. */
  readonly due: { readonly delayMs: number } | { readonly at: number }
  /** Its place among those that wait for a slot. */
  readonly rank: number
  /** To be taken now. */
  readonly unique: UniqueLock | undefined
  /** To be taken now. */
  readonly slot: NeededSlot | undefined
}

const optionNames = new Set(['queue', 'priority', 'delay', 'runAt', 'group', 'headers', 'jobId', 'tx'])
const itemNames = new Set([...optionNames, 'job', 'args'])
const largeMessageBytes = 256 * 1024
const maxWarnedNames = 1_000
const conflictTries = 4

/**
 * Puts jobs on queues: checks, serialises, makes sure that the queue exists, writes. Whatever is refused is
 * refused before any SQL. Concurrent calls for one queue share statements.
 */
export class Enqueuer {
  readonly #db: Database
  readonly #queues: Queues
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #sends = new Map<PhysicalName, GroupCommit<SendItem, number>>()
  readonly #warnedNames = new Set<string>()

  constructor(options: { db: Database; queues: Queues; config: ResolvedConfig; log: Logger }) {
    this.#db = options.db
    this.#queues = options.queues
    this.#config = options.config
    this.#log = options.log
  }

  /**
   * Puts one job on its queue. Resolves when its statement committed; with `tx`, when it was written into the
   * caller's transaction, on which nothing but single statements is sent.
   * @throws TypeError for wrong options, SerializationError, PayloadTooLargeError; JobNotUniqueError,
   * ConcurrencyLimitExceededError; QueueNotFoundError when `tx` was aborted by a queue dropped elsewhere; else the driver's error.
   */
  async enqueue<A>(
    job: Pick<Job<A>, 'name'> | string,
    args: A,
    options: EnqueueOptions = {},
  ): Promise<EnqueueResult> {
    const name = jobName(job)
    checkOptions(`enqueue of "${name}"`, options, optionNames)
    const tx = checkTx(options.tx)
    const prepared = await this.#prepare(name, args, options, tx && 'inside a transaction')
    if (isTracked(prepared)) return (await this.#storeAll([prepared], tx))[0]!
    await this.#queues.ensurePhysical(prepared.physical, 'job')
    const [item] = await this.#resolveDue([prepared], tx)
    const msgId = tx
      ? await this.#sendOn(tx, prepared.physical, item!)
      : await this.#sendMerged(prepared.physical, item!)
    return resultOf(prepared, msgId)
  }

  /**
   * Puts many jobs on their queues in one transaction: all or none. Results are in list order.
   * @throws as {@link enqueue}; EnqueueError when the database stored another number.
   */
  async enqueueMany(
    items: readonly EnqueueItem[],
    options: { tx?: Queryable | undefined } = {},
  ): Promise<EnqueueResult[]> {
    if (!Array.isArray(items)) throw new TypeError('enqueueMany takes an array of jobs')
    checkOptions('enqueueMany', options, new Set(['tx']))
    const tx = checkTx(options.tx)
    const prepared: Prepared[] = []
    for (const [index, item] of items.entries()) {
      const name = jobName(item?.job)
      checkOptions(`enqueueMany, item ${index} ("${name}")`, item, itemNames)
      if ('tx' in item && item.tx !== undefined) {
        throw new TypeError('enqueueMany: give tx once, beside the list')
      }
      prepared.push(await this.#prepare(name, item.args, item, tx && 'inside a transaction'))
    }
    if (prepared.length === 0) return []
    return this.#storeAll(prepared, tx)
  }

  /**
   * Checks and serialises one job that somebody else stores, at another time. Throws as {@link enqueue} does before any
   * SQL.
   * @internal
   */
  async prepare<A>(job: Pick<Job<A>, 'name'> | string, args: A, options: EnqueueOptions): Promise<Prepared> {
    const name = jobName(job)
    checkOptions(`enqueue of "${name}"`, options, optionNames)
    return this.#prepare(name, args, options, 'through the outbox')
  }

  /** `elsewhere`: what is to be decided about it cannot be decided here and now. */
  async #prepare(
    name: string,
    args: unknown,
    options: EnqueueOptions,
    elsewhere: 'inside a transaction' | 'through the outbox' | undefined,
  ): Promise<Prepared> {
    const definition = findJob(name)
    const where = `enqueue of "${name}"`
    const queue = validateQueueName(
      this.#config,
      options.queue ?? definition?.queue ?? this.#config.defaultQueue,
    )
    const priority = options.priority ?? definition?.priority ?? null
    if (priority !== null && (!Number.isSafeInteger(priority) || priority < 0)) {
      throw new TypeError(`${where}: priority must be an integer of at least 0, got ${String(priority)}`)
    }
    const jobId = options.jobId ?? randomUUID()
    if (typeof jobId !== 'string' || jobId === '' || jobId.length > 255 || jobId.includes('\0')) {
      throw new TypeError(`${where}: jobId must be a string of 1 to 255 characters, got ${String(jobId)}`)
    }
    const now = Date.now()
    const due = checkDue(where, options)
    const scheduledAt = 'at' in due ? due.at : due.delayMs > 0 ? now + due.delayMs : null
    if (definition?.schema) await applySchema(name, definition.schema, args)
    const unique = definition?.unique && uniqueLock(name, definition.unique, args)
    const slot = definition?.concurrency && neededSlot(name, definition.concurrency, args)
    // A job that is to run later holds no slot until then, and a transaction that stays open holds up nobody.
    const isLater = elsewhere !== undefined || (scheduledAt !== null && scheduledAt > now)
    if (slot?.onConflict === 'raise' && isLater) {
      throw new TypeError(
        `${where}: its concurrency.onConflict "raise" cannot be decided ${elsewhere ?? 'for a job that is to run later'}`,
      )
    }
    const message = writeEnvelope({
      name,
      lock: unique,
      concurrencyKey: slot?.key,
      laterSlot: isLater ? slot : undefined,
      jobId,
      queue,
      priority,
      args,
      enqueuedAt: new Date(now),
      scheduledAt: scheduledAt === null ? null : new Date(scheduledAt),
    })
    this.#warnIfLarge(name, message)
    return {
      name,
      unique: unique?.strategy === 'untilExecuted' ? unique : undefined,
      slot: isLater ? undefined : slot,
      rank: priority ?? this.#config.priority.default,
      physical: targetQueue(this.#config, queue, priority),
      queue,
      jobId,
      message,
      headers: checkHeaders(where, options),
      due,
    }
  }

  #sendMerged(physical: PhysicalName, item: SendItem): Promise<number> {
    let sends = this.#sends.get(physical)
    if (!sends) {
      sends = new GroupCommit({
        run: items => this.#sendOnPool(physical, items),
        take: items => sendChunks(items)[0]?.length ?? 1,
      })
      this.#sends.set(physical, sends)
    }
    return sends.add(item)
  }

  /** On the pool a queue that a peer dropped is made again, and the statement sent once more. */
  async #sendOnPool(physical: PhysicalName, items: readonly SendItem[]): Promise<number[]> {
    return this.#recreating([physical], async () => {
      const { rows } = await this.#db.query<MessageIdRow>(sendMany(physical, items))
      return idsOf(rows, items.length)
    })
  }

  /** One statement of its own, without a name: it could collide with one of the caller's. */
  async #sendOn(tx: Queryable, physical: PhysicalName, item: SendItem): Promise<number> {
    const [row] = await this.#run<MessageIdRow>(tx, [physical], sendMany(physical, [item]))
    return idsOf(row ? [row] : [], 1)[0]!
  }

  async #storeAll(prepared: readonly Prepared[], tx: Queryable | undefined): Promise<EnqueueResult[]> {
    const tables = [...new Set(prepared.map(job => job.physical))]
    for (const table of tables) await this.#queues.ensurePhysical(table, 'job')
    if (tx) return this.#storeOn(tx, prepared, await this.#resolveDue(prepared, tx))
    return this.#recreating(tables, async () => {
      const items = await this.#resolveDue(prepared, undefined)
      const [table] = tables
      // One statement is a transaction by itself.
      if (prepared.every(isTracked)) return this.#storeTracked(prepared, items)
      if (tables.length === 1 && table && !prepared.some(isTracked) && sendChunks(items).length === 1) {
        const { rows } = await this.#db.query<MessageIdRow>(sendMany(table, items))
        return idsOf(rows, items.length).map((id, index) => resultOf(prepared[index]!, id))
      }
      return this.#db.transaction(transaction => this.#storeOn(transaction, prepared, items))
    })
  }

  /** Several statements, those first that may be refused: then nothing of the list is in the transaction. */
  async #storeOn(
    tx: Queryable,
    prepared: readonly Prepared[],
    items: readonly SendItem[],
  ): Promise<EnqueueResult[]> {
    const results = new Array<EnqueueResult>(items.length)
    const tracked = [...prepared.keys()].filter(index => isTracked(prepared[index]!))
    if (tracked.length > 0) {
      const jobs = tracked.map(index => prepared[index]!)
      const statement = enqueueTracked(jobs.map((job, at) => ({ ...job, ...items[tracked[at]!]! })))
      const rows = await this.#run<TrackedRow>(tx, [...new Set(jobs.map(job => job.physical))], statement)
      for (const [at, result] of this.#readTracked(jobs, rows).entries()) results[tracked[at]!] = result
    }
    const plain = [...prepared.keys()].filter(index => !isTracked(prepared[index]!))
    for (const [physical, indexes] of groupBy(plain, index => prepared[index]!.physical)) {
      let position = 0
      for (const chunk of sendChunks(indexes.map(index => items[index]!))) {
        const rows = await this.#run<MessageIdRow>(tx, [physical], sendMany(physical, chunk))
        for (const id of idsOf(rows, chunk.length)) {
          const index = indexes[position]!
          results[index] = resultOf(prepared[index]!, id)
          position += 1
        }
      }
    }
    return results
  }

  async #storeTracked(prepared: readonly Prepared[], items: readonly SendItem[]): Promise<EnqueueResult[]> {
    const statement = enqueueTracked(prepared.map((job, index) => ({ ...job, ...items[index]! })))
    for (let tries = 1; ; tries += 1) {
      try {
        const { rows } = await this.#db.query<TrackedRow>(statement)
        return this.#readTracked(prepared, rows)
      } catch (error) {
        if (tries === conflictTries || !isConflict(error)) throw error
        await sleep(10 + Math.random() * 40)
      }
    }
  }

  #readTracked(prepared: readonly Prepared[], rows: readonly TrackedRow[]): EnqueueResult[] {
    return trackedResults({ prepared, rows, config: this.#config, log: this.#log })
  }

  async #run<R>(tx: Queryable, tables: readonly PhysicalName[], statement: Statement): Promise<R[]> {
    try {
      const { rows } = await tx.query(statement.text, statement.values)
      return rows as R[]
    } catch (error) {
      if (sqlState(error) !== '42P01') throw error
      for (const table of tables) this.#queues.forget(table)
      throw new QueueNotFoundError(
        `queue "${tables.join('" or "')}" was dropped meanwhile, which aborted the transaction; run it again`,
        { cause: error },
      )
    }
  }

  /** Runs `send`; if a table is gone, makes all of them again and runs it once more. */
  async #recreating<T>(tables: readonly PhysicalName[], send: () => Promise<T>): Promise<T> {
    try {
      return await send()
    } catch (error) {
      if (sqlState(error) !== '42P01' && !(error instanceof QueueNotFoundError)) throw error
      for (const table of tables) {
        this.#queues.forget(table)
        await this.#queues.ensurePhysical(table, 'job')
      }
      return send()
    }
  }

  /** Translates points in time to delays by the clock of the database, which may differ from ours. */
  async #resolveDue(prepared: readonly Prepared[], tx: Queryable | undefined): Promise<SendItem[]> {
    let databaseNow = Number.NaN
    if (prepared.some(job => 'at' in job.due)) {
      const text = 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8::text AS now'
      const { rows } = await (tx ? tx.query(text) : this.#db.query(text))
      databaseNow = Number((rows[0] as { now: string }).now)
    }
    return prepared.map(({ message, headers, due }) => ({
      message,
      headers,
      delayMs: 'at' in due ? Math.max(0, due.at - databaseNow) : due.delayMs,
    }))
  }

  #warnIfLarge(name: string, message: string): void {
    // Characters are enough for a hint.
    if (message.length <= largeMessageBytes || this.#warnedNames.has(name)) return
    if (this.#warnedNames.size < maxWarnedNames) this.#warnedNames.add(name)
    this.#log.warn(
      { job: name, characters: message.length },
      'a job has large arguments; store large data elsewhere and enqueue a reference',
    )
  }
}

/** It takes more than a plain insert. */
function isTracked({ unique, slot }: Prepared): boolean {
  return unique !== undefined || slot !== undefined
}

function jobName(job: unknown): string {
  const name = typeof job === 'object' && job !== null ? (job as { name?: unknown }).name : job
  if (typeof name !== 'string' || name === '' || name.length > 255 || name.includes('\0')) {
    throw new TypeError('enqueue: the job must be one made by defineJob, or a name of 1 to 255 characters')
  }
  return name
}

/** @throws TypeError naming the option that does not exist. @internal */
export function checkOptions(where: string, options: unknown, names: ReadonlySet<string>): void {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError(`${where}: options must be an object`)
  }
  for (const name of Object.keys(options)) {
    if (!names.has(name)) {
      throw new TypeError(`${where}: unknown option "${name}"; there are ${[...names].join(', ')}`)
    }
  }
}

/** When a message is due. @throws TypeError, RangeError @internal */
export function checkDue(where: string, options: Pick<EnqueueOptions, 'delay' | 'runAt'>): Prepared['due'] {
  const { delay, runAt } = options
  if (delay !== undefined && runAt !== undefined) {
    throw new TypeError(`${where}: give delay or runAt, not both`)
  }
  if (runAt !== undefined) {
    const at = runAt instanceof Date ? runAt.getTime() : new Date(runAt).getTime()
    if (runAt === null || Number.isNaN(at)) {
      throw new TypeError(`${where}: runAt must be a valid date, got ${String(runAt)}`)
    }
    if (at - Date.now() > longestDelayMs) throw new RangeError(`${where}: runAt is above 100 years from now`)
    return { at }
  }
  return { delayMs: delay === undefined ? 0 : parseDelay(`${where}: delay`, delay) }
}

/** JSON text of the headers of a message, its group among them. @throws TypeError, SerializationError @internal */
export function checkHeaders(
  where: string,
  { headers, group }: Pick<EnqueueOptions, 'headers' | 'group'>,
): string | null {
  if (headers !== undefined && headers !== null && (typeof headers !== 'object' || Array.isArray(headers))) {
    throw new TypeError(`${where}: headers must be an object`)
  }
  if (group === undefined) return headers ? encodeText(headers, { root: 'headers', plain: true }) : null
  if (typeof group !== 'string' || group === '' || group.length > 255 || group.includes('\0')) {
    throw new TypeError(`${where}: group must be a string of 1 to 255 characters, got ${String(group)}`)
  }
  if (headers && Object.hasOwn(headers, groupHeader)) {
    throw new TypeError(`${where}: give group or the header "${groupHeader}", not both`)
  }
  return encodeText({ ...headers, [groupHeader]: group }, { root: 'headers', plain: true })
}

function idsOf(rows: readonly MessageIdRow[], count: number): number[] {
  if (rows.length !== count) {
    throw new EnqueueError(`the database stored ${rows.length} messages instead of ${count}`)
  }
  // A caller's client may parse bigint as text.
  return rows.map(row => Number(row.msg_id))
}

function resultOf(prepared: Prepared, msgId: number): EnqueueResult {
  return { status: 'enqueued', jobId: prepared.jobId, msgId, queue: prepared.queue }
}
