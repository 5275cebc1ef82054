/**
 * `npm run soak:jobs [-- --seconds N --seed N]`: jobs under violence. Two supervisors with two workers each run
 * 50,000 jobs in ten minutes (fewer in less time), while workers, supervisors, connections and PostgreSQL itself
 * are killed, frozen and restarted. Prints what became of the jobs; exit code 1 when a guarantee was broken.
 */
import { parseArgs } from 'node:util'
import { createPgbus } from '../../lib/pgbus.ts'
import { ledgerTable } from '../../test/fixtures/jobs/ledger.ts'
import { startServer, type TestContext } from '../../test/support/database.ts'
import { waitFor } from '../../test/support/wait-for.ts'
import { expectedTable, Feed, queues } from './feed.ts'
import { Fleet } from './fleet.ts'
import { Random } from './random.ts'
import { type Entry, tally } from './verdict.ts'
import { Violence } from './violence.ts'

const jobsPerSecond = 50_000 / 600
const visibilityTimeout = 10_000
/** After the violence: what nobody was told of comes back with its lease. */
const settleMs = 60_000

const { values } = parseArgs({ options: { seconds: { type: 'string' }, seed: { type: 'string' } } })
const seconds = positive('--seconds', values.seconds ?? '600')
const seed = values.seed === undefined ? Math.floor(Math.random() * 2 ** 31) : positive('--seed', values.seed)

const endings: (() => unknown)[] = []
const scope: TestContext = { teardown: fn => endings.push(fn) }
try {
  process.exitCode = (await soak()) ? 0 : 1
} finally {
  for (const end of endings.reverse()) await end()
}

async function soak(): Promise<boolean> {
  console.log(`soak: ${seconds} s, seed ${seed}`)
  const server = await startServer(scope, { max_connections: '200' })
  await server.query(ledgerTable)
  await server.query(expectedTable)
  const pgbus = createPgbus({ databaseUrl: server.url, log: { level: 'silent' } })
  scope.teardown(() => pgbus.close())

  const random = new Random(seed)
  const fleet = new Fleet(scope, server.url, visibilityTimeout)
  await fleet.start()
  await fleet.start()
  const feed = new Feed(pgbus, server.url, new Random(seed + 1))
  const violence = new Violence({ fleet, server, random })
  const total = Math.round(jobsPerSecond * seconds)
  const outcome = await Promise.allSettled([feed.run(total, seconds * 1_000), violence.run(seconds * 1_000)])
  const waiting = async () => {
    const counts = await Promise.all(
      queues.map(queue =>
        server.query<{ n: number }>(`SELECT count(*)::int AS n FROM pgmq.q_pgbus_${queue}`),
      ),
    )
    return counts.reduce((sum, [row]) => sum + (row?.n ?? 0), 0)
  }
  await waitFor(async () => (await waiting()) === 0, { timeout: settleMs, interval: 250 }).catch(
    () => undefined,
  )
  const left = await waiting()
  const survivors = await fleet.close()
  await feed.close()
  await pgbus.close()

  const sessions = await waitForNoSessions(server)
  const dead = await deadLetters(server)
  const ledger = await server.query<Entry>(
    `SELECT n, pid, threw, extract(epoch FROM started_at)::float8 * 1000 AS started,
            extract(epoch FROM ended_at)::float8 * 1000 AS ended FROM ledger ORDER BY id`,
  )
  const expected = (await server.query<{ n: number }>('SELECT n FROM expected ORDER BY n')).map(({ n }) => n)
  const found = tally({ expected, maybe: feed.maybe, ledger, killed: fleet.killed, breaks: violence.breaks })
  const uncaught = fleet.output().match(/uncaught_exception[^\n]*/g) ?? []

  const rows: [what: string, count: number, mustBeZero: boolean][] = [
    ['jobs that had to run', expected.length, false],
    ['enqueues that may or may not have committed', feed.maybe.size, false],
    ['statements of the feeder that were refused', feed.refused, false],
    ...Object.entries(violence.counts).map(([what, count]): [string, number, boolean] => [
      what,
      count,
      false,
    ]),
    ['started again after a kill', found.afterKill, false],
    ['started again after a cut connection', found.afterBreak, false],
    ['of these, done twice', found.twiceDone, false],
    ['lost', found.lost.length, true],
    ['ran without being enqueued', found.unknown.length, true],
    ['started again for no reason', found.unexplained.length, true],
    ['left in their queues', left, true],
    ['dead letters', dead, true],
    ['processes left', survivors.length, true],
    ['connections left', sessions.length, true],
    ['uncaught exceptions', uncaught.length, true],
  ]
  for (const [what, count, mustBeZero] of rows) {
    console.log(
      `${mustBeZero && count > 0 ? 'BROKEN ' : '       '}${what.padEnd(46)} ${String(count).padStart(7)}`,
    )
  }
  const failures = outcome.flatMap(result => (result.status === 'rejected' ? [result.reason] : []))
  for (const failure of failures) console.error(failure)
  const broken = failures.length > 0 || rows.some(([, count, mustBeZero]) => mustBeZero && count > 0)
  if (broken) console.error(JSON.stringify({ seed, ...found, survivors, sessions, uncaught }))
  return !broken
}

type Source = { query<R>(text: string): Promise<R[]> }

async function deadLetters(server: Source): Promise<number> {
  const tables = await server.query<{ queue_name: string }>(
    `SELECT queue_name FROM pgmq.meta WHERE queue_name LIKE '%\\_dlq'`,
  )
  let count = 0
  for (const { queue_name } of tables) {
    const rows = await server.query<{ n: number }>(`SELECT count(*)::int AS n FROM pgmq."q_${queue_name}"`)
    count += rows[0]?.n ?? 0
  }
  return count
}

async function waitForNoSessions(server: Source): Promise<string[]> {
  const look = async () =>
    (
      await server.query<{ application_name: string }>(
        `SELECT application_name FROM pg_stat_activity
          WHERE datname = current_database() AND pid <> pg_backend_pid()`,
      )
    ).map(row => row.application_name)
  await waitFor(async () => (await look()).length === 0, { timeout: 5_000 }).catch(() => undefined)
  return look()
}

function positive(option: string, text: string): number {
  const value = Number(text)
  if (Number.isFinite(value) && value > 0) return value
  console.error(`${option} takes a number above 0, got "${text}"`)
  process.exit(2)
}
