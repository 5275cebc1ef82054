import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import { checkRoutingKey } from '../core/topics.ts'
import { type Database, isConnectionError } from '../db/database.ts'
import { logicalOf, physicalName } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { definedHandlers, type HandlerDefinition } from './define.ts'

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
}

function patternsByQueue(handlers: readonly HandlerDefinition[]): Map<string, string[]> {
  const patterns = new Map<string, string[]>()
  for (const { queue, on } of handlers) {
    patterns.set(queue, [...new Set([...(patterns.get(queue) ?? []), ...on])])
  }
  return patterns
}
