import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { freePort } from '../support/free-port.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

const setup = async (t: TestContext) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  return { db, pgbus: createTestPgbus(t, db) }
}

/** What an orchestrator does: `pgbus-health` again and again until it says yes, or for so many times. */
const gate = async (t: TestContext, port: string, tries: number): Promise<boolean> => {
  for (let n = 0; n < tries; n += 1) {
    const { exited } = spawnNode(t, compiled('bin/pgbus-health.ts'), [], { env: { PGBUS_HEALTH_PORT: port } })
    if ((await exited).code === 0) return true
    await new Promise(resolve => setTimeout(resolve, 200))
  }
  return false
}

t.test('given a host under load', async t => {
  const { db, pgbus } = await setup(t)
  const start = async (jobs = 'jobs') => {
    const port = String(await freePort())
    const host = spawnJobs(t, db, {
      jobs,
      workers: 'default: 4; default: 4',
      // What a stopped host forgot would be seen by a queue that does not become empty.
      env: { PGBUS_HEALTH_PORT: port, PGBUS_VISIBILITY_TIMEOUT: '10m' },
    })
    return { host, port }
  }
  let next = 0
  let feeding = true
  t.teardown(() => {
    feeding = false
  })
  const feed = async () => {
    while (feeding) {
      const jobs = Array.from({ length: 5 }, () => ({ job: 'note', args: { n: next++, ms: 30 } }))
      await pgbus.enqueueMany(jobs)
      await new Promise(resolve => setTimeout(resolve, 25))
    }
  }
  let old = await start()
  t.ok(await gate(t, old.port, 100))
  const fed = feed()

  t.test('when a new one cannot work, then the gate stays shut and the old one goes on', async t => {
    const bad = await start('throws')
    t.notOk(await gate(t, bad.port, 3))
    t.ok(await gate(t, old.port, 1))
    bad.host.signal('SIGTERM')
    t.strictSame(await bad.host.exited, { code: 0, signal: null })
  })

  t.test('when it is replaced, new one first, then no job is lost and none runs twice', async t => {
    for (let round = 0; round < 2; round += 1) {
      const fresh = await start()
      t.ok(await gate(t, fresh.port, 100))
      old.host.signal('SIGTERM')
      t.strictSame(await old.host.exited, { code: 0, signal: null })
      t.strictSame(old.host.survivors(), [])
      old = fresh
    }
    feeding = false
    await fed
    await waitFor(async () => (await db.query('SELECT FROM pgmq.q_pgbus_default')).length === 0)
    t.strictSame(
      await db.query(
        `SELECT count(*)::int AS starts, count(DISTINCT n)::int AS jobs, count(ended_at)::int AS done,
                max(attempt) AS attempts FROM ledger`,
      ),
      [{ starts: next, jobs: next, done: next, attempts: 1 }],
    )
    t.ok((await db.query('SELECT DISTINCT pid FROM ledger')).length >= 4, 'old and new ones worked')
    old.host.signal('SIGTERM')
    t.strictSame(await old.host.exited, { code: 0, signal: null })
  })
})

t.test('given a job that is longer than the drain of its host', async t => {
  const { db, pgbus } = await setup(t)
  const env = { PGBUS_DRAIN_TIMEOUT: '1s', PGBUS_VISIBILITY_TIMEOUT: '10m' }

  t.test(
    'when that host is stopped, then the job starts on another, without waiting for its lease',
    async t => {
      const first = spawnJobs(t, db, { env })
      await first.booted(1)
      await pgbus.enqueue('note', { n: 1, ms: 300_000 })
      await waitFor(async () => (await db.query('SELECT FROM ledger')).length === 1)
      const second = spawnJobs(t, db, { env })
      await second.booted(1)
      first.signal('SIGTERM')
      t.strictSame(await first.exited, { code: 0, signal: null })
      const starts = await waitFor(async () => {
        const rows = await db.query<{ pid: number; attempt: number }>(
          'SELECT pid, attempt FROM ledger ORDER BY id',
        )
        return rows.length === 2 ? rows : undefined
      })
      t.strictSame(
        starts,
        [first, second].map(host => ({ pid: host.ready()[0]?.pid, attempt: 1 })),
        'once on each, the first one not charged',
      )
      second.signal('SIGTERM')
      t.strictSame(await second.exited, { code: 0, signal: null })
    },
  )
})
