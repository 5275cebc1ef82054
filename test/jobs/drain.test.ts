import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { InvalidTransitionError, ShutdownError } from '../../lib/core/errors.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { setup } from './support.ts'

const entry = { name: null, queues: ['default'], concurrency: 5, processes: 1 }

t.test('given a worker with running and waiting jobs', async t => {
  const bench = await setup(t)
  const { pgbus } = bench

  t.test('when it is stopped, then it finishes what runs and touches nothing else', async t => {
    const gate = deferred()
    const contexts: { stopping: boolean; aborted: boolean }[] = []
    defineJob({ name: 'drain-finish' }, async (_args, context) => {
      await gate.promise
      contexts.push({ stopping: context.stopping, aborted: context.signal.aborted })
    })
    const worker = await bench.work({ concurrency: 2 })
    await pgbus.enqueueMany(Array.from({ length: 5 }, () => ({ job: 'drain-finish', args: null })))
    await waitFor(() => worker.stats().inFlight === 2)
    const stopped = worker.stop()
    t.equal(worker.stop(), stopped, 'one end for all who ask')
    t.equal(worker.stats().state, 'draining')
    gate.resolve()
    await stopped
    t.equal(worker.stats().state, 'stopped')
    t.same(contexts, [
      { stopping: true, aborted: false },
      { stopping: true, aborted: false },
    ])
    t.equal(await bench.archived(), 2, 'written when stop resolves')
    t.match(
      await bench.rows(),
      Array.from({ length: 3 }, () => ({ read_ct: 0, hidden: false })),
    )
    await pgbus.queues.purge('default')
  })

  t.test('when the time to finish is over, then jobs that stop are given back without charge', async t => {
    const reasons: unknown[] = []
    defineJob({ name: 'drain-reason' }, async (_args, { signal }) => {
      await once(signal, 'abort')
      reasons.push(signal.reason)
      throw signal.reason
    })
    defineJob({ name: 'drain-abort-error' }, async (_args, { signal }) => {
      await wait(60_000, undefined, { signal })
    })
    defineJob({ name: 'drain-wrapped' }, async (_args, { signal }) => {
      await once(signal, 'abort')
      throw new Error('could not go on', { cause: signal.reason })
    })
    const worker = await bench.work()
    await pgbus.enqueueMany(
      ['drain-reason', 'drain-abort-error', 'drain-wrapped'].map(job => ({ job, args: null })),
    )
    await waitFor(() => worker.stats().inFlight === 3)
    await worker.stop({ timeout: 50 })
    t.ok(reasons[0] instanceof ShutdownError)
    t.match(
      await bench.rows(),
      Array.from({ length: 3 }, () => ({ read_ct: 0, hidden: false })),
    )
    t.same(await bench.failures(), [])
    await pgbus.queues.purge('default')
  })

  t.test('when jobs end otherwise after the abort, then that is what is recorded', async t => {
    defineJob({ name: 'drain-returns' }, async (_args, { signal }) => {
      await once(signal, 'abort')
    })
    defineJob({ name: 'drain-fails', retry: () => '1h' }, async (_args, { signal }) => {
      await once(signal, 'abort')
      throw new Error('something else')
    })
    const before = await bench.archived()
    const worker = await bench.work()
    await pgbus.enqueueMany(['drain-returns', 'drain-fails'].map(job => ({ job, args: null })))
    await waitFor(() => worker.stats().inFlight === 2)
    await worker.stop({ timeout: 0 })
    t.equal(await bench.archived(), before + 1)
    t.match(await bench.failures(), [{ error_message: 'something else' }])
    t.match(await bench.rows(), [{ read_ct: 1, hidden: true }])
    await pgbus.queues.purge('default')
  })

  t.test(
    'when a job ignores its abort, then it is given to others, charged, and stop does not wait',
    async t => {
      const gate = deferred()
      defineJob({ name: 'drain-ignores' }, () => gate.promise)
      const before = await bench.archived()
      const worker = await bench.work()
      await pgbus.enqueue('drain-ignores', null)
      await waitFor(() => worker.stats().inFlight === 1)
      const draining = worker.stop()
      const started = performance.now()
      await worker.stop({ immediate: true })
      await draining
      const took = performance.now() - started
      t.ok(took >= 950 && took < 8_000, `${took} ms`)
      t.match(await bench.rows(), [{ read_ct: 1, hidden: false }])
      gate.resolve()
      await wait(20)
      t.equal(await bench.archived(), before, 'what it ends with later changes nothing')
      t.match(await bench.rows(), [{ read_ct: 1, hidden: false }])
      await pgbus.queues.purge('default')
    },
  )
})

t.test('given a worker in any state', async t => {
  const bench = await setup(t)

  t.test('when it never started, then stopping it is done, and it cannot start', async t => {
    const worker = bench.pgbus.createWorker(entry)
    await worker.stop()
    t.equal(worker.stats().state, 'stopped')
    t.throws(() => worker.start(), InvalidTransitionError)
  })

  t.test('when it is stopped while it starts, then it ends without having claimed', async t => {
    const worker = bench.pgbus.createWorker(entry)
    const starting = worker.start()
    await worker.stop()
    await starting
    t.equal(worker.stats().state, 'stopped')
    t.same(await bench.db.query('SELECT FROM pgbus_processes'), [])
  })
})

t.test('given a queue of many jobs', async t => {
  const bench = await setup(t)
  const jobs = 600

  t.test(
    'when workers stop at random moments, also while they claim, then no job is lost, hidden or charged',
    async t => {
      const starts = new Map<unknown, number>()
      defineJob({ name: 'drain-random' }, async args => {
        starts.set(args, (starts.get(args) ?? 0) + 1)
        await wait(Math.random() * 8)
      })
      await bench.pgbus.enqueueMany(
        Array.from({ length: jobs }, (_, args) => ({ job: 'drain-random', args })),
      )
      let released = 0
      for (let round = 0; round < 30; round += 1) {
        const worker = bench.pgbus.createWorker(
          { ...entry, concurrency: 1 + (round % 7) },
          {
            onHeld: async ({ claimed = [], running = [], done = [] }) => {
              released += claimed.length + running.length - done.length
            },
          },
        )
        await worker.start()
        await wait(Math.random() * 25)
        await worker.stop()
        const rows = await bench.rows()
        t.equal((await bench.archived()) + rows.length, jobs)
        t.same(
          rows.filter(row => row.hidden || row.read_ct > 0),
          [],
          `round ${round}`,
        )
      }
      t.equal(released, 0, 'all that was taken was reported done')
      t.equal(await bench.archived(), starts.size)
      t.ok([...starts.values()].every(count => count === 1))
    },
  )
})
