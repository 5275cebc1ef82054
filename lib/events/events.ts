import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import { checkRoutingKey } from '../core/topics.ts'
import { type Database, isConnectionError } from '../db/database.ts'
import { checkWhole } from '../jobs/paging.ts'
import { logicalOf, physicalName } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { definedHandlers, type HandlerDefinition } from './define.ts'
import { keyOf } from './idempotency.ts'

/** A handler of this process. */
export interface HandlerInfo {
  readonly name: string
  /** Logical name. */
  readonly queue: string
  /** Patterns of the routing keys that it handles. */
  readonly on: readonly string[]
  readonly idempotent: boolean | 'transaction'
}

/** A pattern by which the database routes events to a queue. */
export interface Binding {
  pattern: string
  /** Logical name; the physical one for a queue without our prefix. */
  queue: string
}

/** A binding, and whether a handler of this process asks for it. */
export interface BindingInfo extends Binding {
  boundAt: Date
  /** Null: no handler of this process has this queue, so another program may. */
  declared: boolean | null
}

/** An event that an idempotent handler has begun with and not completed. */
export interface PendingClaim {
  eventId: string
  handler: string
  /** When it was begun with for the first time. */
  since: Date
  /** Logical queue and message that it is handled for; null: another client began. */
  queue: string | null
  msgId: number | null
}

/** Handlers and routes of the event bus. Events are published with {@link Pgbus.publish}. */
export class Events {
  readonly #db: Database
  readonly #queues: Queues
  readonly #config: ResolvedConfig
  readonly #log: Logger

  /** @internal */
  constructor(options: { db: Database; queues: Queues; config: ResolvedConfig; log: Logger }) {
    this.#db = options.db
    this.#queues = options.queues
    this.#config = options.config
    this.#log = options.log
  }

  /** The handlers that this process defines. */
  handlers(): HandlerInfo[] {
    return definedHandlers().map(({ name, queue, on, idempotent }) => ({ name, queue, on, idempotent }))
  }

  /**
   * Creates the queues of the handlers of this process, and routes their events to them from now on. Nothing is ever
   * taken away: an old and a new release may run side by side. Consumers do this by themselves; a program that only
   * publishes does it to have its first events kept.
   * @param options.tolerateOutage - a database that cannot be reached is only logged.
   * @throws SchemaNotReadyError; InvalidQueueNameError; else the driver's error.
   */
  async setup({ tolerateOutage = false }: { tolerateOutage?: boolean | undefined } = {}): Promise<void> {
    try {
      for (const [queue, patterns] of patternsByQueue(definedHandlers())) {
        await this.#queues.bind(physicalName(this.#config, queue), patterns)
      }
    } catch (error) {
      if (!tolerateOutage || !isConnectionError(error)) throw error
      this.#log.warn(
        { err: error },
        'handlers were not bound, the database is away; their events are not kept',
      )
    }
  }

  /** The routes that an event of this key would take. @throws TypeError */
  async test(routingKey: string): Promise<Binding[]> {
    const { rows } = await this.#db.query<{ pattern: string; physical: string }>(
      'SELECT pattern, lower(queue_name) AS physical FROM pgmq.test_routing($1::text)',
      [checkRoutingKey(routingKey)],
    )
    return rows.map(({ pattern, physical }) => ({ pattern, queue: logicalOf(this.#config, physical) }))
  }

  /** Every route of the database, those of other programs included, by queue and pattern. */
  async bindings(): Promise<BindingInfo[]> {
    const declared = patternsByQueue(definedHandlers())
    const { rows } = await this.#db.query<{ pattern: string; physical: string; bound_at: Date }>(
      'SELECT pattern, lower(queue_name) AS physical, bound_at FROM pgmq.topic_bindings ORDER BY 2, 1',
    )
    return rows.map(({ pattern, physical, bound_at }) => {
      const queue = logicalOf(this.#config, physical)
      return { pattern, queue, boundAt: bound_at, declared: declared.get(queue)?.includes(pattern) ?? null }
    })
  }

  /**
   * Removes routes that no handler asks for any more, of the queues that belong to handlers of this process. What waits
   * in the queues stays. Not while an older release, which may ask for them, still runs.
   */
  async prune(): Promise<Binding[]> {
    const stale = (await this.bindings()).filter(({ declared }) => declared === false)
    for (const { pattern, queue } of stale) {
      await this.#db.query('SELECT pgmq.unbind_topic($1::text, $2::text)', [
        pattern,
        physicalName(this.#config, queue),
      ])
    }
    return stale.map(({ pattern, queue }) => ({ pattern, queue }))
  }

  /**
   * What idempotent handlers have begun with and not completed, oldest first: it runs, waits for its next attempt, was
   * given up, or was left behind by a process that died.
   */
  async pending({ limit = 100 }: { limit?: number | undefined } = {}): Promise<PendingClaim[]> {
    checkWhole('limit', limit, 1_000)
    const { rows } = await this.#db.query<{
      event_id: string
      handler_class: string
      processed_at: Date
      queue_name: string | null
      msg_id: number | null
    }>(
      `SELECT event_id, handler_class, processed_at, queue_name, msg_id FROM pgbus_processed_events
 WHERE completed_at IS NULL ORDER BY processed_at, id LIMIT $1::int`,
      [limit],
    )
    return rows.map(row => ({
      eventId: row.event_id,
      handler: row.handler_class,
      since: row.processed_at,
      queue: row.queue_name === null ? null : logicalOf(this.#config, row.queue_name),
      msgId: row.msg_id,
    }))
  }

  /**
   * Notes that an idempotent handler of this process has handled an event, so that no further delivery runs it. One that
   * runs at this moment goes on.
   * @throws TypeError when there is no such handler, or when it is not idempotent.
   */
  async markHandled(eventId: string, handler: string): Promise<void> {
    if (typeof eventId !== 'string' || eventId === '') throw new TypeError('the id of an event is a string')
    const idempotent = definedHandlers().filter(definition => definition.idempotent)
    if (!idempotent.some(({ name }) => name === handler)) {
      const names = idempotent.map(({ name }) => name).join(', ')
      throw new TypeError(
        `there is no idempotent handler "${handler}"; there ${names === '' ? 'is none at all' : `are: ${names}`}`,
      )
    }
    await this.#db.query(
      `INSERT INTO pgbus_processed_events AS p (event_id, handler_class, processed_at, completed_at)
SELECT $1::text, $2::text, now, now FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS clock
ON CONFLICT (event_id, handler_class) DO UPDATE SET completed_at = coalesce(p.completed_at, excluded.completed_at)`,
      [keyOf(eventId), keyOf(handler)],
    )
  }
}

function patternsByQueue(handlers: readonly HandlerDefinition[]): Map<string, string[]> {
  const patterns = new Map<string, string[]>()
  for (const { queue, on } of handlers) {
    patterns.set(queue, [...new Set([...(patterns.get(queue) ?? []), ...on])])
  }
  return patterns
}
