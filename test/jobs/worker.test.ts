import { setTimeout as wait } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { z } from 'zod'
import { deferred } from '../../lib/core/deferred.ts'
import { InvalidTransitionError, SchemaNotReadyError } from '../../lib/core/errors.ts'
import { defineJob, type JobContext } from '../../lib/jobs/define.ts'
import type { HeldToken } from '../../lib/jobs/held-tokens.ts'
import { createEmptyDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

t.test('given a worker on a queue', async t => {
  const bench = await setup(t)
  const { pgbus, archived, lines } = bench
  const seen: { args: unknown; context: JobContext }[] = []
  const job = defineJob({ name: 'worker-sees', priority: 4 }, (args, context) => {
    seen.push({ args, context })
  })
  const worker = await bench.work()

  t.test('when a job is enqueued, then its handler runs once and the message is archived', async t => {
    const args = { when: new Date(0), list: new Map([['a', 1n]]) }
    const result = await pgbus.enqueue(job.name, args, { headers: { trace: 'x' } })
    await drained(bench)
    t.equal(await archived(), 1)
    t.equal(seen.length, 1)
    t.same(seen[0]?.args, args)
    const { context } = seen[0]!
    t.match(context.job, {
      id: result.jobId,
      name: 'worker-sees',
      queue: 'default',
      msgId: result.msgId,
      attempt: 1,
      maxAttempts: 5,
      priority: 4,
      scheduledAt: null,
      headers: { trace: 'x' },
    })
    t.ok(Math.abs(Date.now() - context.job.enqueuedAt.getTime()) < 60_000)
    t.equal(context.pgbus, pgbus)
    t.equal(context.stopping, false)
    t.equal(context.signal.aborted, false)
    context.log.info('hello')
    t.match(lines.at(-1)?.fields, { job: 'worker-sees', job_id: result.jobId, attempt: 1 })
  })

  t.test('when a handler enqueues without naming an instance, then its own is used', async t => {
    createTestPgbus(t, bench.db)
    const parent = defineJob({ name: 'worker-parent' }, async () => {
      await wait(1)
      await job.enqueue('child')
    })
    seen.length = 0
    await parent.enqueue(null, { pgbus })
    await waitFor(() => seen.some(({ args }) => args === 'child'))
    await drained(bench)
  })

  t.test('when a schema changes the arguments, then the handler gets what it made of them', async t => {
    const got = deferred<unknown>()
    const checked = defineJob(
      { name: 'worker-schema', schema: z.object({ id: z.string().transform(Number) }) },
      args => got.resolve(args),
    )
    await checked.enqueue({ id: '7' }, { pgbus })
    t.same(await got.promise, { id: 7 })
  })

  t.test('when it is asked for its figures, then they are right', async t => {
    await drained(bench)
    await waitFor(() => worker.stats().inFlight === 0)
    t.match(worker.stats(), {
      state: 'running',
      inFlight: 0,
      failed: 0,
      leasesLost: 0,
      queues: ['default'],
      missing: [],
      delivering: false,
      stuck: 0,
      oldest: null,
    })
    t.ok(worker.stats().processed >= 3)
  })

  t.test('when jobs ran, then no line has their arguments', async t => {
    t.notMatch(JSON.stringify(lines.map(({ fields, message }) => [fields, message])), /\$type|child/)
  })

  t.test('when it is started again, then that is refused', async t => {
    t.throws(() => worker.start(), InvalidTransitionError)
  })
})

t.test('given queues in an order', async t => {
  const bench = await setup(t)
  const order: unknown[] = []
  defineJob({ name: 'worker-order' }, args => {
    order.push(args)
  })
  const add = (queue: string, count: number) =>
    bench.pgbus.enqueueMany(
      Array.from({ length: count }, (_, i) => ({ job: 'worker-order', args: `${queue}${i}`, queue })),
    )

  t.test(
    'when there is one slot, then an earlier queue is emptied before a later one is touched',
    async t => {
      await bench.pgbus.queues.ensure(['a', 'b', 'c'])
      await add('c', 2)
      await add('b', 2)
      await add('a', 2)
      await bench.work({ queues: ['a', 'b', 'c'], concurrency: 1 })
      await waitFor(() => order.length === 6)
      t.same(order, ['a0', 'a1', 'b0', 'b1', 'c0', 'c1'])
    },
  )

  t.test('when the slots are taken, then what was not handed out is neither hidden nor charged', async t => {
    const gate = deferred()
    defineJob({ name: 'worker-gate' }, () => gate.promise)
    const items = ['x', 'y', 'z'].flatMap(queue =>
      Array.from({ length: 5 }, () => ({ job: 'worker-gate', args: null, queue })),
    )
    await bench.pgbus.enqueueMany(items)
    const worker = await bench.work({ queues: ['x', 'y', 'z'], concurrency: 7 })
    await waitFor(() => worker.stats().inFlight === 7)
    const left = (await Promise.all(['x', 'y', 'z'].map(name => bench.rows(`pgbus_${name}`)))).flat()
    const untouched = left.filter(row => row.read_ct === 0 && !row.hidden)
    t.equal(untouched.length, 8)
    gate.resolve()
    for (const name of ['x', 'y', 'z']) await drained(bench, `pgbus_${name}`)
  })
})

t.test('given a worker with some slots', async t => {
  const bench = await setup(t)

  t.test('when there are more jobs, then never more run at once, and all run', async t => {
    let running = 0
    let most = 0
    defineJob({ name: 'worker-slots' }, async () => {
      running += 1
      most = Math.max(most, running)
      await wait(5)
      running -= 1
    })
    await bench.pgbus.enqueueMany(Array.from({ length: 60 }, () => ({ job: 'worker-slots', args: null })))
    await bench.work({ concurrency: 4 })
    await drained(bench)
    t.equal(most, 4)
    t.equal(await bench.archived(), 60)
  })
})

t.test('given priorities', async t => {
  const bench = await setup(t, { priority: { levels: 3, default: 1 } })

  t.test('when jobs of all levels wait, then the lower number runs first', async t => {
    const order: unknown[] = []
    defineJob({ name: 'worker-levels' }, args => {
      order.push(args)
    })
    await bench.pgbus.enqueueMany(
      [2, 1, 0].map(priority => ({ job: 'worker-levels', args: priority, priority })),
    )
    const worker = await bench.work({ concurrency: 1 })
    t.same(worker.tables, ['pgbus_default_p0', 'pgbus_default_p1', 'pgbus_default_p2'])
    await waitFor(() => order.length === 3)
    t.same(order, [0, 1, 2])
  })

  t.test('when the same id fails in two levels, then each has its record and its own delay', async t => {
    defineJob({ name: 'worker-level-fails', retry: () => '1h' }, args => {
      throw new Error(`failed ${String(args)}`)
    })
    await bench.pgbus.queues.purge('default')
    const sent = await bench.pgbus.enqueueMany(
      [0, 1].map(priority => ({ job: 'worker-level-fails', args: priority, priority })),
    )
    await waitFor(async () => (await bench.failures()).length === 2)
    t.equal(new Set(sent.map(r => r.msgId)).size, 1, 'the same id')
    t.same((await bench.failures()).map(f => f.queue_name).sort(), ['default_p0', 'default_p1'])
  })
})

t.test('given delays', async t => {
  const bench = await setup(t, { pollingInterval: '10s' })
  const started: number[] = []
  defineJob({ name: 'delayed' }, () => {
    started.push(Date.now())
  })

  t.test(
    'when a job comes due while notifications arrive, then it starts then, not at the next poll',
    async t => {
      const worker = await bench.work()
      worker.setDelivering(true)
      const due = Date.now() + 1_500
      await bench.pgbus.enqueue('delayed', null, { delay: '1.5s' })
      worker.wake()
      await waitFor(() => started.length === 1)
      const late = started[0]! - due
      t.ok(late >= -20 && late < 4_000, `${late} ms late`)
    },
  )

  t.test('when an attempt of its own is retried, then that is met as well', async t => {
    const attempts: number[] = []
    defineJob({ name: 'delayed-retry', retry: () => '300ms' }, (_args, { job }) => {
      attempts.push(Date.now())
      if (job.attempt === 1) throw new Error('again')
    })
    const worker = await bench.work({ queues: ['retries'] })
    worker.setDelivering(true)
    await bench.pgbus.enqueue('delayed-retry', null, { queue: 'retries' })
    worker.wake()
    await waitFor(() => attempts.length === 2)
    const gap = attempts[1]! - attempts[0]!
    t.ok(gap >= 290 && gap < 4_000, `${gap} ms`)
  })

  t.test('when a job follows another too closely to be notified, then it is found all the same', async t => {
    const worker = await bench.work({ queues: ['close'] })
    worker.setDelivering(true)
    await bench.pgbus.enqueue('delayed', null, { queue: 'close' })
    worker.wake()
    await drained(bench, 'pgbus_close')
    started.length = 0
    const sent = Date.now()
    await bench.pgbus.enqueue('delayed', null, { queue: 'close' })
    await waitFor(() => started.length === 1)
    t.ok(started[0]! - sent < 5_000, 'long before the ceiling')
  })
})

t.test('given a queue that nobody made', async t => {
  const bench = await setup(t)
  let runs = 0
  defineJob({ name: 'vanishing' }, () => {
    runs += 1
  })

  t.test('when it is dropped under its worker, then the others go on and it comes back', async t => {
    const worker = await bench.work({ queues: ['gone', 'stays'] })
    const send = (queue: string) => bench.pgbus.enqueue('vanishing', null, { queue })
    await send('gone')
    await waitFor(() => runs === 1)
    await drained(bench, 'pgbus_gone')
    await bench.db.query("SELECT pgmq.drop_queue('pgbus_gone')")
    await send('stays')
    await waitFor(() => runs === 2)
    t.same(worker.stats().missing, ['pgbus_gone'])
    t.equal(bench.lines.filter(line => /a queue is gone/.test(line.message)).length, 1, 'said once')
    await send('gone')
    await waitFor(() => runs === 3)
    await waitFor(() => worker.stats().missing.length === 0)
  })

  t.test('when it is dropped while its job runs, then the worker lives', async () => {
    const gate = deferred()
    const running = deferred()
    defineJob({ name: 'dropped-under' }, async () => {
      running.resolve()
      await gate.promise
    })
    await bench.pgbus.enqueue('dropped-under', null, { queue: 'gone' })
    await running.promise
    await bench.db.query("SELECT pgmq.drop_queue('pgbus_gone')")
    gate.resolve()
    await waitFor(() => bench.lines.some(line => /lost claim/.test(line.message)))
    await bench.pgbus.enqueue('vanishing', null, { queue: 'gone' })
    await waitFor(() => runs === 4)
  })

  t.test('when the dead-letter queue is dropped, then it is made again', async t => {
    defineJob({ name: 'buried-twice', maxAttempts: 1 }, () => {
      throw new Error('dead')
    })
    for (let i = 0; i < 2; i += 1) {
      await bench.pgbus.enqueue('buried-twice', null, { queue: 'stays' })
      await drained(bench, 'pgbus_stays')
      t.equal((await bench.rows('pgbus_stays_dlq')).length, 1)
      await bench.db.query("SELECT pgmq.drop_queue('pgbus_stays_dlq')")
    }
  })
})

t.test('given somebody who keeps a list of what is held', async t => {
  const bench = await setup(t)

  t.test('when jobs are claimed and end, then both are reported once each', async t => {
    const taken: HeldToken[] = []
    const done: HeldToken[] = []
    defineJob({ name: 'held', retry: () => 0, maxAttempts: 2 }, (args, { job }) => {
      if (args === 'fails' && job.attempt === 1) throw new Error('once')
    })
    await bench.pgbus.enqueueMany(['fine', 'fails'].map(args => ({ job: 'held', args })))
    const worker = await bench.work({}, (more, less) => {
      taken.push(...more)
      done.push(...less)
    })
    await drained(bench)
    await waitFor(() => worker.stats().inFlight === 0)
    const sorted = (tokens: HeldToken[]) => tokens.map(token => token.join()).sort()
    t.same(sorted(taken), ['pgbus_default,1,1', 'pgbus_default,2,1', 'pgbus_default,2,2'])
    t.same(sorted(done), sorted(taken))
  })
})

t.test('given a running job whose worker stops', async t => {
  const bench = await setup(t)
  defineJob({ name: 'waits-for-the-end' }, (_args, { signal }) => wait(60_000, undefined, { signal }))
  await bench.pgbus.enqueue('waits-for-the-end', null)
  const told: string[] = []
  const worker = await bench.work({}, (taken, done) => {
    if (taken.length > 0) told.push('taken')
    if (done.length > 0) told.push('done')
  })
  await waitFor(() => told.includes('taken') && worker.stats().inFlight === 1)

  t.test(
    'when its message is given back, then that is told before another claim can carry the same token',
    async t => {
      const locker = new pg.Client({ connectionString: bench.db.url, application_name: 'test' })
      await locker.connect()
      await locker.query('BEGIN')
      await locker.query('SELECT 1 FROM pgmq.q_pgbus_default FOR UPDATE')
      const stopped = worker.stop({ timeout: 0 })
      try {
        await waitFor(() => told.includes('done'))
        const [row] = (await locker.query('SELECT read_ct FROM pgmq.q_pgbus_default')).rows
        t.equal(row?.read_ct, 1, 'the row still is this delivery')
      } finally {
        await locker.query('COMMIT')
        await locker.end()
        await stopped
      }
      t.match(await bench.rows(), [{ read_ct: 0, hidden: false }], 'it is given back without a charge')
    },
  )
})

t.test('given a database without our tables', async t => {
  t.test('when a worker starts, then the error names the command', async t => {
    const db = await createEmptyDatabase(t)
    const pgbus = createTestPgbus(t, db)
    const worker = pgbus.createWorker({ name: null, queues: ['default'], concurrency: 1, processes: 1 })
    await t.rejects(worker.start(), SchemaNotReadyError)
    await worker.stop()
    t.equal(worker.stats().state, 'stopped')
  })
})

t.test('given a worker that is alive', async t => {
  const bench = await setup(t)
  const processes = () => bench.db.query('SELECT kind, pid, metadata FROM pgbus_processes')

  t.test('when it runs, then it has a row, and none when it stopped', async t => {
    const worker = await bench.work({ name: 'critical', concurrency: 3 })
    await worker.onFirstPass
    await waitFor(async () => (await processes()).length === 1)
    t.match(await processes(), [
      { kind: 'worker', pid: process.pid, metadata: { name: 'critical', queues: ['default'], threads: 3 } },
    ])
    await worker.stop()
    t.same(await processes(), [])
  })
})
