import { type Duration, longestDelayMs, parseDelay } from '../core/duration.ts'
import { SchemaNotReadyError, UnroutableEventError } from '../core/errors.ts'
import type { JsonValue } from '../core/json.ts'
import { checkRoutingKey } from '../core/topics.ts'
import { uuidV7 } from '../core/uuid.ts'
import { checkTx } from '../db/caller-client.ts'
import { type Database, type Queryable, type Statement, sqlState } from '../db/database.ts'
import { checkHeaders, checkOptions } from '../jobs/enqueue.ts'
import { sendChunks } from '../pgmq/statements.ts'
import { writeEvent } from './envelope.ts'

export interface PublishOptions {
  /** Identifies the event for idempotent handlers. 1 to 255 characters. Default: a UUID of version 7. */
  eventId?: string | undefined
  /** Plain JSON, stored beside the message and found in `event.headers`. */
  headers?: Record<string, JsonValue> | undefined
  /** Earliest delivery: from now, or a point in time. In the past: now. */
  delay?: Duration | Date | undefined
  /** Events of one group are handled one at a time and in order, where the consumer has a `groupMode`. */
  group?: string | undefined
  /** An event that no queue wants is an error. Default false. */
  mandatory?: boolean | undefined
  /** A connected client: the event exists exactly if its transaction commits. */
  tx?: Queryable | undefined
}

/** One of `publishMany`. */
export interface EventItem extends Omit<PublishOptions, 'tx'> {
  routingKey: string
  payload: unknown
}

export interface PublishResult {
  eventId: string
  /** How many queues it reached. 0 is no error: nobody wanted it. */
  queues: number
}

/** Checked and serialised. */
export interface PreparedEvent {
  readonly id: string
  readonly routingKey: string
  readonly message: string
  readonly headers: string | null
  /** From now, or a point in time, ms of the epoch. */
  readonly due: { readonly delayMs: number } | { readonly at: number }
  readonly mandatory: boolean
}

const optionNames = new Set(['eventId', 'headers', 'delay', 'group', 'mandatory', 'tx'])
const itemNames = new Set([...optionNames, 'routingKey', 'payload'])

/**
 * Publishes events. Which queues want one is decided, and every copy written, by one statement: all of them get it
 * or none does. Whatever is refused is refused before any SQL.
 */
export class Publisher {
  readonly #db: Database

  constructor(options: { db: Database }) {
    this.#db = options.db
  }

  /** @throws as {@link Publisher.publishMany}, and UnroutableEventError */
  async publish(routingKey: string, payload: unknown, options: PublishOptions = {}): Promise<PublishResult> {
    const tx = checkTx(options?.tx)
    const event = prepareEvent('publish', routingKey, payload, options)
    const [queues] = await this.#send([event], tx)
    const [result] = resultsOf([event], [queues!])
    return result!
  }

  /**
   * Publishes many in one transaction: all or none. Results are in list order.
   * @throws TypeError for what is wrong with a key or an option; SerializationError, PayloadTooLargeError;
   * UnroutableEventError, after which nothing is published; SchemaNotReadyError; else the driver's error.
   */
  async publishMany(
    items: readonly EventItem[],
    options: { tx?: Queryable | undefined } = {},
  ): Promise<PublishResult[]> {
    if (!Array.isArray(items)) throw new TypeError('publishMany takes an array of events')
    checkOptions('publishMany', options, new Set(['tx']))
    const tx = checkTx(options.tx)
    const events = items.map((item, index) => {
      const where = `publishMany, item ${index}`
      checkOptions(where, item, itemNames)
      const { routingKey, payload, ...own } = item
      if ('tx' in own && own.tx !== undefined) {
        throw new TypeError('publishMany: give tx once, beside the list')
      }
      return prepareEvent(where, routingKey, payload, own)
    })
    if (events.length === 0) return []
    const chunks = sendChunks(events)
    // One statement is a transaction by itself, and over before its answer can be judged.
    const isOne = chunks.length === 1 && !events.some(event => event.mandatory)
    if (tx || isOne) return resultsOf(events, await this.#sendChunks(chunks, tx))
    return this.#db.transaction(async own => resultsOf(events, await this.#sendChunks(chunks, own)))
  }

  async #sendChunks(chunks: readonly PreparedEvent[][], tx: Queryable | undefined): Promise<number[]> {
    const queues: number[] = []
    for (const chunk of chunks) queues.push(...(await this.#send(chunk, tx)))
    return queues
  }

  async #send(events: readonly PreparedEvent[], tx: Queryable | undefined): Promise<number[]> {
    const statement = sendEvents(events)
    try {
      // Without a name on the caller's client: it could collide with one of the caller's.
      const { rows } = await (tx ? tx.query(statement.text, statement.values) : this.#db.query(statement))
      return (rows as { queues: unknown }[]).map(row => Number(row.queues))
    } catch (error) {
      if (sqlState(error) !== '42883' && sqlState(error) !== '3F000') throw error
      throw new SchemaNotReadyError(
        `pgbus is not installed in this database (${(error as Error).message}) — run "pgbus migrate"`,
        { cause: error },
      )
    }
  }
}

/** @throws TypeError, RangeError, SerializationError, PayloadTooLargeError */
export function prepareEvent(
  where: string,
  routingKey: string,
  payload: unknown,
  options: PublishOptions,
): PreparedEvent {
  checkRoutingKey(routingKey)
  const what = `${where} of "${routingKey}"`
  checkOptions(what, options, optionNames)
  const { eventId = uuidV7(), delay, mandatory = false } = options
  if (typeof eventId !== 'string' || eventId === '' || eventId.length > 255 || eventId.includes('\0')) {
    throw new TypeError(`${what}: eventId must be a string of 1 to 255 characters, got ${String(eventId)}`)
  }
  if (typeof mandatory !== 'boolean') {
    throw new TypeError(`${what}: mandatory must be true or false, got ${String(mandatory)}`)
  }
  const now = Date.now()
  const due = checkDelay(what, delay)
  const dueAt = 'at' in due ? due.at : now + due.delayMs
  return {
    id: eventId,
    routingKey,
    message: writeEvent({
      id: eventId,
      routingKey,
      payload,
      publishedAt: new Date(now),
      dueAt: dueAt > now ? new Date(dueAt) : null,
    }),
    headers: checkHeaders(what, options),
    due,
    mandatory,
  }
}

function checkDelay(where: string, delay: Duration | Date | undefined): PreparedEvent['due'] {
  if (delay === undefined) return { delayMs: 0 }
  if (!(delay instanceof Date)) return { delayMs: parseDelay(`${where}: delay`, delay) }
  const at = delay.getTime()
  if (Number.isNaN(at)) throw new TypeError(`${where}: delay must be a valid date`)
  if (at - Date.now() > longestDelayMs) throw new RangeError(`${where}: delay is above 100 years from now`)
  return { at }
}

/** One row `{ queues }` per event, in their order: how many queues it reached. */
function sendEvents(events: readonly PreparedEvent[]): Statement {
  return {
    name: 'send_events',
    text: `SELECT count(s.msg_id)::int AS queues
  FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS e (message, position)
  LEFT JOIN LATERAL pgmq.send_batch_topic(
    ($2::text[])[e.position::int], ARRAY[e.message], ARRAY[(($3::text[])[e.position::int])::jsonb],
    clock_timestamp() + coalesce(($4::float8[])[e.position::int],
      greatest(0, ($5::float8[])[e.position::int] - extract(epoch FROM clock_timestamp()) * 1000)) * interval '1 millisecond'
  ) s ON true
 GROUP BY e.position ORDER BY e.position`,
    values: [
      `[${events.map(event => event.message).join()}]`,
      events.map(event => event.routingKey),
      events.map(event => event.headers),
      events.map(({ due }) => ('at' in due ? null : due.delayMs)),
      events.map(({ due }) => ('at' in due ? due.at : null)),
    ],
  }
}

function resultsOf(events: readonly PreparedEvent[], queues: readonly number[]): PublishResult[] {
  return events.map((event, index) => {
    if (queues[index] === 0 && event.mandatory) {
      throw new UnroutableEventError(
        `no queue wants an event "${event.routingKey}"; bind one with a handler and pgbus.events.setup(), or leave out mandatory`,
      )
    }
    return { eventId: event.id, queues: queues[index]! }
  })
}
