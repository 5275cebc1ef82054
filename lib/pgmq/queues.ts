import type { ResolvedConfig } from '../config/options.ts'
import { PgbusError, SchemaNotReadyError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { isCreationRace } from '../db/creation-race.ts'
import { type Database, type Statement, sqlState } from '../db/database.ts'
import {
  everyTable,
  insertChannel,
  logicalOf,
  type PhysicalName,
  validateQueueName,
  workerTables,
} from './names.ts'
import { pause, pausedQueues, resume } from './queue-states.ts'
import { queueTable } from './statements.ts'

export type QueueKind = 'job' | 'dlq'

/** A logical queue (with all its priority levels), or one table by its physical name. */
export type QueueRef = string | { physical: string }

export interface QueueInfo {
  /** Logical name; the physical one for a queue without our prefix. */
  name: string
  physical: string
  kind: QueueKind
  unlogged: boolean
  partitioned: boolean
  createdAt: Date
}

export interface QueueMetrics {
  name: string
  physical: string
  kind: QueueKind
  /** All messages: waiting, delayed, in progress. */
  length: number
  /** Messages that could be claimed now. */
  visibleLength: number
  /** Seconds since the oldest claimable message came due; null: nothing to claim. */
  oldestClaimableAge: number | null
  /** Messages ever sent. */
  total: number
}

const createQueue = 'SELECT pgbus_create_queue($1::text, $2::text, false, $3::boolean) AS created'

/** The schema, a table or a function is missing. */
const missingCodes = new Set(['3F000', '42883'])

/**
 * Creates, lists and removes queues. Creation runs on a connection of ours, never in a caller's transaction: DDL
 * there would hold catalog locks until that transaction ends, and vanish with it. What exists is remembered only
 * after its creation committed; whoever meets `42P01` calls {@link forget} and ensures again.
 */
export class Queues {
  readonly #db: Database
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #known = new Set<string>()
  readonly #creating = new Map<string, Promise<void>>()

  constructor(options: { db: Database; config: ResolvedConfig; log: Logger }) {
    this.#db = options.db
    this.#config = options.config
    this.#log = options.log
  }

  /** Creates what is missing of these logical queues: a table, or one per priority level. */
  async ensure(names: string | readonly string[]): Promise<void> {
    const tables = workerTables(this.#config, typeof names === 'string' ? [names] : names)
    for (const table of tables) await this.ensurePhysical(table, 'job')
  }

  /** Creates one table if it is missing. Concurrent calls for one table share the work. */
  async ensurePhysical(physical: string, kind: QueueKind): Promise<void> {
    if (this.#known.has(physical)) return
    let creating = this.#creating.get(physical)
    if (!creating) {
      creating = this.#create(physical, kind).finally(() => this.#creating.delete(physical))
      this.#creating.set(physical, creating)
    }
    await creating
  }

  /**
   * Creates a queue if it is missing, and routes to it what matches these patterns; none is taken away. In one
   * transaction, so that nobody who reads queues by pattern finds it before it is bound.
   */
  async bind(physical: string, patterns: readonly string[]): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#db.transaction(async tx => {
          await tx.query(createQueue, [physical, 'job', this.#config.notify.enabled])
          await tx.query('SELECT pgmq.bind_topic(pattern, $1::text) FROM unnest($2::text[]) AS pattern', [
            physical,
            patterns,
          ])
        })
        this.#known.add(physical)
        return
      } catch (error) {
        if (attempt > 1 || !isCreationRace(error)) throw schemaError(error)
      }
    }
  }

  isKnown(physical: string): boolean {
    return this.#known.has(physical)
  }

  /** Makes the next {@link ensurePhysical} look at the database again. */
  forget(physical: string): void {
    this.#known.delete(physical)
  }

  /** Drops a queue and its archive. Dead letters stay until their own queue is dropped. False: there was none. */
  async drop(queue: QueueRef): Promise<boolean> {
    let dropped = false
    for (const physical of this.#tables(queue)) {
      this.#known.delete(physical)
      const existed = await this.#locked(physical, async tx => {
        await tx.query('SELECT pgbus_end_all($1::text)', [physical])
        const { rows } = await tx.query<{ existed: boolean }>('SELECT pgmq.drop_queue($1::text) AS existed', [
          physical,
        ])
        // The functions of the extension leave the rows of other spellings behind.
        await tx.query('DELETE FROM pgmq.meta WHERE lower(queue_name) = lower($1)', [physical])
        return rows[0]?.existed === true
      })
      dropped ||= existed
    }
    return dropped
  }

  /** Deletes all messages of a queue, those in progress included, and returns how many there were. */
  async purge(queue: QueueRef): Promise<number> {
    let purged = 0
    for (const physical of this.#tables(queue)) {
      purged += await this.#locked(physical, async tx => {
        const { rows: found } = await tx.query<{ exists: boolean }>(
          'SELECT to_regclass($1) IS NOT NULL AS exists',
          [queueTable(physical)],
        )
        if (found[0]?.exists !== true) return 0
        await tx.query('SELECT pgbus_end_all($1::text)', [physical])
        const { rows } = await tx.query<{ purged: number }>('SELECT pgmq.purge_queue($1::text) AS purged', [
          physical,
        ])
        return Number(rows[0]?.purged ?? 0)
      })
    }
    return purged
  }

  /**
   * Lets no worker claim from a queue, all its priority levels included, until {@link resume}. Jobs in progress
   * finish. Takes effect with the next claim of every worker.
   */
  async pause(name: string, reason?: string): Promise<void> {
    if (reason !== undefined && typeof reason !== 'string') {
      throw new TypeError(`the reason of a pause must be a string, got ${String(reason)}`)
    }
    await this.#query(pause(validateQueueName(this.#config, name), reason ?? null))
  }

  /** Ends a pause, whether a person or the circuit breaker made it, and wakes the workers. */
  async resume(name: string): Promise<void> {
    const queue = validateQueueName(this.#config, name)
    await this.#query(resume(queue))
    const channels = everyTable(this.#config, queue).map(insertChannel)
    await this.#query('SELECT pg_notify(channel, $2) FROM unnest($1::text[]) AS channel', [channels, ''])
  }

  /** Logical names of the queues that are paused now, by hand or by the circuit breaker. */
  async paused(): Promise<string[]> {
    const { rows } = await this.#query<{ name: string }>(pausedQueues)
    return rows.map(row => row.name)
  }

  /** Tables of all job queues, of every prefix, by name: what workers with patterns choose from. */
  async workTables(): Promise<string[]> {
    const { rows } = await this.#query<{ physical: string }>(
      'SELECT physical FROM pgbus_work_tables() AS physical',
    )
    return rows.map(row => row.physical)
  }

  /** Gives one table the index that claims by group need, if it has none. */
  async indexGroups(physical: string): Promise<void> {
    await this.#query('SELECT pgbus_group_queue($1::text)', [physical])
  }

  /** Every queue of the database, those of other clients included, ordered by physical name. */
  async list(): Promise<QueueInfo[]> {
    const { rows } = await this.#query<{
      physical: string
      unlogged: boolean
      partitioned: boolean
      created_at: Date
    }>(`SELECT DISTINCT ON (lower(queue_name)) lower(queue_name) AS physical, is_unlogged AS unlogged,
       is_partitioned AS partitioned, created_at
  FROM pgmq.meta ORDER BY lower(queue_name), created_at`)
    return rows.map(row => ({
      name: logicalOf(this.#config, row.physical),
      physical: row.physical,
      kind: kindOf(row.physical),
      unlogged: row.unlogged,
      partitioned: row.partitioned,
      createdAt: row.created_at,
    }))
  }

  /** Counts of one queue or of all. A queue that vanishes meanwhile is left out. */
  async metrics(queue?: QueueRef): Promise<QueueMetrics[]> {
    const listed = await this.list()
    const wanted = queue === undefined ? null : new Set<string>(this.#tables(queue))
    const metrics: QueueMetrics[] = []
    for (const info of listed) {
      if (wanted && !wanted.has(info.physical)) continue
      const measured = await this.#measure(info)
      if (measured) metrics.push(measured)
    }
    return metrics
  }

  async #measure(info: QueueInfo): Promise<QueueMetrics | undefined> {
    try {
      const { rows } = await this.#db.query<Omit<QueueMetrics, 'name' | 'physical' | 'kind'>>(
        `SELECT count(*) AS length, count(*) FILTER (WHERE vt <= now()) AS "visibleLength",
       extract(epoch FROM now() - min(vt) FILTER (WHERE vt <= now()))::float8 AS "oldestClaimableAge",
       coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, 'msg_id')::regclass), 0) AS total
  FROM ${queueTable(info.physical)}`,
        [queueTable(info.physical)],
      )
      const row = rows[0]
      return row && { name: info.name, physical: info.physical, kind: info.kind, ...row }
    } catch (error) {
      if (sqlState(error) === '42P01') return undefined
      throw error
    }
  }

  async #create(physical: string, kind: QueueKind): Promise<void> {
    const { enabled } = this.#config.notify
    for (let attempt = 1; ; attempt += 1) {
      try {
        const { rows } = await this.#query<{ created: boolean }>(createQueue, [physical, kind, enabled])
        this.#known.add(physical)
        if (rows[0]?.created === true) this.#log.debug({ queue: physical }, 'queue created')
        return
      } catch (error) {
        if (attempt > 1 || !isCreationRace(error)) throw error
      }
    }
  }

  #tables(queue: QueueRef): PhysicalName[] {
    if (typeof queue !== 'string') return [queue.physical.toLowerCase() as PhysicalName]
    return everyTable(this.#config, queue)
  }

  async #query<R>(statement: Statement | string, values?: unknown[]): Promise<{ rows: R[] }> {
    try {
      return await this.#db.query<R>(statement, values)
    } catch (error) {
      throw schemaError(error)
    }
  }

  /** Runs `fn` in a transaction that gives up when somebody holds the queue. */
  async #locked<T>(
    physical: string,
    fn: (tx: Parameters<Parameters<Database['transaction']>[0]>[0]) => Promise<T>,
  ): Promise<T> {
    try {
      return await this.#db.transaction(async tx => {
        await tx.query("SET LOCAL lock_timeout = '5s'")
        return fn(tx)
      })
    } catch (error) {
      if (sqlState(error) === '55P03') {
        throw new PgbusError(`queue "${physical}" is busy (a transaction holds it); try again`, {
          cause: error,
        })
      }
      throw schemaError(error)
    }
  }
}

function kindOf(physical: string): QueueKind {
  return physical.endsWith('_dlq') ? 'dlq' : 'job'
}

function schemaError(error: unknown): unknown {
  if (
    missingCodes.has(sqlState(error)) ||
    (sqlState(error) === '42P01' && /pgmq\.meta/.test(String(error)))
  ) {
    return new SchemaNotReadyError(
      `pgbus is not installed in this database (${(error as Error).message}) — run "pgbus migrate"`,
      { cause: error },
    )
  }
  return error
}
