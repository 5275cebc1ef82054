import type { ResolvedConfig } from '../config/options.ts'
import { PgbusError, QueueNotFoundError } from '../core/errors.ts'
import { groupBy } from '../core/group-by.ts'
import { type Database, sqlState, type Transaction } from '../db/database.ts'
import { deathsHeader } from '../pgmq/deaths.ts'
import { deadLetterName, everyTable, logicalOf, type PhysicalName, targetQueue } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { queueTable } from '../pgmq/statements.ts'
import { type PageOptions, readPage } from './paging.ts'

const headerName = 'pgbus_dead_letter'
const batchSize = 500

/** One message of a dead-letter queue, without its content. */
export interface DeadLetter {
  /** Unique within its dead-letter queue. */
  msgId: number
  /** Logical queue that it came from. */
  queue: string
  /** Name of the job; null: the message is no job. */
  job: string | null
  /** Of an event; null: the message is none. */
  routingKey: string | null
  /** Deliveries until it was given up; null: unknown. */
  attempts: number | null
  /** When it was given up. */
  deadAt: Date
  /** Why, where that is not simply its last error, for example `process_died`. */
  reason: string | null
  errorClass: string | null
  errorMessage: string | null
}

/** A dead letter with everything that is stored. */
export interface DeadLetterDetail extends DeadLetter {
  message: unknown
  headers: Record<string, unknown> | null
}

export interface DeadLetterPage {
  /** Of all pages. */
  total: number
  deadLetters: DeadLetter[]
}

/** Which one: its id, and its logical queue where several dead-letter queues have that id. */
export interface DeadLetterRef {
  queue?: string | undefined
}

interface Row {
  msg_id: number
  dead_at: Date
  message: unknown
  headers: Record<string, unknown> | null
}

/** What was given up: look at it, run it again, throw it away. Workers never read these queues. */
export class DeadLetters {
  readonly #db: Database
  readonly #queues: Queues
  readonly #config: ResolvedConfig

  /** @internal */
  constructor(options: { db: Database; queues: Queues; config: ResolvedConfig }) {
    this.#db = options.db
    this.#queues = options.queues
    this.#config = options.config
  }

  /** Newest first. `page` counts from 1; `perPage` is 25 by default, at most 1000. */
  async list({
    queue,
    ...pageOptions
  }: PageOptions & { queue?: string | undefined } = {}): Promise<DeadLetterPage> {
    const { page, perPage } = readPage(pageOptions)
    let total = 0
    const newest: (Row & { physical: PhysicalName })[] = []
    for (const physical of await this.#tables(queue)) {
      const { rows } = await this.#read<Row & { total: number }>(
        `SELECT msg_id, enqueued_at AS dead_at, message, headers, count(*) OVER () AS total
  FROM ${queueTable(physical)} ORDER BY enqueued_at DESC, msg_id DESC LIMIT $1`,
        [page * perPage],
      )
      total += rows[0]?.total ?? 0
      newest.push(...rows.map(row => ({ ...row, physical })))
    }
    newest.sort((a, b) => b.dead_at.getTime() - a.dead_at.getTime() || b.msg_id - a.msg_id)
    const shown = newest.slice((page - 1) * perPage, page * perPage)
    return { total, deadLetters: shown.map(row => this.#describe(row.physical, row)) }
  }

  /** @throws QueueNotFoundError; PgbusError when there is none, or when several queues have one with this id. */
  async get(msgId: number, ref: DeadLetterRef = {}): Promise<DeadLetterDetail> {
    const { physical, row } = await this.#find(msgId, ref)
    return { ...this.#describe(physical, row), message: row.message, headers: row.headers }
  }

  /** Sends it back to the queue that it came from, as new: its attempts count from 1. Throws as {@link get}. */
  async retry(msgId: number, ref: DeadLetterRef = {}): Promise<{ queue: string; msgId: number }> {
    const { physical } = await this.#find(msgId, ref)
    const [sent] = await this.#resend(physical, [msgId])
    if (!sent) throw missing(msgId)
    return { queue: logicalOf(this.#config, sent.origin), msgId: sent.msgId }
  }

  /** Sends all back that are there now, in steps of one transaction each; resolves to how many. */
  async retryAll(ref: DeadLetterRef = {}): Promise<number> {
    let count = 0
    for (const physical of await this.#tables(ref.queue)) {
      for (let after = 0, last = await this.#lastOf(physical); after < last; ) {
        const { rows } = await this.#read<{ msg_id: number }>(
          `SELECT msg_id FROM ${queueTable(physical)} WHERE msg_id > $1 AND msg_id <= $2 ORDER BY msg_id LIMIT $3`,
          [after, last, batchSize],
        )
        if (rows.length === 0) break
        const ids = rows.map(row => row.msg_id)
        count += (await this.#resend(physical, ids)).length
        after = ids.at(-1)!
      }
    }
    return count
  }

  /** Deletes one for ever. Throws as {@link get}. */
  async discard(msgId: number, ref: DeadLetterRef = {}): Promise<void> {
    const { physical } = await this.#find(msgId, ref)
    const { rowCount } = await this.#read(`DELETE FROM ${queueTable(physical)} WHERE msg_id = $1`, [msgId])
    if (rowCount === 0) throw missing(msgId)
  }

  /** Deletes all that are there now for ever; resolves to how many. */
  async discardAll(ref: DeadLetterRef = {}): Promise<number> {
    let count = 0
    for (const physical of await this.#tables(ref.queue)) {
      const last = await this.#lastOf(physical)
      const { rowCount } = await this.#read(`DELETE FROM ${queueTable(physical)} WHERE msg_id <= $1`, [last])
      count += rowCount
    }
    return count
  }

  async #lastOf(physical: PhysicalName): Promise<number> {
    const { rows } = await this.#read<{ last: number | null }>(
      `SELECT max(msg_id) AS last FROM ${queueTable(physical)}`,
    )
    return rows[0]?.last ?? 0
  }

  /** Tables of one queue, or of all queues of this prefix. @throws QueueNotFoundError */
  async #tables(queue: string | undefined): Promise<PhysicalName[]> {
    const infos = (await this.#queues.list()).filter(({ kind }) => kind === 'dlq')
    const own = infos
      .map(info => info.physical as PhysicalName)
      .filter(physical => physical.startsWith(`${this.#config.queuePrefix.toLowerCase()}_`))
    if (queue === undefined) return own
    const wanted = deadLetterName(this.#config, queue)
    if (own.includes(wanted)) return [wanted]
    const names = own.map(physical => logicalOf(this.#config, physical))
    throw new QueueNotFoundError(
      `queue "${queue}" has no dead letters; ${names.length > 0 ? `queues that have had some: ${names.join(', ')}` : 'no queue has had any'}`,
    )
  }

  async #find(msgId: number, { queue }: DeadLetterRef): Promise<{ physical: PhysicalName; row: Row }> {
    if (!Number.isSafeInteger(msgId) || msgId < 1)
      throw new TypeError(`the id of a dead letter must be a positive integer, got ${String(msgId)}`)
    const found: { physical: PhysicalName; row: Row }[] = []
    for (const physical of await this.#tables(queue)) {
      const { rows } = await this.#read<Row>(
        `SELECT msg_id, enqueued_at AS dead_at, message, headers FROM ${queueTable(physical)} WHERE msg_id = $1`,
        [msgId],
      )
      if (rows[0]) found.push({ physical, row: rows[0] })
    }
    const [only, another] = found
    if (!only) throw missing(msgId)
    if (another) {
      const names = found.map(({ physical }) => logicalOf(this.#config, physical))
      throw new PgbusError(`several queues have a dead letter ${msgId}: ${names.join(', ')}; name the queue`)
    }
    return only
  }

  /** One transaction: what leaves one queue is in the other. */
  async #resend(
    physical: PhysicalName,
    ids: readonly number[],
  ): Promise<{ origin: PhysicalName; msgId: number }[]> {
    const { rows } = await this.#read<Row>(
      `SELECT msg_id, headers, message, enqueued_at AS dead_at FROM ${queueTable(physical)} WHERE msg_id = ANY($1::bigint[])`,
      [ids],
    )
    const groups = groupBy(rows, row => this.#originOf(physical, row))
    // Before the transaction: tables are made on a connection of their own.
    for (const origin of groups.keys()) await this.#queues.ensurePhysical(origin, 'job')
    return this.#db.transaction(async tx => {
      const sent: { origin: PhysicalName; msgId: number }[] = []
      for (const [origin, members] of groups) {
        const own = members.map(row => row.msg_id)
        for (const msgId of await move(tx, physical, origin, own)) sent.push({ origin, msgId })
      }
      return sent
    })
  }

  /** Where it came from, if that is a table of the same queue; else where a new job of it would go. */
  #originOf(physical: PhysicalName, { headers, message }: Row): PhysicalName {
    const queue = logicalOf(this.#config, physical)
    const told = storyOf(headers).queue
    const tables = everyTable(this.#config, queue)
    const known = tables.find(table => table === told)
    if (known) return known
    const priority = (message as { priority?: unknown } | null)?.priority
    return targetQueue(this.#config, queue, typeof priority === 'number' ? priority : null)
  }

  #describe(physical: PhysicalName, { msg_id, dead_at, message, headers }: Row): DeadLetter {
    const story = storyOf(headers)
    const { job_class, routing_key } = (message ?? {}) as { job_class?: unknown; routing_key?: unknown }
    return {
      msgId: msg_id,
      queue: logicalOf(this.#config, physical),
      job: text(job_class),
      routingKey: text(routing_key),
      attempts: typeof story.read_ct === 'number' ? story.read_ct : null,
      deadAt: dead_at,
      reason: text(story.reason),
      errorClass: text(story.error_class),
      errorMessage: text(story.error_message),
    }
  }

  async #read<R>(sql: string, values: unknown[] = []): Promise<{ rows: R[]; rowCount: number }> {
    try {
      return await this.#db.query<R>(sql, values)
    } catch (error) {
      // Dropped between listing and looking.
      if (sqlState(error) === '42P01') return { rows: [], rowCount: 0 }
      throw error
    }
  }
}

async function move(
  tx: Transaction,
  from: PhysicalName,
  to: PhysicalName,
  ids: readonly number[],
): Promise<number[]> {
  const { rows } = await tx.query<{ msg_id: number }>(
    `WITH gone AS (
  DELETE FROM ${queueTable(from)} WHERE msg_id = ANY($1::bigint[]) RETURNING msg_id, message, headers
)
INSERT INTO ${queueTable(to)} (vt, message, headers)
SELECT clock_timestamp(), message, CASE WHEN jsonb_typeof(headers) = 'object' THEN nullif(headers - $2::text - $3::text, '{}') END FROM gone ORDER BY msg_id
RETURNING msg_id`,
    [ids, headerName, deathsHeader],
  )
  return rows.map(row => row.msg_id)
}

function storyOf(headers: Record<string, unknown> | null): Record<string, unknown> {
  const story = typeof headers === 'object' ? headers?.[headerName] : null
  return typeof story === 'object' && story !== null ? (story as Record<string, unknown>) : {}
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null
}

function missing(msgId: number): PgbusError {
  return new PgbusError(`there is no dead letter ${msgId} (any more)`)
}
