import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { gone, type JobHostOptions, spawnJobs } from './job-host.ts'

interface Entry {
  n: number
  pid: number
  attempt: number
  done: boolean
}

const setup = async (t: TestContext, options: JobHostOptions = {}) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const ledger = () =>
    db.query<Entry>('SELECT n, pid, attempt, ended_at IS NOT NULL AS done FROM ledger ORDER BY id')
  const doneCount = async () =>
    (
      await db.query<{ count: number }>(
        'SELECT count(DISTINCT n)::int AS count FROM ledger WHERE ended_at IS NOT NULL',
      )
    )[0]?.count ?? 0
  const start = (more: JobHostOptions = {}) => spawnJobs(t, db, { ...options, ...more })
  return { db, pgbus, ledger, doneCount, start }
}

t.test('given pgbus start on a migrated database', async t => {
  t.test('when jobs are enqueued and it is told to stop, then they ran and nothing is left', async t => {
    const { db, pgbus, doneCount, start, ledger } = await setup(t, {
      workers: 'default, mail: 3; reports: 2',
    })
    const host = start()
    const children = await host.booted(2)
    await host.waitForOutput(/"msg":"ready: 2 children"/)
    await pgbus.enqueueMany(
      Array.from({ length: 20 }, (_, n) => ({ job: 'note', args: { n }, queue: n % 2 ? 'mail' : 'reports' })),
    )
    await waitFor(async () => (await doneCount()) === 20)
    t.strictSame(new Set((await ledger()).map(({ pid }) => pid)), new Set(children.map(({ pid }) => pid)))
    const kinds = await db.query('SELECT kind, pid FROM pgbus_processes ORDER BY kind, pid')
    t.strictSame(kinds, [
      { kind: 'supervisor', pid: host.pid },
      ...children.map(({ pid }) => ({ kind: 'worker', pid })).sort((a, b) => a.pid - b.pid),
    ])

    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
    t.strictSame(host.survivors(), [])
    t.strictSame(await db.query('SELECT * FROM pgbus_processes'), [])
    t.match(host.output(), /boot: pgbus \d+\.\d+\.\d+ pid=/)
    t.match(host.output(), /boot: worker=default queues=default,mail concurrency=3 processes=1/)
  })

  t.test('when it runs two workers, then one LISTEN connection wakes both within moments', async t => {
    const { db, pgbus, ledger, start } = await setup(t, { workers: 'default: 1; default: 1' })
    const host = start({ env: { PGBUS_POLLING_INTERVAL: '60s' } })
    await host.booted(2)
    const listeners = async () =>
      (await db.census()).filter(({ application_name }) => application_name === 'pgbus-listen')
    t.equal((await listeners()).length, 1)

    await pgbus.enqueue('note', { n: 1 })
    await waitFor(async () => (await ledger()).length === 1, { timeout: 3_000, message: 'the first job' })

    await t.test('when its backend is terminated, then later jobs wake them again', async t => {
      for (let n = 2; n < 5; n += 1) {
        const [before] = await listeners()
        await db.query('SELECT pg_terminate_backend($1)', [before?.pid])
        await waitFor(async () => {
          const now = await listeners()
          return now.length === 1 && now[0]?.pid !== before?.pid
        })
        await pgbus.enqueue('note', { n })
        await waitFor(async () => (await ledger()).length === n, { timeout: 5_000, message: `job ${n}` })
      }
      t.equal((await listeners()).length, 1)
    })
    host.signal('SIGINT')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when notifications are off, then workers poll and nothing LISTENs', async t => {
    const { db, pgbus, doneCount, start } = await setup(t)
    const host = start({ env: { PGBUS_NOTIFY_ENABLED: 'false' } })
    await host.booted(1)
    await pgbus.enqueue('note', { n: 1 })
    await waitFor(async () => (await doneCount()) === 1)
    t.notOk((await db.census()).some(({ application_name }) => application_name === 'pgbus-listen'))
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when a parent waits for it, then it says when it is ready, and ends with that parent', async t => {
    const { start } = await setup(t)
    const host = start({ ipc: true })
    await waitFor(() => host.messages.length > 0, { timeout: 20_000 })
    t.strictSame(host.messages, [{ pgbus: 'host', t: 'ready', addresses: [] }])
    host.child.disconnect()
    t.strictSame(await host.exited, { code: 0, signal: null })
    t.strictSame(host.survivors(), [])
  })
})

t.test('given a worker that dies', async t => {
  t.test('when it is killed among 200 jobs, then each is done, and what it ran starts at once', async t => {
    const { pgbus, db, doneCount, start } = await setup(t, { workers: 'default: 5' })
    const host = start({ env: { PGBUS_VISIBILITY_TIMEOUT: '20s' } })
    const [child] = await host.booted(1)
    await pgbus.enqueueMany(Array.from({ length: 200 }, (_, n) => ({ job: 'note', args: { n, ms: 60 } })))
    await waitFor(async () => (await doneCount()) >= 50)
    process.kill(child!.pid, 'SIGKILL')
    await host.booted(2)
    // A claim whose answer the kill cut off is known to nobody: it alone comes back after its lease.
    await waitFor(async () => (await doneCount()) === 200, { timeout: 60_000, message: '200 jobs' })

    const again = await db.query<{ n: number; starts: number; pause: number }>(
      `SELECT n, count(*)::int AS starts,
              extract(epoch FROM max(started_at) - min(started_at))::float8 AS pause
         FROM ledger GROUP BY n HAVING count(*) > 1`,
    )
    t.ok(again.length >= 1 && again.length <= 5, `${again.length} jobs ran when it was killed`)
    t.ok(
      again.every(({ starts }) => starts === 2),
      'one extra start each',
    )
    // Far below the lease: the supervisor gave them back. Most of this is the start of a process.
    t.ok(
      again.every(({ pause }) => pause < 15),
      JSON.stringify(again),
    )
    t.strictSame(await db.query('SELECT * FROM pgbus_failed_events'), [])
    t.match(host.output(), /worker:0\.0 ended after .*: was killed by SIGKILL; next one in/)
    t.match(host.output(), /gave back [1-5] messages of a dead worker/)
    t.strictSame(await db.query('SELECT pid FROM pgbus_processes WHERE pid = $1', [child!.pid]), [])
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when nobody handled a rejection, then it is reported, and the worker is replaced', async t => {
    const { pgbus, doneCount, start } = await setup(t)
    const host = start()
    await host.booted(1)
    await pgbus.enqueueMany([
      { job: 'note', args: { n: 1, ms: 300 } },
      { job: 'stray', args: { n: 2 } },
    ])
    await host.booted(2)
    await waitFor(async () => (await doneCount()) === 2)
    t.match(host.output(), /uncaught_exception: nobody handles this/)
    t.match(host.output(), /worker:0\.0 ended after .*: nobody handles this; next one in 1 s/)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test(
    'when its modules cannot be imported, then it is tried again ever more slowly, saying why',
    async t => {
      const { start } = await setup(t, { jobs: 'throws' })
      const host = start()
      await host.waitForOutput(/the moon is in the wrong house; next one in 2 s/)
      t.match(host.output(), /cannot import .*throws\.js: the moon is in the wrong house; next one in 1 s/)
      t.notMatch(host.output(), /is ready/)
      host.signal('SIGTERM')
      t.strictSame(await host.exited, { code: 0, signal: null })
      t.strictSame(host.survivors(), [])
    },
  )
})

t.test('given a supervisor that is killed', async t => {
  t.test('when its children notice, then they finish what they run and end', async t => {
    const { pgbus, ledger, start } = await setup(t, { workers: 'default: 2; default: 2' })
    const host = start()
    const children = await host.booted(2)
    await pgbus.enqueueMany([1, 2, 3, 4].map(n => ({ job: 'note', args: { n, ms: 1_500 } })))
    await waitFor(async () => (await ledger()).length === 4)
    host.signal('SIGKILL')
    await gone(
      children.map(({ pid }) => pid),
      15_000,
    )
    t.ok(
      (await ledger()).every(({ done }) => done),
      'the running jobs were finished',
    )
    t.strictSame(host.survivors(), [])
    t.match(host.output(), /the supervisor is gone/)
  })
})

t.test('given a job that nobody defines', async t => {
  t.test('when its attempts are used up, then it is a dead letter that says why', async t => {
    const { pgbus, db, start } = await setup(t)
    const host = start({ env: { PGBUS_MAX_RETRIES: '2', PGBUS_RETRY_BASE: '1s' } })
    await host.booted(1)
    await pgbus.enqueue('nobody-knows', { n: 1 })
    const letter = await waitFor(
      async () => {
        const [row] = await db.query<{ dead: Record<string, unknown> }>(
          `SELECT headers->'pgbus_dead_letter' AS dead FROM pgmq.q_pgbus_default_dlq`,
        )
        return row
      },
      { timeout: 20_000 },
    )
    t.match(letter.dead, { error_class: 'UnknownJobError', error_message: /nobody-knows/, read_ct: 2 })
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })
})
