import t from 'tap'
import { insertChannel } from '../../lib/pgmq/names.ts'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { takeCensus } from '../support/census.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

const setup = async (t: TestContext, workers: string, children: number) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const host = spawnJobs(t, db, { workers, env: { PGBUS_VISIBILITY_TIMEOUT: '10m' } })
  await host.booted(children)
  await host.waitForOutput(/notifications are delivered/)
  return { db, pgbus, host }
}

t.test('given a host under load', async t => {
  const { db, pgbus, host } = await setup(t, 'default: 3; default: 3', 2)

  t.test('when its LISTEN session is ended again and again, then jobs go on, each done once', async t => {
    const census = await takeCensus(db.url, { like: 'pgbus-listen', every: 50 })
    let enqueued = 0
    let feeding = true
    const feed = (async () => {
      while (feeding) {
        const batch = Array.from({ length: 10 }, (_, n) => ({ job: 'note', args: { n: enqueued + n } }))
        await pgbus.enqueueMany(batch)
        enqueued += batch.length
        await new Promise(resolve => setTimeout(resolve, 50))
      }
    })()
    t.teardown(() => {
      feeding = false
    })
    let terminated = 0
    // The pauses between its attempts grow, so most of these find it connecting, or gone.
    for (let n = 0; n < 20; n += 1) {
      const rows = await db.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = current_database() AND application_name = 'pgbus-listen'`,
      )
      terminated += rows.length
      await new Promise(resolve => setTimeout(resolve, 300))
    }
    // One that was ended while it subscribed was not restored before.
    await waitFor(() => {
      const lines = host.output().split('\n')
      return (
        lines.findLastIndex(l => l.includes('LISTEN restored')) >
        lines.findLastIndex(l => l.includes('LISTEN connection lost'))
      )
    })
    feeding = false
    await feed
    const counts = () =>
      db.query(
        `SELECT count(*)::int AS starts, count(DISTINCT n)::int AS jobs,
                count(*) FILTER (WHERE ended_at IS NULL)::int AS open FROM ledger`,
      )
    await waitFor(async () => (await db.query('SELECT FROM pgmq.q_pgbus_default')).length === 0)
    t.strictSame(await counts(), [{ starts: enqueued, jobs: enqueued, open: 0 }])
    t.ok(terminated >= 3, `${terminated} sessions were ended`)
    await census.stop()
    t.strictSame(
      census.samples.filter(sessions => sessions.length > 1),
      [],
      'never more than one',
    )
    t.notMatch(host.output(), /uncaught_exception/)
  })
})

t.test('given a job that blocks its process', async t => {
  const { db, pgbus, host } = await setup(t, 'default: 1; default: 1', 2)

  t.test(
    'when notifications pour in, then the listener keeps reading and the other worker goes on',
    async t => {
      await pgbus.enqueue('blocking', { n: 0, ms: 300_000 })
      const blocked = await waitFor(
        async () => (await db.query<{ pid: number }>('SELECT pid FROM ledger'))[0],
      )
      const census = await takeCensus(db.url, { like: 'pgbus-listen', every: 20 })
      for (let n = 1; n <= 20; n += 1) {
        // Equal payloads of one transaction would be merged.
        await db.query(`SELECT pg_notify($1, g::text) FROM generate_series(1, 5000) g`, [
          insertChannel('pgbus_default'),
        ])
        await pgbus.enqueue('note', { n })
      }
      await waitFor(
        async () => (await db.query('SELECT FROM ledger WHERE ended_at IS NOT NULL')).length === 20,
      )
      await census.stop()
      const rows = await db.query<{ n: number; pid: number }>('SELECT n, pid FROM ledger ORDER BY n')
      t.strictSame(
        rows.map(({ n }) => n),
        Array.from({ length: 21 }, (_, n) => n),
      )
      t.strictSame(
        rows.filter(({ pid }) => pid === blocked.pid).map(({ n }) => n),
        [0],
        'the others ran elsewhere, meanwhile',
      )

      const longest = {
        write: census.longest(({ wait_event }) => wait_event === 'ClientWrite'),
        snapshot: census.longest(({ holds_snapshot }) => holds_snapshot),
        transaction: census.longest(({ in_transaction }) => in_transaction),
      }
      t.ok(census.samples.flat().length > 5, `${census.samples.length} samples`)
      t.ok(
        Object.values(longest).every(ms => ms < 1_000),
        `the server never waits for it: ${JSON.stringify(longest)}`,
      )
      t.ok(
        census.samples.flat().every(({ state }) => !state?.startsWith('idle in transaction')),
        'it opens no transaction',
      )
      t.ok(census.queueUsage < 0.001, `notification queue: ${census.queueUsage}`)
      t.notMatch(host.output(), /uncaught_exception/)
      process.kill(blocked.pid, 'SIGKILL')
      host.signal('SIGTERM')
      t.strictSame(await host.exited, { code: 0, signal: null })
    },
  )
})

t.test("given a host with notify.scope 'fork'", async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const env = { PGBUS_NOTIFY_SCOPE: 'fork', PGBUS_POLLING_INTERVAL: '10m' }
  const host = spawnJobs(t, db, { workers: 'default: 1; mail: 1', env })
  await host.booted(2)

  t.test('when jobs come, then each worker is woken over a connection of its own', async t => {
    const sessions = () =>
      db.query(
        `SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus-listen'`,
      )
    await waitFor(() => host.output().split('notifications are delivered').length === 3)
    t.equal((await sessions()).length, 2)
    await pgbus.enqueueMany(['default', 'mail'].map((queue, n) => ({ job: 'note', args: { n }, queue })))
    await waitFor(async () => (await db.query('SELECT FROM ledger WHERE ended_at IS NOT NULL')).length === 2)
    process.kill(host.pid, 'SIGTERM')
    t.match(await host.exited, { code: 0 })
    await waitFor(async () => (await sessions()).length === 0)
    t.same(host.survivors(), [])
  })
})
