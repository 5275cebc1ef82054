import type { ResolvedConfig } from '../config/options.ts'
import { type ResolvedRecurringTask, resolveTask } from '../config/recurring-tasks.ts'
import type { JsonValue } from '../core/json.ts'
import { recurringSyncLock } from '../db/advisory-locks.ts'
import type { Database, Transaction } from '../db/database.ts'

/** A task as it lies in the table. */
export interface StoredTask {
  readonly key: string
  readonly task: ResolvedRecurringTask
  /** From the configuration; else made at run time. */
  readonly static: boolean
  readonly enabled: boolean
  /** When it was made, changed, or enabled, ms of the epoch: nothing from before runs. */
  readonly changedAt: number
}

/** A row that cannot be run, and why. */
export interface UnreadableTask {
  readonly key: string
  readonly reason: string
}

interface Row {
  key: string
  class_name: string | null
  schedule: string
  arguments: string | null
  queue_name: string | null
  description: string | null
  static: boolean
  enabled: boolean
  options: Record<string, unknown> | null
  changed_at: number
}

const now = `(clock_timestamp() AT TIME ZONE 'UTC')`

const upsertText = `INSERT INTO pgbus_recurring_tasks AS t
  (key, class_name, schedule, arguments, queue_name, priority, static, enabled, description, options, owner, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, coalesce($6::int, 0), $7, $8, $9, $10::jsonb, $11, ${now}, ${now})
ON CONFLICT (key) DO UPDATE SET class_name = excluded.class_name, command = NULL, schedule = excluded.schedule,
  arguments = excluded.arguments, queue_name = excluded.queue_name, priority = excluded.priority,
  static = excluded.static, description = excluded.description, options = excluded.options, owner = excluded.owner,
  updated_at = excluded.updated_at
WHERE t.owner = excluded.owner AND (t.class_name, t.command, t.schedule, t.arguments, t.queue_name, t.priority, t.static, t.description, t.options, t.owner)
  IS DISTINCT FROM (excluded.class_name, NULL::varchar, excluded.schedule, excluded.arguments, excluded.queue_name,
  excluded.priority, excluded.static, excluded.description, excluded.options, excluded.owner)`

/** The rows of `pgbus_recurring_tasks` that belong to this queue prefix. Those of other programs are left alone. */
export class TaskTable {
  readonly #db: Database
  readonly #config: ResolvedConfig

  constructor(options: { db: Database; config: ResolvedConfig }) {
    this.#db = options.db
    this.#config = options.config
  }

  async read(key?: string): Promise<{ tasks: StoredTask[]; unreadable: UnreadableTask[] }> {
    const { rows } = await this.#db.query<Row>(
      `SELECT key, class_name, schedule, arguments, queue_name, description, static, enabled, options,
       (extract(epoch FROM updated_at) * 1000)::float8 AS changed_at
  FROM pgbus_recurring_tasks WHERE owner = $1 AND ($2::varchar IS NULL OR key = $2) ORDER BY key`,
      [this.#config.queuePrefix, key ?? null],
    )
    const tasks: StoredTask[] = []
    const unreadable: UnreadableTask[] = []
    for (const row of rows) {
      try {
        tasks.push(toTask(row))
      } catch (error) {
        unreadable.push({ key: row.key, reason: (error as Error).message })
      }
    }
    return { tasks, unreadable }
  }

  /**
   * Makes the static rows those of the configuration. Writes differences only, and never whether a task is enabled.
   * Without `recurring.tasks` it does nothing. Resolves to the keys that belong to another program, which keeps them.
   */
  async sync(): Promise<string[]> {
    const { tasks } = this.#config.recurring
    if (tasks === null) return []
    return this.#db.transaction(async tx => {
      await tx.query('SELECT pg_advisory_xact_lock($1, $2)', recurringSyncLock)
      for (const [key, task] of Object.entries(tasks)) await this.#write(tx, key, task, true)
      await tx.query(
        'DELETE FROM pgbus_recurring_tasks WHERE static AND owner = $1 AND key <> ALL($2::varchar[])',
        [this.#config.queuePrefix, Object.keys(tasks)],
      )
      const { rows } = await tx.query<{ key: string }>(
        'SELECT key FROM pgbus_recurring_tasks WHERE key = ANY($2::varchar[]) AND owner IS DISTINCT FROM $1',
        [this.#config.queuePrefix, Object.keys(tasks)],
      )
      return rows.map(({ key }) => key)
    })
  }

  async upsert(key: string, task: ResolvedRecurringTask): Promise<void> {
    await this.#write(this.#db, key, task, false)
  }

  /** False: there is no such task. */
  async remove(key: string): Promise<boolean> {
    const { rowCount } = await this.#db.query(
      'DELETE FROM pgbus_recurring_tasks WHERE owner = $1 AND key = $2',
      [this.#config.queuePrefix, key],
    )
    return rowCount > 0
  }

  /** False: there is no such task. One that is as it should be keeps its time of change. */
  async setEnabled(key: string, enabled: boolean): Promise<boolean> {
    const { rowCount } = await this.#db.query(
      `UPDATE pgbus_recurring_tasks SET enabled = $3, updated_at = CASE WHEN enabled = $3 THEN updated_at ELSE ${now} END
 WHERE owner = $1 AND key = $2`,
      [this.#config.queuePrefix, key, enabled],
    )
    return rowCount > 0
  }

  async #write(
    db: Pick<Transaction, 'query'>,
    key: string,
    task: ResolvedRecurringTask,
    isStatic: boolean,
  ): Promise<void> {
    const { timeZone, priority, catchUp, catchUpWindow } = task
    await db.query(upsertText, [
      key,
      task.job,
      task.schedule,
      JSON.stringify(task.args),
      task.queue,
      priority,
      isStatic,
      task.enabled,
      task.description,
      // The column knows no "none": 0 is a level of its own.
      JSON.stringify({ timeZone, priority, catchUp, catchUpWindow }),
      this.#config.queuePrefix,
    ])
  }
}

function toTask(row: Row): StoredTask {
  const task = resolveTask({
    job: row.class_name,
    schedule: row.schedule,
    args: row.arguments === null ? null : (JSON.parse(row.arguments) as JsonValue),
    queue: row.queue_name,
    description: row.description,
    ...row.options,
  })
  return { key: row.key, task, static: row.static, enabled: row.enabled, changedAt: row.changed_at }
}
