import type pg from 'pg'
import type { ResolvedConfig } from '../config/options.ts'
import { toError } from '../core/report.ts'
import { isConnectionError } from '../db/database.ts'
import { logicalOf } from '../pgmq/names.ts'
import { pausedQueues } from '../pgmq/queue-states.ts'
import { loopAgeSql, silenceSql } from './process-list.ts'

/** Everything that the verdict depends on. Ages are by the clock of the database, in seconds. */
export interface Facts {
  /** When they were read. */
  at: Date
  /** Queues with our prefix. */
  queues: readonly QueueFacts[]
  processes: readonly ProcessFacts[]
  /** Age of the oldest open transaction of the database, null: there is none; or why that could not be read. */
  oldestTransaction: number | null | Error
}

export interface QueueFacts {
  /** Name without prefix and priority level. */
  name: string
  physical: string
  /** `event`: a routing pattern feeds it. */
  kind: 'job' | 'event' | 'stream' | 'dlq'
  paused: boolean
  /** A stream that only its index tells from a queue of jobs. */
  unlisted: boolean
  /** False: somebody holds a lock on its table, and nothing more is known of it. */
  readable: boolean
  /** Messages, and those that could be claimed; 10 000 at most. */
  depth: number
  visible: number
  /** Since when the oldest of the claimable messages has been so; null: there is none. */
  waiting: number | null
  /** The same of those that nobody ever claimed. */
  unclaimed: number | null
  /** Told where `unclaimed` reaches the grace: whether other messages of the queue are claimed or worked on. */
  claimed: boolean | null
}

export interface ProcessFacts {
  kind: string
  pid: number
  /** Since its last heartbeat. */
  silence: number
  /** What lay between its loop's last round and its last heartbeat; null: it does not tell. */
  loopAge: number | null
  /** Logical names and patterns that a worker or consumer reads. */
  queues: readonly string[]
  eventLoopLagMs: number | null
}

/** Counting further would tell nobody more, and cost most while the backlog is largest. */
const countUpTo = 10_000

const facts = `SELECT clock_timestamp() AS at,
  (SELECT coalesce(jsonb_agg(q), '[]') FROM pgbus_queue_health($1::text, $2::float8, $3::int) AS q) AS queues,
  ARRAY(${pausedQueues.text}) AS paused,
  (SELECT coalesce(jsonb_agg(jsonb_build_object(
     'kind', kind, 'pid', pid, 'queues', metadata->'queues',
     'silence', ${silenceSql}, 'loopAge', ${loopAgeSql},
     'eventLoopLagMs', CASE WHEN jsonb_typeof(metadata->'event_loop_lag_ms') = 'number' THEN metadata->'event_loop_lag_ms' END
   ) ORDER BY kind, created_at), '[]') FROM pgbus_processes) AS processes`

const oldestTransaction = `SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 AS age FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'`

interface FactsRow {
  at: Date
  queues: Omit<QueueFacts, 'name' | 'paused'>[]
  paused: string[]
  processes: (Omit<ProcessFacts, 'queues'> & { queues: unknown })[]
}

/**
 * Reads them on one connection, in one transaction that can write nothing and whose statements end after
 * `statementTimeout` ms. `unreadGrace` in ms.
 */
export async function readFacts(
  client: pg.ClientBase,
  config: ResolvedConfig,
  { unreadGrace, statementTimeout }: { unreadGrace: number; statementTimeout: number },
): Promise<Facts> {
  await client.query(`BEGIN READ ONLY; SET LOCAL statement_timeout = ${Math.ceil(statementTimeout)}`)
  try {
    const prefix = `${config.queuePrefix.toLowerCase()}_`
    const { rows } = await client.query<FactsRow>(facts, [prefix, unreadGrace / 1_000, countUpTo])
    const row = rows[0]!
    const paused = new Set(row.paused)
    return {
      at: row.at,
      queues: row.queues.map(queue => {
        const name = logicalOf(config, queue.physical)
        return { ...queue, name, paused: paused.has(name) }
      }),
      processes: row.processes.map(process => ({ ...process, queues: namesIn(process.queues) })),
      // Last, because an error ends the transaction.
      oldestTransaction: await readOldestTransaction(client),
    }
  } finally {
    // Nothing was written. A connection that is gone has rolled back by itself.
    await client.query('ROLLBACK').catch(() => undefined)
  }
}

async function readOldestTransaction(client: pg.ClientBase): Promise<number | null | Error> {
  try {
    const { rows } = await client.query<{ age: number | null }>(oldestTransaction)
    return rows[0]?.age ?? null
  } catch (error) {
    if (isConnectionError(error)) throw error
    return toError(error)
  }
}

/** Other clients write rows of processes too. */
function namesIn(queues: unknown): string[] {
  return Array.isArray(queues) ? queues.filter(queue => typeof queue === 'string') : []
}
