import type { PgbusConfig, WorkerEntry } from '../../lib/config/options.ts'
import type { Logger } from '../../lib/core/log.ts'
import { type Delivery, deliveryOf } from '../../lib/jobs/claim.ts'
import type { HeldToken } from '../../lib/jobs/held-tokens.ts'
import type { Worker } from '../../lib/jobs/worker.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import { type ClaimManyRow, claimMany } from '../../lib/pgmq/statements.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'

export interface Line {
  level: 'debug' | 'info' | 'warn' | 'error'
  message: string
  fields: Record<string, unknown>
}

export interface Bench {
  db: TestDatabase
  pgbus: Pgbus
  /** Everything logged by `pgbus`. */
  lines: Line[]
  /** A started worker, stopped at teardown. */
  work(
    entry?: Partial<WorkerEntry>,
    onHeld?: (taken: HeldToken[], done: HeldToken[]) => void,
  ): Promise<Worker>
  /** Rows of a queue's table, oldest first, with `hidden` for those that cannot be claimed now. */
  rows(physical?: string): Promise<QueueRow[]>
  archived(physical?: string): Promise<number>
  failures(): Promise<FailureRow[]>
}

export interface QueueRow {
  msg_id: string
  read_ct: number
  hidden: boolean
  message: Record<string, unknown>
  headers: Record<string, unknown> | null
}

export interface FailureRow {
  queue_name: string
  msg_id: string
  error_class: string
  error_message: string
  backtrace: string | null
  retry_count: number
}

/** A database, an instance on it and what tests look at. Queues are called `pgbus_<name>`. */
export async function setup(t: TestContext, config: PgbusConfig = {}): Promise<Bench> {
  const db = await createDatabase(t)
  const lines: Line[] = []
  const pgbus = createTestPgbus(t, db, {
    pollingInterval: '20ms',
    ...config,
    log: { logger: recorder(lines) },
  })
  return {
    db,
    pgbus,
    lines,
    work: async (entry, onHeld) => {
      const worker = pgbus.createWorker(
        { queues: ['default'], ...entry },
        {
          onHeld:
            onHeld &&
            (async ({ claimed = [], running = [], done = [] }) =>
              onHeld([...claimed, ...running], [...done])),
        },
      )
      t.teardown(() => worker.stop({ timeout: 0, immediate: true }))
      await worker.start()
      return worker
    },
    rows: (physical = 'pgbus_default') =>
      db.query<QueueRow>(
        `SELECT msg_id, read_ct, vt > clock_timestamp() AS hidden, message, headers FROM pgmq."q_${physical}" ORDER BY msg_id`,
      ),
    archived: async (physical = 'pgbus_default') => {
      const [row] = await db.query<{ n: number }>(`SELECT count(*)::int AS n FROM pgmq."a_${physical}"`)
      return row?.n ?? 0
    },
    failures: () => db.query<FailureRow>('SELECT * FROM pgbus_failed_events ORDER BY id'),
  }
}

/** Waits until a queue is empty. */
export async function drained(bench: Bench, physical?: string): Promise<void> {
  await waitFor(async () => (await bench.rows(physical)).length === 0, { message: 'an empty queue' })
}

function recorder(lines: Line[], bindings: Record<string, unknown> = {}): Logger {
  const write = (level: Line['level']) => (fields: object | string, message?: string) => {
    lines.push({
      level,
      message: typeof fields === 'string' ? fields : (message ?? ''),
      fields: { ...bindings, ...(typeof fields === 'object' ? fields : {}) },
    })
  }
  return {
    debug: write('debug'),
    info: write('info'),
    warn: write('warn'),
    error: write('error'),
    child: more => recorder(lines, { ...bindings, ...more }),
  }
}

/** Claims one message of the default queue, as a worker does. */
export async function claimOne({ db }: Pgbus, visibilityTimeout: number): Promise<Delivery> {
  const claimedAt = performance.now()
  const { rows } = await db.query<ClaimManyRow>(claimMany(['pgbus_default'], 1, visibilityTimeout))
  const row = rows.find(({ msg_id }) => msg_id !== null)!
  return deliveryOf(row, row.physical!, row.msg_id!, claimedAt)
}
