import type { ResolvedConfig } from '../config/options.ts'
import type { Duration } from '../core/duration.ts'
import { SchemaNotReadyError } from '../core/errors.ts'
import { encodeText, type JsonValue } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import { checkTx } from '../db/caller-client.ts'
import { type Database, type Queryable, sqlState } from '../db/database.ts'
import type { Job } from '../jobs/define.ts'
import { checkDue, checkHeaders, checkOptions, type EnqueueOptions, type Prepared } from '../jobs/enqueue.ts'
import { checkWhole } from '../jobs/paging.ts'
import { priorityLevels, validateQueueName } from '../pgmq/names.ts'
import { Entries } from './entries.ts'

export interface OutboxOptions {
  /** Plain JSON, stored beside the message. */
  headers?: Record<string, JsonValue> | undefined
  /** Earliest delivery, from now: from the insert, not from the time when the poller comes by. */
  delay?: Duration | undefined
  /** Entries of one group and destination are published in order, whatever fails. 1 to 255 characters. */
  group?: string | undefined
  /** A connected client: the entry exists exactly if its transaction commits. */
  tx?: Queryable | undefined
}

export interface OutboxMessageOptions extends OutboxOptions {
  /** Lower runs first, with `priority.levels`. Default `priority.default`. */
  priority?: number | undefined
}

export interface OutboxEventOptions extends Omit<OutboxOptions, 'delay'> {
  /** Identifies the event for idempotent handlers. 1 to 255 characters. Default: a UUID of version 7. */
  eventId?: string | undefined
  /** Earliest delivery: from now, or a point in time. */
  delay?: Duration | Date | undefined
}

export interface FlushResult {
  published: number
  /** Could not be sent, and are tried again later. */
  failed: number
}

/** Channel that tells of new entries, written by whomever. */
export const outboxChannel = 'pgmq.pgbus_outbox_entries.INSERT'

/** One call of `pgbus_outbox_flush`. */
export interface Pass extends FlushResult {
  /** As many were taken as were asked for: there may be more. */
  more: boolean
  /** Until the next one that failed is due; null: none within a day. */
  nextDueMs: number | null
  /** The first of those that failed. */
  failures: { id: number; destination: string; attempts: number; error: string }[]
}

/** Where a message is to go, checked and serialised. */
interface Entry {
  queue: string | null
  routingKey: string | null
  payload: string
  headers: string | null
  priority: number | null
  due: Prepared['due']
  /** JSON text; what is decided when it is published. */
  rules: string | null
}

/** What other features do for the outbox: the same as for a direct enqueue or publish, short of writing. */
export interface OutboxSources {
  prepareJob(job: Pick<Job, 'name'> | string, args: unknown, options: EnqueueOptions): Promise<Prepared>
  prepareEvent(
    routingKey: string,
    payload: unknown,
    options: object,
  ): { message: string; headers: string | null; due: Prepared['due'] }
}

const messageOptions = new Set(['headers', 'delay', 'group', 'tx', 'priority'])
const eventOptions = new Set(['headers', 'delay', 'group', 'tx', 'eventId'])
const flushSize = 1_000
/** A table, a function, a column or a type is missing. */
const missingCodes = new Set(['42P01', '42883', '42703', '42704'])

/**
 * Messages on their way to queues and to the event bus, in a table that a transaction may write to without any right on
 * the queues. A poller, in a host with `outbox.enabled`, sends them. Whatever is wrong with one is refused when it is
 * written, as far as that can be told.
 */
export class Outbox {
  /** What waits: list, retry, discard. */
  readonly entries: Entries
  readonly #db: Database
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #sources: OutboxSources
  #asked = false

  /** @internal */
  constructor(options: { db: Database; config: ResolvedConfig; log: Logger } & OutboxSources) {
    this.entries = new Entries(options.db)
    this.#db = options.db
    this.#config = options.config
    this.#log = options.log
    this.#sources = options
  }

  /**
   * Writes a message for a queue, as it is to lie there. Resolves to the id of the entry; with `tx`, when it was written
   * into the caller's transaction.
   * @throws TypeError, InvalidQueueNameError, SerializationError, PayloadTooLargeError; SchemaNotReadyError.
   */
  async publish(queue: string, payload: JsonValue, options: OutboxMessageOptions = {}): Promise<number> {
    const where = `outbox.publish to "${queue}"`
    checkOptions(where, options, messageOptions)
    const { priority = this.#config.priority.default } = options
    if (!Number.isSafeInteger(priority) || priority < 0) {
      throw new TypeError(`${where}: priority must be an integer of at least 0, got ${String(priority)}`)
    }
    return this.#insert(options.tx, {
      queue: validateQueueName(this.#config, queue),
      routingKey: null,
      payload: encodeText(payload, { root: 'payload', plain: true }),
      headers: checkHeaders(where, options),
      priority,
      due: checkDue(where, { delay: options.delay }),
      rules: null,
    })
  }

  /** Writes an event for the bus; see {@link Outbox.publish} and `Pgbus.publish`. */
  async publishEvent(
    routingKey: string,
    payload: unknown,
    options: OutboxEventOptions = {},
  ): Promise<number> {
    checkOptions('outbox.publishEvent', options, eventOptions)
    const { tx, ...own } = options
    const { message, headers, due } = this.#sources.prepareEvent(routingKey, payload, own)
    return this.#insert(tx, {
      queue: null,
      routingKey,
      payload: message,
      headers,
      priority: 0,
      due,
      rules: null,
    })
  }

  /**
   * Writes a job; see {@link Outbox.publish} and `Pgbus.enqueue`. Whether a unique job is left out is decided when it is
   * published, and noted with the entry.
   */
  async enqueue<A>(
    job: Pick<Job<A>, 'name'> | string,
    args: A,
    options: EnqueueOptions = {},
  ): Promise<number> {
    const { tx, ...own } = options
    const prepared = await this.#sources.prepareJob(job as Pick<Job, 'name'>, args, own)
    const { unique } = prepared
    return this.#insert(tx, {
      queue: prepared.queue,
      routingKey: null,
      payload: prepared.message,
      headers: prepared.headers,
      priority: prepared.rank,
      due: prepared.due,
      rules: unique ? JSON.stringify({ unique: { key: unique.key, on_conflict: unique.onConflict } }) : null,
    })
  }

  /**
   * Publishes what is there now, up to `max` entries (default: all), for tests and scripts. What another poller is
   * publishing at this moment is left to it.
   */
  async flush({ max = Number.MAX_SAFE_INTEGER }: { max?: number | undefined } = {}): Promise<FlushResult> {
    checkWhole('max', max, Number.MAX_SAFE_INTEGER)
    const result = { published: 0, failed: 0 }
    for (let left = max; left > 0; ) {
      const { published, failed, more } = await this.pass(Math.min(left, flushSize))
      result.published += published
      result.failed += failed
      left -= published + failed
      if (!more || published + failed === 0) break
    }
    return result
  }

  /** One transaction that publishes up to `most` entries. @internal */
  async pass(most: number): Promise<Pass> {
    const { queuePrefix, notify } = this.#config
    try {
      const { rows } = await this.#db.query<{
        published: number
        failed: number
        more: boolean
        next_due_ms: number | null
        failures: Pass['failures']
      }>({
        name: 'outbox_flush',
        text: 'SELECT published, failed, more, next_due_ms, failures FROM pgbus_outbox_flush($1::int, $2::text, $3::int, $4::boolean)',
        values: [most, `${queuePrefix.toLowerCase()}_`, priorityLevels(this.#config), notify.enabled],
      })
      const { next_due_ms, ...counts } = rows[0]!
      return { ...counts, nextDueMs: next_due_ms }
    } catch (error) {
      throw schemaError(error)
    }
  }

  async #insert(client: Queryable | undefined, entry: Entry): Promise<number> {
    const tx = checkTx(client)
    const { due } = entry
    const text = `INSERT INTO pgbus_outbox_entries
  (queue_name, routing_key, payload, headers, priority, due_at, options, created_at)
SELECT $1::text, $2::text, $3::jsonb, $4::jsonb, $5::int,
       coalesce(to_timestamp($6::float8 / 1000), clock_timestamp() + $7::float8 * interval '1 millisecond'), $8::jsonb,
       clock_timestamp() AT TIME ZONE 'UTC'
RETURNING id`
    const values = [
      entry.queue,
      entry.routingKey,
      entry.payload,
      entry.headers,
      entry.priority,
      'at' in due ? due.at : null,
      'at' in due || due.delayMs === 0 ? null : due.delayMs,
      entry.rules,
    ]
    try {
      const { rows } = await (tx ? tx.query(text, values) : this.#db.query(text, values))
      void this.#warnWithoutPoller()
      return Number((rows[0] as { id: unknown }).id)
    } catch (error) {
      throw schemaError(error)
    }
  }

  /** Once: entries wait for ever when no host has `outbox.enabled`. */
  async #warnWithoutPoller(): Promise<void> {
    if (this.#asked || this.#config.outbox.enabled) return
    this.#asked = true
    try {
      const { rows } = await this.#db.query(
        "SELECT FROM pgbus_processes WHERE kind = 'outbox_poller' LIMIT 1",
      )
      if (rows.length > 0) return
      this.#log.warn(
        'the outbox is written to, but no poller is registered; set outbox.enabled where pgbus start runs, or call pgbus.outbox.flush()',
      )
    } catch {
      // A hint that cannot be given is not worth an error.
    }
  }
}

function schemaError(error: unknown): unknown {
  if (!missingCodes.has(sqlState(error))) return error
  return new SchemaNotReadyError(
    `the outbox is not installed (${(error as Error).message}) — run "pgbus migrate" (011_outbox.sql)`,
    { cause: error },
  )
}
