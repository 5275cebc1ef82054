import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { freePort } from '../support/free-port.ts'
import { createTestPgbus } from '../support/instance.ts'
import { isAlive } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { gone, spawnJobs } from './job-host.ts'

const setup = async (t: TestContext, env: Record<string, string>) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const port = String(await freePort())
  const host = spawnJobs(t, db, { workers: 'default: 2', env: { PGBUS_HEALTH_PORT: port, ...env } })
  const [first] = await host.booted(1)
  const readiness = async () => (await fetch(`http://127.0.0.1:${port}/readyz`)).status
  const end = async () => {
    const pids = host.survivors()
    host.signal('SIGTERM')
    const exit = await host.exited
    await gone(pids)
    return exit
  }
  const ledger = () => db.query<{ n: number; ended_at: Date | null }>('SELECT n, ended_at FROM ledger')
  return { db, pgbus, host, first: first!.pid, readiness, end, ledger }
}

t.test('given a worker that has done enough', async t => {
  const { pgbus, host, first, readiness, end, ledger } = await setup(t, { PGBUS_RECYCLE_MAX_JOBS: '5' })

  t.test('when it is replaced, then the host is ready all the time, and each job runs once', async t => {
    const answers = new Set<number>()
    let asking = true
    const asked = (async () => {
      while (asking) answers.add(await readiness())
    })()
    // The last one is in progress when the old process is told to leave.
    const jobs = Array.from({ length: 6 }, (_, n) => ({ job: 'note', args: { n, ms: n === 5 ? 4_000 : 10 } }))
    await pgbus.enqueueMany(jobs)
    await host.booted(2)
    await waitFor(async () => !(await isAlive(first)), { timeout: 20_000 })
    asking = false
    await asked
    t.strictSame([...answers], [200])
    t.match(host.output(), /replacing worker:0\.0/)
    t.match(host.output(), /max_jobs: [56] jobs handled/)
    t.strictSame((await ledger()).map(({ n }) => n).sort(), [0, 1, 2, 3, 4, 5])
    t.ok((await ledger()).every(row => row.ended_at !== null))
  })

  t.test('when everybody is to be replaced, then USR2 does it', async t => {
    host.signal('SIGUSR2')
    await host.booted(3)
    t.match(host.output(), /"reason":"requested"/)
    t.strictSame(await end(), { code: 0, signal: null })
  })
})

t.test('given no overlap', async t => {
  const { pgbus, host, first, end, ledger } = await setup(t, {
    PGBUS_RECYCLE_MAX_JOBS: '1',
    PGBUS_RECYCLE_OVERLAP: 'false',
  })

  t.test('when a worker has done enough, then it ends before the next one comes', async t => {
    await pgbus.enqueue('note', { n: 1 })
    await waitFor(async () => !(await isAlive(first)))
    await host.booted(2)
    await pgbus.enqueue('note', { n: 2 })
    await waitFor(async () => (await ledger()).filter(row => row.ended_at !== null).length === 2)
    t.notMatch(host.output(), /next one in [1-9]/, 'no crash')
    t.strictSame(await end(), { code: 0, signal: null })
  })
})

t.test('given a job that blocks its process', async t => {
  const { pgbus, host, first, ledger } = await setup(t, { PGBUS_STALL_THRESHOLD: '3s' })

  t.test('when that lasts, then the process is killed, and the job runs alone the next time', async t => {
    await pgbus.enqueue('blocking', { n: 1, ms: 600_000 })
    await host.waitForOutput(/worker:0\.0 is stalled: no sign of life/, 40_000)
    await host.waitForOutput(/worker:0\.0 ended after .*: was stalled: no sign of life/)
    await gone([first])
    await host.booted(2)
    await waitFor(async () => (await ledger()).length === 2, { timeout: 20_000 })
    t.match(host.output(), /each runs alone the next time/)
    // Blocked again: it cannot drain.
    host.signal('SIGQUIT')
    t.match(await host.exited, { code: 1 })
  })
})
