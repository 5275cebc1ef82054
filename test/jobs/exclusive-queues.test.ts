import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

t.test('given two workers of which one may read the queue', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench
  const ran: number[] = []
  defineJob<number>({ name: 'ordered' }, n => void ran.push(n))
  const entry = { concurrency: 1, singleActiveConsumer: true }
  const first = await bench.work(entry)
  await waitFor(() => first.stats().locked.length === 0)
  const second = await bench.work(entry)
  await waitFor(() => second.stats().locked.length === 1)

  t.test('when jobs come, then one worker runs them all, in order', async t => {
    await pgbus.enqueueMany([1, 2, 3, 4, 5].map(args => ({ job: 'ordered', args })))
    await drained(bench)
    t.same(ran, [1, 2, 3, 4, 5])
    t.equal(first.stats().processed, 5)
    t.equal(second.stats().processed, 0)
  })

  t.test('when its connection breaks, then its job is told, and the other worker takes over', async t => {
    const aborted = deferred<unknown>()
    defineJob({ name: 'holds' }, async (_args, ctx) => {
      if (ctx.job.attempt > 1) return
      ctx.signal.addEventListener('abort', () => aborted.resolve(ctx.signal.reason))
      await aborted.promise
    })
    await pgbus.enqueue('holds', null)
    await waitFor(() => first.stats().inFlight === 1)
    const killed = await db.query(
      `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'advisory' AND l.granted AND a.application_name = 'pgbus-lock' AND a.datname = current_database()`,
    )
    t.equal(killed.length, 1)
    t.match(await aborted.promise, { code: 'PGBUS_ERR_LEASE_LOST', message: /no longer reads alone/ })
    await pgbus.enqueue('ordered', 6)
    await waitFor(() => ran.includes(6), { timeout: 20_000 })
    const holders = [first, second].filter(worker => worker.stats().locked.length === 0)
    t.equal(holders.length, 1)
  })

  t.test('when the one that reads it stops, then the other goes on', async t => {
    const holder = first.stats().locked.length === 0 ? first : second
    await holder.stop()
    await pgbus.enqueue('ordered', 7)
    await waitFor(() => ran.includes(7), { timeout: 20_000 })
    t.equal((holder === first ? second : first).stats().locked.length, 0)
  })
})

t.test('given workers of different queues', async t => {
  const bench = await setup(t)
  const mine = await bench.work({ queues: ['a'], singleActiveConsumer: true })
  const other = await bench.work({ queues: ['b', 'a'], singleActiveConsumer: true })
  t.test('when one queue is taken, then the other worker still reads its own', async t => {
    const done = deferred()
    defineJob({ name: 'of-b' }, () => done.resolve())
    await waitFor(() => mine.stats().locked.length === 0)
    await bench.pgbus.enqueue('of-b', null, { queue: 'b' })
    await done.promise
    t.same(other.stats().locked, ['a'])
  })
})
