import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { type Bench, drained, setup } from './support.ts'

interface State {
  paused: boolean
  paused_reason: string | null
  trips: number
  /** Of the pause, s; null: no end. */
  seconds: number | null
}

const stateOf = async ({ db }: Bench): Promise<State | undefined> => {
  const [row] = await db.query<State>(
    `SELECT paused, paused_reason, circuit_breaker_trip_count AS trips,
       round(extract(epoch FROM circuit_breaker_resume_at - paused_at))::int AS seconds FROM pgbus_queue_states`,
  )
  return row
}

/** Lets the time of a pause be over. */
const endOfPause = ({ db }: Bench) =>
  db.query(
    "UPDATE pgbus_queue_states SET circuit_breaker_resume_at = (now() - interval '1 s') AT TIME ZONE 'UTC'",
  )

t.test('given a queue whose jobs fail', async t => {
  const bench = await setup(t, { circuitBreaker: { threshold: 3, baseBackoff: '40s', maxBackoff: '60s' } })
  const { pgbus } = bench
  let broken = true
  let runs = 0
  defineJob({ name: 'flaky', retry: () => 0 }, () => {
    runs += 1
    if (broken) throw new Error('provider is down')
  })
  const worker = await bench.work({ concurrency: 1 })
  const paused = () => waitFor(async () => (await stateOf(bench))?.paused === true)

  t.test(
    'when as many different ones as the threshold failed in a row, then it pauses by itself',
    async t => {
      await pgbus.enqueueMany(Array.from({ length: 6 }, () => ({ job: 'flaky', args: null })))
      await paused()
      t.match(await stateOf(bench), { trips: 1, seconds: 40, paused_reason: /3 consecutive failures/ })
      const before = runs
      worker.wake()
      await waitFor(() => worker.stats().paused.includes('default'))
      await waitFor(() => worker.stats().inFlight === 0)
      t.equal(runs, before)
      t.same(await pgbus.queues.paused(), ['default'])
    },
  )

  t.test(
    'when the time is over, then one is tried; it fails, and the pause is twice as long, at most the longest',
    async t => {
      const before = runs
      await endOfPause(bench)
      worker.wake()
      await waitFor(async () => (await stateOf(bench))?.trips === 2)
      t.equal(runs, before + 1)
      t.match(await stateOf(bench), {
        paused: true,
        seconds: 60,
        paused_reason: /tried after the pause failed/,
      })
    },
  )

  t.test(
    'when the one that is tried succeeds, then the queue goes on, and all that is forgotten',
    async t => {
      broken = false
      await endOfPause(bench)
      worker.wake()
      await drained(bench)
      t.match(await stateOf(bench), { paused: false, trips: 0, seconds: null, paused_reason: null })
    },
  )
})

t.test('given one job that always fails', async t => {
  const bench = await setup(t, { circuitBreaker: { threshold: 3 }, maxRetries: 8 })
  defineJob({ name: 'poison', retry: () => 0 }, () => {
    throw new Error('again')
  })
  t.test('when it fails more often than the threshold, then its queue does not pause', async t => {
    await bench.pgbus.enqueue('poison', null)
    await bench.work({ concurrency: 1 })
    await drained(bench)
    t.equal((await bench.pgbus.deadLetters.list()).total, 1)
    t.equal(await stateOf(bench), undefined)
  })
})

t.test('given a queue that a person paused', async t => {
  const bench = await setup(t, { circuitBreaker: { threshold: 1, baseBackoff: '40s' } })
  const { pgbus } = bench
  const gate = deferred()
  defineJob({ name: 'late', retry: () => 0 }, async (_args, ctx) => {
    if (ctx.job.attempt > 1) return
    await gate.promise
    throw new Error('failed late')
  })
  defineJob({ name: 'fine' }, () => undefined)
  const worker = await bench.work({ concurrency: 2 })

  t.test('when jobs that still run fail or succeed, then the pause stays as it is', async t => {
    await pgbus.enqueue('late', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await pgbus.queues.pause('default', 'by hand')
    gate.resolve()
    await waitFor(() => worker.stats().failed === 1)
    t.match(await stateOf(bench), { paused: true, paused_reason: 'by hand', seconds: null })
    await waitFor(() => worker.stats().paused.includes('default'))
    await pgbus.enqueue('fine', null)
    t.equal((await bench.rows()).length, 2)
  })

  t.test('when it is resumed, then its jobs run', async () => {
    await pgbus.queues.resume('default')
    await drained(bench)
    await waitFor(() => worker.stats().paused.length === 0)
  })
})

t.test('given a job that began before the pause', async t => {
  const bench = await setup(t, { circuitBreaker: { threshold: 2, baseBackoff: '40s' } })
  const gate = deferred()
  defineJob({ name: 'straggler' }, () => gate.promise)
  defineJob({ name: 'breaks', retry: () => 0 }, () => {
    throw new Error('broken')
  })
  const worker = await bench.work({ concurrency: 3 })
  t.test('when it succeeds after it, then the queue stays paused', async t => {
    await bench.pgbus.enqueue('straggler', null)
    await waitFor(() => worker.stats().inFlight === 1)
    await bench.pgbus.enqueueMany([1, 2].map(args => ({ job: 'breaks', args })))
    await waitFor(async () => (await stateOf(bench))?.paused === true)
    gate.resolve()
    await waitFor(() => worker.stats().succeeded === 1)
    t.match(await stateOf(bench), { paused: true, trips: 1 })
  })
})

t.test('given a breaker that is switched off', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false, threshold: 1 }, maxRetries: 1 })
  defineJob({ name: 'fails' }, () => {
    throw new Error('no')
  })
  await bench.pgbus.enqueueMany([1, 2, 3].map(args => ({ job: 'fails', args })))
  await bench.work()
  await drained(bench)
  t.equal(await stateOf(bench), undefined)
})
