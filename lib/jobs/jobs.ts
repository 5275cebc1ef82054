import type { ResolvedConfig } from '../config/options.ts'
import { PgbusError, QueueNotFoundError } from '../core/errors.ts'
import { checkTx } from '../db/caller-client.ts'
import type { Database, Queryable } from '../db/database.ts'
import {
  failedName,
  logicalOf,
  type PhysicalName,
  priorityLevels,
  targetQueue,
  workerTables,
} from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import {
  archiveTable,
  type CancelRow,
  cancelledHeader,
  cancelOne,
  groupHeader,
  queueTable,
} from '../pgmq/statements.ts'
import { checkWhole, type PageOptions, readPage } from './paging.ts'

/**
 * `scheduled`: not due yet. `ready`: waits for a worker. `running`: a worker has it, or had it and died.
 * `retrying`: failed, waits for its next attempt.
 */
export type JobState = 'scheduled' | 'ready' | 'running' | 'retrying'

const states: readonly JobState[] = ['scheduled', 'ready', 'running', 'retrying']

/** One job of a queue, without its arguments. */
export interface JobInfo {
  /** Unique within its queue, with priorities within its level. */
  msgId: number
  queue: string
  /** Level of its table; null: priorities are off. */
  priority: number | null
  /** Name of the job; null: the message is no job. */
  job: string | null
  jobId: string | null
  group: string | null
  state: JobState
  /** Deliveries so far. */
  attempts: number
  enqueuedAt: Date
  /** When it can be claimed, or when the lease of its worker ends. */
  dueAt: Date
  /** Its last failure. */
  errorClass: string | null
  errorMessage: string | null
}

/** A job with everything that is stored, also one that is done. */
export interface JobDetail extends Omit<JobInfo, 'state'> {
  /** `completed` and `cancelled`: it is in the archive. */
  state: JobState | 'completed' | 'cancelled'
  message: unknown
  headers: Record<string, unknown> | null
}

export interface JobPage {
  /** Of all pages. */
  total: number
  jobs: JobInfo[]
}

export interface JobRef {
  /** Level of its table, where several levels have the id. */
  priority?: number | undefined
}

export interface CancelOptions extends JobRef {
  /** Kept with the archived message and told to the handler; at most 500 characters. */
  reason?: string | undefined
  /** A connected client: the job is cancelled exactly if its transaction commits. */
  tx?: Queryable | undefined
}

export interface CancelResult {
  /** `notFound`: it is done, was given up, or never was. Nothing was changed. */
  status: 'cancelled' | 'notFound'
  /** A worker may have been running it; its handler is told. */
  wasRunning: boolean
}

interface Row {
  msg_id: number
  read_ct: number
  enqueued_at: Date
  vt: Date
  state: JobState
  job: string | null
  job_id: string | null
  job_group: string | null
  error_class: string | null
  error_message: string | null
}

const maxReasonLength = 500

const stateSql = `CASE WHEN m.vt <= clock_timestamp() THEN 'ready' WHEN m.read_ct = 0 THEN 'scheduled'
       WHEN f.retry_count = m.read_ct - 1 THEN 'retrying' ELSE 'running' END`

const columns = `m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message ->> 'job_class' AS job,
       m.message ->> 'job_id' AS job_id, m.headers ->> '${groupHeader}' AS job_group`

/** Jobs that wait or run: look at them, cancel one. */
export class Jobs {
  readonly #db: Database
  readonly #queues: Queues
  readonly #config: ResolvedConfig

  /** @internal */
  constructor(options: { db: Database; queues: Queues; config: ResolvedConfig }) {
    this.#db = options.db
    this.#queues = options.queues
    this.#config = options.config
  }

  /**
   * Those of one queue, the next one first. `page` counts from 1; `perPage` is 25 by default, at most 1000.
   * @throws QueueNotFoundError
   */
  async list(
    queue: string,
    { state, ...pageOptions }: PageOptions & { state?: JobState | undefined } = {},
  ): Promise<JobPage> {
    if (state !== undefined && !states.includes(state))
      throw new TypeError(`state must be one of ${states.join(', ')}, got ${JSON.stringify(state)}`)
    const { page, perPage } = readPage(pageOptions)
    let total = 0
    const found: JobInfo[] = []
    // Levels are read one after the other, as workers do.
    for (const physical of await this.#tables(queue)) {
      const { rows } = await this.#db.query<Row & { total: number }>(
        `SELECT *, count(*) OVER () AS total FROM (
  SELECT ${columns}, ${stateSql} AS state, f.error_class, f.error_message
    FROM ${queueTable(physical)} m LEFT JOIN pgbus_failed_events f ON f.queue_name = $1 AND f.msg_id = m.msg_id
) j WHERE $2::text IS NULL OR state = $2 ORDER BY vt, msg_id LIMIT $3`,
        [failedName(this.#config, physical), state ?? null, page * perPage],
      )
      total += rows[0]?.total ?? 0
      found.push(...rows.map(row => this.#describe(physical, row)))
    }
    return { total, jobs: found.slice((page - 1) * perPage, page * perPage) }
  }

  /**
   * One job with its content, also from the archive while that keeps it.
   * @throws QueueNotFoundError; PgbusError when there is none, or when several levels have one with this id.
   */
  async get(queue: string, msgId: number, ref: JobRef = {}): Promise<JobDetail> {
    checkId(msgId)
    const found: JobDetail[] = []
    for (const physical of await this.#tables(queue, ref)) {
      const row = (await this.#waiting(physical, msgId)) ?? (await this.#archived(physical, msgId))
      if (row)
        found.push({
          ...this.#describe(physical, row),
          state: row.state,
          message: row.message,
          headers: row.headers,
        })
    }
    const [only, another] = found
    if (!only) throw new PgbusError(`queue "${queue}" has no job ${msgId} (any more)`)
    if (another) throw severalLevels(queue, msgId, found)
    return only
  }

  /**
   * Ends a job, whether it waits or runs: its message goes to the archive and never runs again. A handler that
   * runs it is told by `ctx.signal`, which aborts with JobCancelledError; nothing that it returns or throws counts.
   * @throws QueueNotFoundError; TypeError; PgbusError when several levels have a job with this id.
   */
  async cancel(queue: string, msgId: number, options: CancelOptions = {}): Promise<CancelResult> {
    const { reason = null } = options
    const tx = checkTx(options.tx) ?? this.#db
    if (reason !== null && (typeof reason !== 'string' || reason.length > maxReasonLength))
      throw new TypeError(`cancel: reason must be a text of at most ${maxReasonLength} characters`)
    checkId(msgId)
    const tables = await this.#tables(queue, options)
    const candidates = tables.length === 1 ? tables : await this.#tablesWith(queue, msgId, tables)
    for (const physical of candidates) {
      const failed = failedName(this.#config, physical)
      const { text, values } = cancelOne(physical, msgId, reason, failed, tx !== this.#db)
      const { rows } = await tx.query(text, values)
      const row = rows[0] as CancelRow | undefined
      if (row) return { status: 'cancelled', wasRunning: row.hidden && row.read_ct > 0 && !row.failed }
    }
    return { status: 'notFound', wasRunning: false }
  }

  async #tablesWith(queue: string, msgId: number, tables: readonly PhysicalName[]): Promise<PhysicalName[]> {
    const found: PhysicalName[] = []
    for (const physical of tables) {
      const { rows } = await this.#db.query(`SELECT FROM ${queueTable(physical)} WHERE msg_id = $1`, [msgId])
      if (rows.length > 0) found.push(physical)
    }
    if (found.length < 2) return found
    throw severalLevels(
      queue,
      msgId,
      found.map(physical => ({ priority: this.#levelOf(physical) })),
    )
  }

  async #waiting(physical: PhysicalName, msgId: number): Promise<(Row & Content) | undefined> {
    const { rows } = await this.#db.query<Row & Content>(
      `SELECT ${columns}, m.message, m.headers, ${stateSql} AS state, f.error_class, f.error_message
  FROM ${queueTable(physical)} m LEFT JOIN pgbus_failed_events f ON f.queue_name = $2 AND f.msg_id = m.msg_id
 WHERE m.msg_id = $1`,
      [msgId, failedName(this.#config, physical)],
    )
    return rows[0]
  }

  async #archived(physical: PhysicalName, msgId: number): Promise<(ArchivedRow & Content) | undefined> {
    const { rows } = await this.#db.query<ArchivedRow & Content>(
      `SELECT ${columns}, m.message, m.headers,
       CASE WHEN m.headers ? '${cancelledHeader}' THEN 'cancelled' ELSE 'completed' END AS state,
       NULL AS error_class, NULL AS error_message
  FROM ${archiveTable(physical)} m WHERE m.msg_id = $1`,
      [msgId],
    )
    return rows[0]
  }

  /** Tables of a queue that exist. @throws QueueNotFoundError */
  async #tables(queue: string, { priority }: JobRef = {}): Promise<PhysicalName[]> {
    const wanted =
      priority === undefined
        ? workerTables(this.#config, [queue])
        : [targetQueue(this.#config, queue, priority)]
    const known = new Set((await this.#queues.list()).map(({ physical }) => physical))
    const tables = wanted.filter(physical => known.has(physical))
    if (tables.length === 0) throw new QueueNotFoundError(`there is no queue "${queue}"`)
    return tables
  }

  #describe<R extends Omit<Row, 'state'> & { state: unknown }>(
    physical: PhysicalName,
    row: R,
  ): Omit<JobInfo, 'state'> & { state: R['state'] } {
    return {
      msgId: row.msg_id,
      queue: logicalOf(this.#config, physical),
      priority: this.#levelOf(physical),
      job: row.job,
      jobId: row.job_id,
      group: row.job_group,
      state: row.state,
      attempts: row.read_ct,
      enqueuedAt: row.enqueued_at,
      dueAt: row.vt,
      errorClass: row.error_class,
      errorMessage: row.error_message,
    }
  }

  #levelOf(physical: PhysicalName): number | null {
    return priorityLevels(this.#config) === 1 ? null : Number(/_p(\d+)$/.exec(physical)?.[1] ?? 0)
  }
}

interface Content {
  message: unknown
  headers: Record<string, unknown> | null
}

type ArchivedRow = Omit<Row, 'state'> & { state: 'completed' | 'cancelled' }

function checkId(msgId: number): void {
  checkWhole('the id of a job', msgId, Number.MAX_SAFE_INTEGER)
}

function severalLevels(
  queue: string,
  msgId: number,
  found: readonly { readonly priority: number | null }[],
): PgbusError {
  const levels = found.map(({ priority }) => priority).join(', ')
  return new PgbusError(
    `queue "${queue}" has a job ${msgId} in each of the levels ${levels}; name the priority`,
  )
}
