import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { LeaseLostError } from '../../lib/core/errors.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

t.test('given a visibility timeout of two seconds', async t => {
  const bench = await setup(t, { visibilityTimeout: '2s' })
  const { pgbus, db, lines } = bench
  const worker = await bench.work()

  t.test('when a job runs longer, with another worker waiting for it, then it runs once', async t => {
    const other = await bench.work()
    let runs = 0
    defineJob({ name: 'long' }, async () => {
      runs += 1
      await wait(4_500)
    })
    await pgbus.enqueue('long', null)
    await drained(bench)
    t.equal(runs, 1)
    t.equal(await bench.archived(), 1)
    t.equal(worker.stats().leasesLost + other.stats().leasesLost, 0)
    await other.stop()
  })

  t.test('when a job asks for no renewal, then it runs twice', async t => {
    const gate = deferred()
    const attempts: number[] = []
    defineJob({ name: 'unrenewed', renew: false }, async (_args, { job }) => {
      attempts.push(job.attempt)
      await gate.promise
    })
    await pgbus.enqueue('unrenewed', null)
    await waitFor(() => attempts.length === 2)
    gate.resolve()
    await drained(bench)
    t.same(attempts, [1, 2])
    // The first was told that its message was delivered again.
    await waitFor(() => worker.stats().inFlight === 0)
  })

  t.test('when the message is taken away, then the signal aborts and nothing is recorded', async t => {
    const lost = worker.stats().leasesLost
    const reason = deferred<unknown>()
    defineJob({ name: 'taken' }, async (_args, { signal }) => {
      await once(signal, 'abort')
      reason.resolve(signal.reason)
      throw signal.reason
    })
    await pgbus.enqueue('taken', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await db.query("UPDATE pgmq.q_pgbus_default SET read_ct = read_ct + 1, vt = now() + interval '1 hour'")
    t.ok((await reason.promise) instanceof LeaseLostError)
    await waitFor(() => worker.stats().inFlight === 0)
    t.equal(worker.stats().leasesLost, lost + 1)
    t.same(await bench.failures(), [])
    t.match(await bench.rows(), [{ read_ct: 2, hidden: true }])
    await pgbus.queues.purge('default')
  })

  t.test('when the handler does not care and ends well, then the other delivery decides', async t => {
    const gate = deferred()
    defineJob({ name: 'careless' }, () => gate.promise)
    await pgbus.enqueue('careless', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await db.query("UPDATE pgmq.q_pgbus_default SET read_ct = read_ct + 1, vt = now() + interval '1 hour'")
    gate.resolve()
    await waitFor(() => worker.stats().inFlight === 0)
    t.equal((await bench.rows()).length, 1)
    t.ok(lines.some(line => line.level === 'warn' && /lost claim/.test(line.message)))
    await pgbus.queues.purge('default')
  })

  t.test('when an operator archives the message, then a failing handler leaves no record', async t => {
    const gate = deferred()
    defineJob({ name: 'archived-under' }, async () => {
      await gate.promise
      throw new Error('too late')
    })
    const { msgId } = await pgbus.enqueue('archived-under', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await db.query('SELECT pgmq.archive($1, $2::bigint)', ['pgbus_default', msgId])
    gate.resolve()
    await waitFor(() => worker.stats().inFlight === 0)
    t.same(await bench.failures(), [])
    t.same(await bench.rows(), [])
  })

  t.test('when somebody holds the row, then it is not lost, and the others are renewed', async t => {
    const client = new pg.Client({ connectionString: db.url })
    await client.connect()
    const gate = deferred()
    let runs = 0
    defineJob({ name: 'locked' }, async () => {
      runs += 1
      await gate.promise
    })
    const lost = worker.stats().leasesLost
    await pgbus.enqueueMany([1, 2].map(args => ({ job: 'locked', args })))
    await waitFor(() => runs === 2)
    await client.query('BEGIN')
    await client.query('SELECT 1 FROM pgmq.q_pgbus_default ORDER BY msg_id LIMIT 1 FOR UPDATE')
    const vt = async () =>
      (await db.query<{ vt: Date }>('SELECT vt FROM pgmq.q_pgbus_default ORDER BY msg_id')).map(row => row.vt)
    const [held, free] = await vt()
    await waitFor(async () => (await vt())[1]! > free!)
    t.same((await vt())[0], held)
    await client.query('COMMIT')
    await client.end()
    await waitFor(async () => (await vt())[0]! > held!)
    gate.resolve()
    await drained(bench)
    t.equal(worker.stats().leasesLost, lost)
    t.equal(runs, 2)
  })

  t.test('when a handler extends its hold, then the message stays hidden that long', async t => {
    const gate = deferred()
    const extended = deferred<unknown>()
    defineJob({ name: 'extends' }, async (_args, context) => {
      await t.rejects(context.extend('soon'), TypeError)
      await context.extend('1h')
      extended.resolve(undefined)
      await gate.promise
    })
    await pgbus.enqueue('extends', null)
    await extended.promise
    const [row] = await db.query<{ far: boolean }>(
      "SELECT vt > now() + interval '59 minutes' AS far FROM pgmq.q_pgbus_default",
    )
    t.equal(row?.far, true)
    gate.resolve()
    await drained(bench)
  })

  t.test('when a handler extends what it no longer holds, then it is told', async t => {
    const gate = deferred()
    const result = deferred<unknown>()
    defineJob({ name: 'extends-late' }, async (_args, context) => {
      await gate.promise
      await context.extend('1h').then(result.resolve, result.resolve)
    })
    await pgbus.enqueue('extends-late', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await db.query('DELETE FROM pgmq.q_pgbus_default')
    gate.resolve()
    t.ok((await result.promise) instanceof LeaseLostError)
  })
})

t.test('given a way to the database that is cut for long', async t => {
  const { startPgProxy } = await import('../support/pg-proxy.ts')
  const { createDatabase } = await import('../support/database.ts')
  const { createTestPgbus } = await import('../support/instance.ts')
  const db = await createDatabase(t)
  const proxy = await startPgProxy(t, db.url)
  const pgbus = createTestPgbus(
    t,
    { url: proxy.url },
    { visibilityTimeout: '1s', pool: { timeout: '500ms' } },
  )
  const worker = pgbus.createWorker({ name: null, queues: ['default'], concurrency: 5, processes: 1 })

  t.test('when it lasts two visibility timeouts, then the job is told that it may run elsewhere', async t => {
    const aborted = deferred<unknown>()
    defineJob({ name: 'cut-off' }, async (_args, { signal }) => {
      await once(signal, 'abort')
      aborted.resolve(signal.reason)
    })
    await worker.start()
    await pgbus.enqueue('cut-off', null)
    await waitFor(() => worker.stats().inFlight === 1)
    const started = performance.now()
    proxy.blackhole(true)
    const reason = await aborted.promise
    t.ok(reason instanceof LeaseLostError)
    t.match((reason as Error).message, /could not be renewed/)
    t.ok(performance.now() - started > 1_000, 'not before its time')
    proxy.blackhole(false)
    proxy.cut()
    await waitFor(async () => (await db.query('SELECT FROM pgmq.q_pgbus_default')).length === 0)
    await worker.stop()
  })
})
