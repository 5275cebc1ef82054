import type { ResolvedConfig } from '../config/options.ts'
import {
  checkTaskKey,
  type RecurringTask,
  type ResolvedRecurringTask,
  resolveTask,
} from '../config/recurring-tasks.ts'
import { JobNotUniqueError, PgbusError } from '../core/errors.ts'
import { type Occurrence, Schedule } from '../core/schedule.ts'
import type { Database, Queryable } from '../db/database.ts'
import type { EnqueueOptions, EnqueueResult } from '../jobs/enqueue.ts'
import { type StoredTask, TaskTable } from './task-table.ts'

/** A task as `list` shows it. */
export interface RecurringTaskInfo extends ResolvedRecurringTask {
  readonly key: string
  /** From the configuration; else made by `upsert`. */
  readonly static: boolean
  /** Null: never, as far as records are kept. */
  readonly lastRun: Date | null
  /** Null: it is disabled, or never due again. */
  readonly nextRun: Date | null
}

type Enqueue = (job: string, args: unknown, options: EnqueueOptions) => Promise<EnqueueResult>

/** Recurring tasks: those of the configuration, which schedulers write into the table, and those made at run time. */
export class Recurring {
  readonly #db: Database
  readonly #config: ResolvedConfig
  readonly #enqueue: Enqueue
  /** @internal */
  readonly table: TaskTable

  /** @internal */
  constructor(options: { db: Database; config: ResolvedConfig; enqueue: Enqueue }) {
    this.#db = options.db
    this.#config = options.config
    this.#enqueue = options.enqueue
    this.table = new TaskTable(options)
  }

  /**
   * Makes or changes a task. Occurrences from before that moment do not run. Whether a known task is enabled stays.
   * @throws TypeError for what is wrong with it; PgbusError when its key belongs to another program.
   */
  async upsert(key: string, task: RecurringTask): Promise<void> {
    checkTaskKey(key)
    const resolved = this.#resolve(key, task)
    await this.table.upsert(key, resolved)
    const { rows } = await this.#db.query<{ owner: string | null }>(
      'SELECT owner FROM pgbus_recurring_tasks WHERE key = $1',
      [key],
    )
    if (rows[0] && rows[0].owner !== this.#config.queuePrefix)
      throw new PgbusError(`the recurring task "${key}" belongs to another program; choose another key`)
  }

  /** Deletes a task. One of the configuration comes back. @throws PgbusError when there is none. */
  async remove(key: string): Promise<void> {
    if (!(await this.table.remove(key))) throw unknownTask(key)
  }

  /** Lets it run from now on; what was due before does not run. @throws PgbusError when there is none. */
  async enable(key: string): Promise<void> {
    if (!(await this.table.setEnabled(key, true))) throw unknownTask(key)
  }

  /** Lets it run no more until it is enabled. @throws PgbusError when there is none. */
  async disable(key: string): Promise<void> {
    if (!(await this.table.setEnabled(key, false))) throw unknownTask(key)
  }

  /** Enqueues its job now, whether it is enabled or not. @throws PgbusError when there is none. */
  async runNow(key: string): Promise<EnqueueResult> {
    const stored = await this.#find(key)
    const result = await this.fire(stored, new Date(), true)
    if (!result) throw new PgbusError(`the recurring task "${key}" was run in this very millisecond`)
    return result
  }

  async list(): Promise<RecurringTaskInfo[]> {
    const { tasks } = await this.table.read()
    const { rows } = await this.#db.query<{ key: string; last: number }>(
      `SELECT task_key AS key, (extract(epoch FROM max(run_at)) * 1000)::float8 AS last
  FROM pgbus_recurring_executions WHERE task_key = ANY($1::varchar[]) GROUP BY task_key`,
      [tasks.map(({ key }) => key)],
    )
    const last = new Map(rows.map(row => [row.key, new Date(row.last)]))
    return tasks.map(({ key, task, enabled, static: isStatic }) => ({
      ...task,
      key,
      static: isStatic,
      enabled,
      lastRun: last.get(key) ?? null,
      nextRun: enabled ? (new Schedule(task.schedule, task.timeZone).next(new Date())?.at ?? null) : null,
    }))
  }

  /** The next occurrences of a task. @throws PgbusError when there is none. */
  async nextRuns(key: string, count = 10): Promise<Occurrence[]> {
    const { task } = await this.#find(key)
    return new Schedule(task.schedule, task.timeZone).nextRuns(count, new Date())
  }

  /**
   * Enqueues one occurrence, unless somebody did already, or the task was disabled a moment ago: then undefined. The
   * row that says so and the job are one transaction, so a process that dies in between leaves neither. Where the
   * job of an earlier occurrence still has the key of a unique job, this one is skipped: `duplicate`.
   * @internal
   */
  fire({ key, task }: StoredTask, runAt: Date, manual = false): Promise<EnqueueResult | undefined> {
    return this.#db.transaction(async tx => {
      const { rowCount } = await tx.query(
        `INSERT INTO pgbus_recurring_executions (task_key, run_at)
SELECT $1::varchar, to_timestamp($2::float8 / 1000) AT TIME ZONE 'UTC'
 WHERE $3::boolean OR EXISTS (SELECT FROM pgbus_recurring_tasks WHERE key = $1::varchar AND enabled)
ON CONFLICT (task_key, run_at) DO NOTHING`,
        [key, runAt.getTime(), manual],
      )
      if (rowCount === 0) return undefined
      const result = await this.#enqueue(task.job, task.args, {
        tx: tx as Queryable,
        queue: task.queue ?? undefined,
        priority: task.priority ?? undefined,
        headers: {
          'pgbus.recurring_key': key,
          'pgbus.recurring_run_at': runAt.toISOString(),
          'pgbus.recurring_schedule': task.schedule,
          ...(manual && { 'pgbus.recurring_manual': true }),
        },
      }).catch((error: unknown): EnqueueResult => {
        // Refused without harm to the transaction, whose row keeps the occurrence from being tried again.
        if (manual || !(error instanceof JobNotUniqueError) || error.pending) throw error
        return { status: 'duplicate', jobId: '', msgId: null, queue: error.queue ?? task.queue ?? '' }
      })
      if (result.msgId === null) return result
      await tx.query(
        `UPDATE pgbus_recurring_executions SET msg_id = $3, queue_name = $4
 WHERE task_key = $1 AND run_at = to_timestamp($2::float8 / 1000) AT TIME ZONE 'UTC'`,
        [key, runAt.getTime(), result.msgId, result.queue],
      )
      return result
    })
  }

  #resolve(key: string, task: RecurringTask): ResolvedRecurringTask {
    const { executionRetention } = this.#config.recurring
    let resolved: ResolvedRecurringTask
    try {
      resolved = resolveTask(task)
    } catch (error) {
      throw new TypeError(`recurring task "${key}": ${(error as Error).message}`, { cause: error })
    }
    if (executionRetention !== null && resolved.catchUpWindow >= executionRetention)
      throw new TypeError(
        `recurring task "${key}": catchUpWindow must be shorter than recurring.executionRetention`,
      )
    return resolved
  }

  async #find(key: string): Promise<StoredTask> {
    const { tasks, unreadable } = await this.table.read(key)
    if (tasks[0]) return tasks[0]
    const [broken] = unreadable
    throw broken
      ? new PgbusError(`the recurring task "${key}" cannot be run: ${broken.reason}`)
      : unknownTask(key)
  }
}

function unknownTask(key: string): PgbusError {
  return new PgbusError(`there is no recurring task "${key}"; "pgbus recurring list" shows all`)
}
