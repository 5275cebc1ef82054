import { maintenanceLocks } from '../db/advisory-locks.ts'
import { isConnectionError } from '../db/database.ts'
import { quoteIdentifier } from '../db/identifier.ts'
import type { MaintenanceTask, TaskContext } from './task.ts'

export interface TableLimits {
  /** Vacuum from so many dead rows on, if they are a tenth of all. */
  deadRows: number
  /** Rebuild indexes from so many bytes on, if they are four times as large as the table. */
  indexBytes: number
}

const defaultLimits: TableLimits = { deadRows: 1_000, indexBytes: 64 * 1024 * 1024 }

/**
 * Vacuums what the server's autovacuum has not got to, and rebuilds the indexes of queues that stay large after a
 * flood. Nothing here blocks readers or writers; a table that is in use is left to the next run.
 */
export function tables(limits: TableLimits = defaultLimits): MaintenanceTask {
  const lock = 16
  return {
    name: 'tables',
    lock,
    every: 21_600_000,
    async run(context) {
      const { query } = context
      // Of the session: none of this can run in a transaction. The connection ends with the run, and with it the
      // lock, should the last statement fail.
      const { rows } = await query<{ taken: boolean }>('SELECT pg_try_advisory_lock($1, $2) AS taken', [
        maintenanceLocks,
        lock,
      ])
      if (rows[0]?.taken !== true) return 'done'
      try {
        await query("SET lock_timeout = '5s'")
        return await maintain(context, limits)
      } finally {
        await query('RESET lock_timeout').catch(() => undefined)
        await query('SELECT pg_advisory_unlock($1, $2)', [maintenanceLocks, lock]).catch(() => undefined)
      }
    },
  }
}

async function maintain(context: TaskContext, limits: TableLimits): Promise<'done' | 'more'> {
  const steps: string[] = [
    ...(await leftovers(context)).map(index => `DROP INDEX CONCURRENTLY IF EXISTS ${index}`),
    ...(await crowded(context, limits)).map(table => `VACUUM (SKIP_LOCKED) ${table}`),
  ]
  const failures: unknown[] = []
  let done = 0
  const runAll = async (statements: readonly string[]) => {
    for (const statement of statements) {
      if (context.signal.aborted) return
      try {
        await context.query(statement)
        done += 1
        context.log.debug(statement)
      } catch (error) {
        if (isConnectionError(error) || context.signal.aborted) throw error
        failures.push(error)
        context.log.warn({ err: error }, `left to the next run: ${statement}`)
      }
    }
  }
  await runAll(steps)
  // Sizes as they are after the vacuum.
  const rebuilds = (await bloated(context, limits)).map(table => `REINDEX TABLE CONCURRENTLY ${table}`)
  await runAll(rebuilds)
  if (failures.length > 0 && done === 0) throw failures[0]
  return context.signal.aborted ? 'more' : 'done'
}

/** Queues and archives with our prefix, and our own tables. */
const ours = `(
  (n.nspname = 'pgmq' AND (starts_with(c.relname, 'q_' || $1) OR starts_with(c.relname, 'a_' || $1)))
  OR (n.nspname = current_schema() AND starts_with(c.relname, 'pgbus_'))
)`

/** What an interrupted REINDEX CONCURRENTLY left behind. One that is at work holds a lock that DROP waits for. */
async function leftovers({ query, config }: TaskContext): Promise<string[]> {
  return namesOf(
    await query<NameRow>(
      `SELECT n.nspname AS schema, ic.relname AS name
  FROM pg_index i
  JOIN pg_class ic ON ic.oid = i.indexrelid
  JOIN pg_class c ON c.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT i.indisvalid AND ic.relname ~ '_cc(new|old)[0-9]*$' AND ${ours}
 ORDER BY 1, 2`,
      [prefixOf(config)],
    ),
  )
}

async function crowded({ query, config }: TaskContext, { deadRows }: TableLimits): Promise<string[]> {
  return namesOf(
    await query<NameRow>(
      `SELECT n.nspname AS schema, c.relname AS name
  FROM pg_stat_user_tables s
  JOIN pg_class c ON c.oid = s.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.n_dead_tup >= $2::bigint AND s.n_dead_tup * 10 > s.n_dead_tup + s.n_live_tup AND ${ours}
 ORDER BY s.n_dead_tup DESC`,
      [prefixOf(config), deadRows],
    ),
  )
}

/** By the counts of the last vacuum: asking for sizes waits for whoever has locked a table. */
async function bloated({ query, config }: TaskContext, { indexBytes }: TableLimits): Promise<string[]> {
  return namesOf(
    await query<NameRow>(
      `SELECT n.nspname AS schema, c.relname AS name
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
   SELECT sum(ic.relpages) AS pages FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid WHERE i.indrelid = c.oid
 ) AS indexes
 WHERE c.relkind = 'r' AND n.nspname = 'pgmq' AND starts_with(c.relname, 'q_' || $1)
   AND indexes.pages * current_setting('block_size')::bigint >= $2::bigint AND indexes.pages > 4 * c.relpages
 ORDER BY indexes.pages DESC`,
      [prefixOf(config), indexBytes],
    ),
  )
}

interface NameRow {
  schema: string
  name: string
}

function namesOf({ rows }: { rows: NameRow[] }): string[] {
  return rows.map(({ schema, name }) => `${quoteIdentifier(schema)}.${quoteIdentifier(name)}`)
}

function prefixOf(config: TaskContext['config']): string {
  return `${config.queuePrefix.toLowerCase()}_`
}
