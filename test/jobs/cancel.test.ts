import { once } from 'node:events'
import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob, type JobContext } from '../../lib/jobs/define.ts'
import { type Cancelled, readCancelled } from '../../lib/pgmq/statements.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

const archivedHeaders = 'SELECT headers FROM pgmq.a_pgbus_default ORDER BY msg_id'

t.test('given jobs that wait', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench
  const runs: number[] = []
  defineJob<number>({ name: 'waits' }, n => void runs.push(n))

  t.test('when one is cancelled, then it is archived with the reason, and only the others run', async t => {
    const [first, second] = await pgbus.enqueueMany(
      [1, 2].map(args => ({ job: 'waits', args, headers: { a: 1 } })),
    )
    t.same(await pgbus.cancel('default', first!.msgId!, { reason: 'not wanted' }), {
      status: 'cancelled',
      wasRunning: false,
    })
    t.match(await db.query(archivedHeaders), [
      { headers: { a: 1, pgbus_cancelled: { reason: 'not wanted', at: String } } },
    ])
    t.match(await pgbus.jobs.get('default', first!.msgId!), {
      state: 'cancelled',
      job: 'waits',
      message: { arguments: [1] },
    })
    const worker = await bench.work()
    await drained(bench)
    await worker.stop()
    t.same(runs, [2])
    t.match(await pgbus.jobs.get('default', second!.msgId!), { state: 'completed', attempts: 1 })
    t.same(await pgbus.cancel('default', second!.msgId!), { status: 'notFound', wasRunning: false })
  })

  t.test('when the transaction of the caller rolls back, then the job is still there', async t => {
    const { msgId } = await pgbus.enqueue('waits', 3, { delay: '1h' })
    const tx = new pg.Client(db.url)
    await tx.connect()
    t.teardown(() => tx.end())
    await tx.query('BEGIN')
    t.match(await pgbus.cancel('default', msgId!, { tx }), { status: 'cancelled' })
    await tx.query('ROLLBACK')
    t.match(await pgbus.jobs.get('default', msgId!), { state: 'scheduled', attempts: 0 })
    t.match(await pgbus.cancel('default', msgId!), { status: 'cancelled' })
  })

  t.test('when what is asked for makes no sense, then that is said', async t => {
    await t.rejects(pgbus.cancel('default', 0), /the id of a job must be an integer from 1/)
    await t.rejects(pgbus.cancel('default', 1.5), TypeError)
    await t.rejects(pgbus.cancel('nowhere', 1), { code: 'PGBUS_ERR_QUEUE_NOT_FOUND' })
    await t.rejects(pgbus.cancel('default', 1, { reason: 'x'.repeat(501) }), /at most 500 characters/)
    await t.rejects(pgbus.jobs.get('default', 12_345), /has no job 12345/)
    await t.rejects(pgbus.jobs.list('default', { state: 'done' as never }), /state must be one of/)
    await t.rejects(pgbus.jobs.list('default', { perPage: 0 }), TypeError)
  })
})

t.test('given jobs in every state', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false } })
  const { pgbus } = bench
  const gate = deferred()
  defineJob({ name: 'holds' }, () => gate.promise)
  defineJob({ name: 'fails', retry: () => 3_600_000 }, () => {
    throw new RangeError('too much')
  })
  const worker = await bench.work({ concurrency: 2 })
  t.teardown(() => gate.resolve())
  await pgbus.enqueue('fails', null)
  await waitFor(async () => (await bench.failures()).length === 1)
  await pgbus.enqueue('holds', null)
  await pgbus.enqueue('holds', null)
  await waitFor(() => worker.stats().inFlight === 2)
  await pgbus.enqueue('holds', null, { group: 'g' })
  await pgbus.enqueue('holds', null, { delay: '2h' })

  t.test('when they are listed, then each with its state, the next one first', async t => {
    const { total, jobs } = await pgbus.jobs.list('default')
    t.equal(total, 5)
    t.match(
      jobs.map(({ state, attempts, job }) => [state, attempts, job]),
      [
        ['ready', 0, 'holds'],
        ['running', 1, 'holds'],
        ['running', 1, 'holds'],
        ['retrying', 1, 'fails'],
        ['scheduled', 0, 'holds'],
      ],
    )
    t.match(jobs[0], { group: 'g', priority: null, queue: 'default', errorClass: null })
    t.match(jobs[3], { errorClass: 'RangeError', errorMessage: 'too much' })
    t.match(await pgbus.jobs.list('default', { state: 'running', perPage: 1, page: 2 }), {
      total: 2,
      jobs: [{ state: 'running' }],
    })
  })

  t.test('when one that waits for its next attempt is cancelled, then its failure goes too', async t => {
    const [retrying] = (await pgbus.jobs.list('default', { state: 'retrying' })).jobs
    t.same(await pgbus.cancel('default', retrying!.msgId), { status: 'cancelled', wasRunning: false })
    t.same(await bench.failures(), [])
  })
})

t.test('given a queue with priorities', async t => {
  const { pgbus } = await setup(t, { priority: { levels: 3 } })
  await pgbus.enqueue('x', null, { priority: 0 })
  await pgbus.enqueue('x', null, { priority: 2 })
  await t.rejects(pgbus.cancel('default', 1), /a job 1 in each of the levels 0, 2; name the priority/)
  await t.rejects(pgbus.jobs.get('default', 1), /name the priority/)
  t.match(await pgbus.jobs.list('default'), { total: 2, jobs: [{ priority: 0 }, { priority: 2 }] })
  t.match(await pgbus.cancel('default', 1, { priority: 2 }), { status: 'cancelled' })
  t.match(await pgbus.cancel('default', 1), { status: 'cancelled' })
  t.match(await pgbus.cancel('default', 1), { status: 'notFound' })
})

t.test('given a job that runs', async t => {
  const bench = await setup(t, { visibilityTimeout: '2s' })
  const { pgbus, lines } = bench
  const worker = await bench.work()
  const contexts: JobContext[] = []
  /** Takes the place of the hub: what was told there reaches the worker. */
  const cancel = async (msgId: number) => {
    const result = await pgbus.cancel('default', msgId, { reason: 'enough' })
    worker.cancel({ physical: 'pgbus_default', msgId, reason: 'enough' })
    return result
  }
  const begin = async (name: string) => {
    const before = contexts.length
    const { msgId } = await pgbus.enqueue(name, null)
    await waitFor(() => contexts.length > before)
    return { msgId, signal: contexts.at(-1)!.signal }
  }
  const idle = () => waitFor(() => worker.stats().inFlight === 0)

  t.test('when it is cancelled, then its signal says so, and nothing that it does counts', async t => {
    defineJob({ name: 'minds' }, async (_args, ctx) => {
      contexts.push(ctx)
      await once(ctx.signal, 'abort')
      throw new Error('that was that')
    })
    const { msgId, signal } = await begin('minds')
    t.same(await cancel(msgId!), { status: 'cancelled', wasRunning: true })
    await idle()
    t.match(signal.reason, {
      code: 'PGBUS_ERR_JOB_CANCELLED',
      message: `message ${msgId} of queue "pgbus_default" was cancelled: enough`,
    })
    t.same(await bench.failures(), [])
    t.same(await bench.rows(), [])
    t.match(
      lines.find(({ message }) => message.startsWith('job cancelled')),
      { level: 'info', fields: { msg_id: msgId } },
    )
    t.same(
      lines.filter(({ level }) => level === 'warn' || level === 'error'),
      [],
    )
    t.match(worker.stats(), { failed: 0, buried: 0, leasesLost: 0, processed: 1 })
  })

  t.test('when its handler returns all the same, then that is no lost claim', async t => {
    defineJob({ name: 'returns' }, async (_args, ctx) => {
      contexts.push(ctx)
      await once(ctx.signal, 'abort')
    })
    const { msgId } = await begin('returns')
    await cancel(msgId!)
    await idle()
    t.same(
      lines.filter(({ level }) => level === 'warn' || level === 'error'),
      [],
    )
  })

  t.test('when nobody tells the worker, then a renewal notices', async t => {
    const { msgId, signal } = await begin('returns')
    await pgbus.cancel('default', msgId!)
    await idle()
    t.match(signal.reason, { code: 'PGBUS_ERR_LEASE_LOST' })
  })

  t.test('when its handler ignores the signal, then its place is free after a while', async t => {
    const gate = deferred()
    defineJob({ name: 'ignores' }, async (_args, ctx) => {
      contexts.push(ctx)
      await gate.promise
    })
    const { msgId } = await begin('ignores')
    await cancel(msgId!)
    await waitFor(() => worker.stats().inFlight === 0, { timeout: 15_000 })
    t.equal(worker.stats().stuck, 1)
    gate.resolve()
    await waitFor(() => worker.stats().stuck === 0)
  })

  t.test('when it is cancelled between its claim and its start, then it never starts', async t => {
    let starts = 0
    defineJob({ name: 'early' }, () => void starts++)
    defineJob({ name: 'after' }, () => undefined)
    const { msgId } = await pgbus.enqueue('early', null, { delay: '1h' })
    // The answer of the claim is under way while the hub is quicker.
    const query = pgbus.db.query.bind(pgbus.db)
    let claimed = false
    pgbus.db.query = (async (...args: Parameters<typeof query>) => {
      const result = await query(...args)
      if (!claimed && result.rows.some(row => (row as { msg_id?: unknown } | null)?.msg_id === msgId)) {
        claimed = true
        await cancel(msgId!)
      }
      return result
    }) as typeof query
    await bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = now() WHERE msg_id = $1', [msgId])
    await waitFor(async () => (await bench.rows()).length === 0)
    pgbus.db.query = query
    await pgbus.enqueue('after', null)
    await drained(bench)
    await idle()
    t.ok(claimed)
    t.equal(starts, 0)
  })
})

t.test('given what is told on the channel of cancellations', async t => {
  t.same(readCancelled('{"physical":"q","msgId":7,"reason":null}'), {
    physical: 'q',
    msgId: 7,
    reason: null,
  } satisfies Cancelled)
  for (const wrong of [
    '',
    'null',
    '7',
    '{}',
    '{"physical":"q"}',
    '{"physical":1,"msgId":1}',
    '{"physical":"q","msgId":"1"}',
  ]) {
    t.equal(readCancelled(wrong), undefined, wrong)
  }
})
