import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { startPgBouncer } from '../support/pgbouncer.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given PgBouncer in transaction mode', async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const through = await startPgBouncer(t, db.url)
  const pgbus = createTestPgbus(t, { url: through }, { connection: { gucMode: 'session' } })
  const done = async () =>
    (await db.query<{ n: number }>('SELECT n FROM ledger WHERE ended_at IS NOT NULL ORDER BY n')).map(
      ({ n }) => n,
    )
  let next = 0
  const enqueue = async (count: number) => {
    const args = Array.from({ length: count }, () => ({ n: next++ }))
    await Promise.all([
      // Alone, at once, and many together: each has a way of its own to the table.
      ...args.slice(0, count / 2).map(a => pgbus.enqueue('note', a)),
      pgbus.enqueueMany(args.slice(count / 2).map(a => ({ job: 'note', args: a }))),
    ])
  }
  const all = () => Array.from({ length: next }, (_, n) => n)
  const env = { PGBUS_CONNECTION_GUC_MODE: 'session', PGBUS_POLLING_INTERVAL: '200ms' }

  t.test('when LISTEN goes past it, then jobs run, fail, retry and wake, without an error', async t => {
    const host = spawnJobs(
      t,
      { url: through },
      {
        workers: 'default: 3; default: 3',
        env: { ...env, PGBUS_NOTIFY_DATABASE_URL: db.url, PGBUS_RETRY_BASE: '1s' },
      },
    )
    await host.booted(2)
    await host.waitForOutput(/notifications are delivered/)
    await enqueue(100)
    await pgbus.enqueue('nobody-knows', null, { jobId: 'unknown' })
    await waitFor(async () => (await done()).length === next)
    t.strictSame(await done(), all())
    await waitFor(async () => (await db.query('SELECT FROM pgbus_failed_events')).length === 1)

    const [worker] = host.ready()
    process.kill(worker!.pid, 'SIGKILL')
    await host.booted(3)
    await enqueue(20)
    await waitFor(async () => (await done()).length === next)
    t.strictSame(await done(), all())
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
    const errors = host.lines().filter(({ lvl }) => lvl === 'ERROR')
    t.ok(
      errors.every(({ msg }) => /no handler for job/.test(String(msg))),
      JSON.stringify(errors),
    )
    const warned = host.lines().filter(({ msg }) => /max_prepared_statements/.test(String(msg)))
    t.ok(warned.length > 0, 'it was met')
    t.equal(new Set(warned.map(({ pid }) => pid)).size, warned.length, 'said once per process')
  })

  t.test('when LISTEN goes through it, then the log says so, and jobs run by polling', async t => {
    const host = spawnJobs(t, { url: through }, { env })
    await host.booted(1)
    await host.waitForOutput(/LISTEN does not deliver .* Set notify\.databaseUrl/)
    t.notMatch(host.output(), /notifications are delivered/)
    await enqueue(20)
    await waitFor(async () => (await done()).length === next)
    t.strictSame(await done(), all())
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when it is asked how the cluster is, then it answers', async t => {
    t.match(await pgbus.health(), { status: 'OK', summary: { queues: 1 } })
  })

  t.test('when the doctor is asked, then it finds that LISTEN goes through it', async t => {
    const doctor = spawnNode(t, compiled('bin/pgbus.ts'), ['doctor'], {
      env: { PGBUS_DATABASE_URL: through, PGBUS_CONNECTION_GUC_MODE: 'session' },
    })
    await new Promise(resolve => doctor.child.stdout?.once('close', resolve))
    t.match(doctor.output(), /!! Dedicated connections +notify .* do not arrive/)
    t.strictSame(await doctor.exited, { code: 0, signal: null })
  })
})
