import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

/** No poll comes to the rescue: what is told is all that a worker hears of. */
const onlyNotifications = { pollingInterval: '10m' } as const

const delivering = (worker: ReturnType<Pgbus['worker']>) => waitFor(() => worker.stats().delivering)

t.test('given a worker in this process', async t => {
  const bench = await setup(t, onlyNotifications)
  const { pgbus, db } = bench
  const ran: number[] = []
  defineJob<number>({ name: 'runs' }, n => void ran.push(n))
  const worker = pgbus.worker({ queues: ['default', 'mail_*'] })
  await worker.start()
  await delivering(worker)
  await waitFor(() => worker.stats().state === 'running')

  t.test('when jobs come, then it runs them at once, and finishes them', async t => {
    for (let n = 1; n <= 3; n += 1) {
      await pgbus.enqueue('runs', n)
      await waitFor(() => ran.includes(n))
    }
    await drained(bench)
    t.match(worker.stats(), { processed: 3, succeeded: 3, failed: 0, inFlight: 0 })
  })

  t.test('when a queue is made that a pattern names, then it is read at once', async t => {
    await pgbus.enqueue('runs', 4, { queue: 'mail_in' })
    await waitFor(() => ran.includes(4))
    t.ok(worker.stats().queues.includes('mail_in'))
  })

  t.test('when a job is cancelled, then its signal says so', async t => {
    const aborted = deferred<unknown>()
    defineJob({ name: 'long' }, async (_args, ctx) => {
      ctx.signal.addEventListener('abort', () => aborted.resolve(ctx.signal.reason))
      await aborted.promise
    })
    const { msgId } = await pgbus.enqueue('long', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await pgbus.cancel('default', msgId!)
    t.match(await aborted.promise, { code: 'PGBUS_ERR_JOB_CANCELLED' })
  })

  t.test('when it is paused, then it claims nothing until it is resumed', async t => {
    worker.pause()
    await pgbus.enqueue('runs', 5)
    t.match(worker.stats(), { state: 'paused' })
    t.throws(() => worker.pause(), { code: 'PGBUS_ERR_INVALID_TRANSITION' })
    worker.resume()
    await waitFor(() => ran.includes(5))
  })

  t.test('when two run, then they share one LISTEN connection', async t => {
    const second = pgbus.worker({ queues: ['other'] })
    await second.start()
    await delivering(second)
    const [row] = await db.query<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'pgbus-listen' AND datname = current_database()`,
    )
    t.equal(row?.n, 1)
    await second.stop()
    t.equal(second.stats().state, 'stopped')
    t.equal(worker.stats().state, 'running')
  })

  t.test('when the instance is closed, then running jobs finish first, and may still enqueue', async t => {
    const gate = deferred()
    const told = deferred<unknown>()
    defineJob({ name: 'last' }, async (_args, ctx) => {
      await gate.promise
      told.resolve(await ctx.pgbus.enqueue('runs', 6, { delay: '1h' }).catch((error: unknown) => error))
    })
    await pgbus.enqueue('last', null)
    await waitFor(() => worker.stats().inFlight === 1)
    const closed = pgbus.close()
    t.throws(() => pgbus.worker({ queues: ['default'] }), { code: 'PGBUS_ERR_CLOSED' })
    gate.resolve()
    await closed
    t.match(await told.promise, { status: 'enqueued' })
    t.equal(worker.stats().state, 'stopped')
    await db.vacated()
    await t.rejects(worker.start(), { code: 'PGBUS_ERR_INVALID_TRANSITION' })
  })
})

t.test('given an entry that is wrong', async t => {
  const { pgbus } = await setup(t)
  t.throws(() => pgbus.worker({ queues: [] }), { code: 'PGBUS_ERR_CONFIG' })
  t.throws(() => pgbus.worker({ queues: ['a'], processes: 2 } as never), /no "processes"/)
  await t.rejects(pgbus.runUntilEmpty({ queues: ['a'], limit: 0 }), /limit must be an integer from 1, got 0/)
  await t.rejects(pgbus.runUntilEmpty({ queues: ['a'], signal: AbortSignal.abort() }), { name: 'AbortError' })
})

t.test('given jobs to run until there are none', async t => {
  const bench = await setup(t, { maxRetries: 1, circuitBreaker: { enabled: false } })
  const { pgbus } = bench
  const ran: number[] = []
  defineJob<number>({ name: 'chains' }, async n => {
    ran.push(n)
    if (n > 0) await pgbus.enqueue('chains', n - 1)
  })
  defineJob({ name: 'dies' }, () => {
    throw new Error('dead')
  })

  t.test('when some make others, fail or are not due, then it resolves with what it did', async t => {
    await pgbus.enqueue('chains', 3)
    await pgbus.enqueue('dies', null)
    await pgbus.enqueue('chains', 9, { delay: '1h' })
    t.same(await pgbus.runUntilEmpty({ queues: ['default'] }), { succeeded: 4, failed: 1, dead: 1 })
    t.same(ran, [3, 2, 1, 0])
    t.equal((await bench.rows()).length, 1)
  })

  t.test('when there is a limit, then it runs no more', async t => {
    await pgbus.enqueueMany([0, 0, 0].map(args => ({ job: 'chains', args })))
    t.same(await pgbus.runUntilEmpty({ queues: ['default'], limit: 2 }), { succeeded: 2, failed: 0, dead: 0 })
    t.equal((await pgbus.jobs.list('default', { state: 'ready' })).total, 1)
  })

  t.test('when it is aborted, then what runs has ended before it rejects', async t => {
    const controller = new AbortController()
    let ended = false
    defineJob({ name: 'aborts' }, async () => {
      controller.abort(new Error('enough'))
      await waitFor(() => true)
      ended = true
    })
    await pgbus.enqueue('aborts', null)
    await t.rejects(pgbus.runUntilEmpty({ queues: ['default'], signal: controller.signal }), /enough/)
    t.ok(ended)
  })
})
