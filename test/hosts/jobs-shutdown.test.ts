import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { type JobHostOptions, spawnJobs } from './job-host.ts'

/** A host that runs one job of this name. */
const setup = async (t: TestContext, job: string, options: JobHostOptions = {}) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const host = spawnJobs(t, db, options)
  await host.booted(1)
  await pgbus.enqueue(job, { n: 1, ms: 60_000 })
  await waitFor(async () => (await db.query('SELECT 1 FROM ledger')).length === 1)
  const message = async () =>
    (
      await db.query<{ read_ct: number; visible: boolean }>(
        'SELECT read_ct, vt <= clock_timestamp() AS visible FROM pgmq.q_pgbus_default',
      )
    )[0]
  return { db, host, message, began: () => performance.now() }
}

const since = (start: number) => performance.now() - start

t.test('given a job of a minute and a short drain', async t => {
  const env = { PGBUS_DRAIN_TIMEOUT: '1s', PGBUS_VISIBILITY_TIMEOUT: '10m' }

  t.test('when it obeys its signal, then it is given back uncharged and others may have it', async t => {
    const { host, message } = await setup(t, 'note', { env })
    const start = performance.now()
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
    t.ok(since(start) < 7_000, `took ${since(start)} ms`)
    t.strictSame(await message(), { read_ct: 0, visible: true })
    t.strictSame(host.survivors(), [])
  })

  t.test('when it ignores its signal, then it is given back charged, and the end is in time', async t => {
    const { host, message } = await setup(t, 'deaf', { env })
    const start = performance.now()
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
    t.ok(since(start) < 7_000, `took ${since(start)} ms`)
    t.strictSame(await message(), { read_ct: 1, visible: true })
    t.strictSame(host.survivors(), [])
  })

  t.test(
    'when it blocks its process, then that is killed at shutdownTimeout, and the exit code is 1',
    async t => {
      const { db, host, message } = await setup(t, 'blocking', { env })
      const start = performance.now()
      host.signal('SIGTERM')
      t.strictSame(await host.exited, { code: 1, signal: null })
      t.ok(since(start) >= 5_900 && since(start) < 9_000, `took ${since(start)} ms`)
      t.strictSame(await message(), { read_ct: 0, visible: true }, 'a deploy is nobody’s failure')
      t.strictSame(await db.query('SELECT * FROM pgbus_processes'), [])
      t.strictSame(host.survivors(), [])
    },
  )
})

t.test('given a host that drains', async t => {
  t.test('when a second TERM comes, then it ends at once with 1, and the job is given back', async t => {
    const { host, message } = await setup(t, 'note', { env: { PGBUS_VISIBILITY_TIMEOUT: '10m' } })
    host.signal('SIGTERM')
    await host.waitForOutput(/worker is draining/)
    const start = performance.now()
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.ok(since(start) < 5_000, `took ${since(start)} ms`)
    t.match(await message(), { visible: true })
    t.strictSame(host.survivors(), [])
  })

  t.test('when QUIT comes while a job blocks, then everything is killed within seconds', async t => {
    const { host, message } = await setup(t, 'blocking', { env: { PGBUS_VISIBILITY_TIMEOUT: '10m' } })
    const start = performance.now()
    host.signal('SIGQUIT')
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.ok(since(start) < 6_000, `took ${since(start)} ms`)
    t.match(await message(), { visible: true })
    t.strictSame(host.survivors(), [])
  })
})

t.test('given a worker that is told to stop while it claims', async t => {
  t.test('when that is done again and again, then nothing is lost, hidden or charged', async t => {
    const db = await createDatabase(t)
    await db.query(ledgerTable)
    const pgbus = createTestPgbus(t, db)
    const total = 1_000
    await pgbus.enqueueMany(Array.from({ length: total }, (_, n) => ({ job: 'note', args: { n } })))
    for (let round = 0; round < 4; round += 1) {
      const host = spawnJobs(t, db, { env: { PGBUS_VISIBILITY_TIMEOUT: '10m' } })
      await host.waitForOutput(/worker started/)
      await new Promise(resolve => setTimeout(resolve, round * 40))
      host.signal('SIGTERM')
      t.strictSame(await host.exited, { code: 0, signal: null })
      const [left] = await db.query<{ waiting: number; hidden: number; charged: number }>(
        `SELECT count(*)::int AS waiting, count(*) FILTER (WHERE vt > clock_timestamp())::int AS hidden,
                count(*) FILTER (WHERE read_ct > 0)::int AS charged FROM pgmq.q_pgbus_default`,
      )
      const [archived] = await db.query<{ done: number }>(
        'SELECT count(*)::int AS done FROM pgmq.a_pgbus_default',
      )
      t.equal((left?.waiting ?? 0) + (archived?.done ?? 0), total)
      t.match(left, { hidden: 0, charged: 0 })
    }
  })
})
