import { readFileSync } from 'node:fs'
import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a host that runs jobs and recurring tasks', async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  await pgbus.recurring.upsert('often', { job: 'note', schedule: '* * * * * *', args: { n: 7 } })
  const host = spawnJobs(t, db, { roles: 'workers,scheduler' })
  await host.booted(2)
  const runs = async () => (await db.query('SELECT FROM ledger WHERE n = 7 AND ended_at IS NOT NULL')).length

  t.test('when a task is due every second, then its job runs again and again', async t => {
    await waitFor(async () => (await runs()) >= 3, { timeout: 30_000 })
    const [once] = await db.query<{ most: number }>(
      'SELECT max(n)::int AS most FROM (SELECT count(*) AS n FROM pgbus_recurring_executions GROUP BY run_at) r',
    )
    t.equal(once?.most, 1)
  })

  t.test('when its database connections are ended, then it goes on', async t => {
    const before = await runs()
    await db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'pgbus%'`,
    )
    await waitFor(async () => (await runs()) >= before + 2, { timeout: 30_000 })
    process.kill(host.pid, 'SIGTERM')
    t.match(await host.exited, { code: 0 })
    t.same(host.survivors(), [])
  })
})

t.test('given the page about recurring tasks', async t => {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db)
  const page = readFileSync(new URL('../../../docs/recurring.md', import.meta.url), 'utf8')
  const blocks = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map(match => match[1] ?? '')

  t.test('when its calls are run, then they do what it says', async t => {
    const calls = blocks.find(block => block.includes('pgbus.recurring.upsert')) ?? ''
    const run = new Function('pgbus', `return (async () => {${calls}})()`) as (
      own: typeof pgbus,
    ) => Promise<void>
    await run(pgbus)
    t.match(await pgbus.jobs.list('default'), { total: 1, jobs: [{ job: 'report' }] })
    t.same(await pgbus.recurring.list(), [])
  })
})
