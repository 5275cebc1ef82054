import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { admit } from '../../lib/limits/statements.ts'
import type { UniqueOptions } from '../../lib/limits/unique.ts'
import { makeVisible } from '../../lib/pgmq/statements.ts'
import { type Bench, claimOne, drained, setup } from '../jobs/support.ts'
import { waitFor } from '../support/wait-for.ts'

const unique = { strategy: 'whileExecuting', key: (n: number) => String(n), scope: 'global' } as const

const locks = (bench: Bench) =>
  bench.db.query<{ key: string; msg_id: number }>(
    'SELECT lock_key AS key, msg_id::int, strategy FROM pgbus_uniqueness_keys ORDER BY 1',
  )

/** Lets what waits be looked at now. */
const hurry = (bench: Bench) =>
  bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() WHERE read_ct = 0')

/** Claims as a worker does, and asks. */
const ask = async ({ pgbus }: Bench, policy?: 'wait' | 'discard') => {
  const delivery = await claimOne(pgbus, 60_000)
  const rules = policy ? { unique: { onConflict: policy } } : {}
  const { rows } = await pgbus.db.query<{ answer: string }>(
    admit(delivery.physical, delivery, rules, 1, 'default'),
  )
  return { answer: rows[0]!.answer, delivery }
}

t.test('given jobs of which one with the same key may run at a time', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false } })
  const { pgbus } = bench

  t.test(
    'when a second is to run, then it waits until the first has ended, and no attempt is counted',
    async t => {
      const gates = [deferred(), deferred()]
      const runs: [string, number][] = []
      const job = defineJob<number>({ name: 'one_runs', unique }, async (_, ctx) => {
        runs.push([ctx.job.id, ctx.job.attempt])
        await gates[runs.length - 1]!.promise
      })
      const worker = await bench.work({ concurrency: 5 })
      await job.enqueue(1, { pgbus, jobId: 'first' })
      await waitFor(() => runs.length === 1)
      t.match(await job.enqueue(1, { pgbus, jobId: 'second' }), { status: 'enqueued' })
      for (let look = 0; look < 7; look += 1) {
        await waitFor(async () => {
          const row = (await bench.rows()).find(({ message }) => message.job_id === 'second')
          return row?.hidden === true && row.read_ct === 0
        })
        await hurry(bench)
      }
      t.same(runs, [['first', 1]])
      gates[0]!.resolve()
      await waitFor(async () => (await bench.archived()) === 1)
      await hurry(bench)
      await waitFor(() => runs.length === 2)
      gates[1]!.resolve()
      await drained(bench)
      await worker.stop()
      t.same(runs, [
        ['first', 1],
        ['second', 1],
      ])
      t.same(await locks(bench), [])
      t.same(await bench.failures(), [])
    },
  )

  t.test('when the second is to be discarded, then it is archived unrun', async t => {
    const gate = deferred()
    const runs: string[] = []
    const job = defineJob<number>(
      { name: 'one_discarded', unique: { ...unique, onConflict: 'discard' } },
      async (_, ctx) => {
        runs.push(ctx.job.id)
        await gate.promise
      },
    )
    const worker = await bench.work({ concurrency: 5 })
    await job.enqueue(2, { pgbus, jobId: 'first' })
    await waitFor(() => runs.length === 1)
    await job.enqueue(2, { pgbus, jobId: 'second' })
    await waitFor(() => bench.lines.some(({ message }) => message === 'job discarded'))
    gate.resolve()
    await drained(bench)
    await worker.stop()
    t.same(runs, ['first'])
    t.same(await locks(bench), [])
  })

  t.test('when the first fails and waits for its next attempt, then the second runs meanwhile', async t => {
    const runs: string[] = []
    const job = defineJob<number>({ name: 'one_fails', unique, retry: () => '1h' }, (_, ctx) => {
      runs.push(ctx.job.id)
      if (ctx.job.id === 'first') throw new Error('no')
    })
    const worker = await bench.work({ concurrency: 1 })
    for (const jobId of ['first', 'second']) await job.enqueue(3, { pgbus, jobId })
    await waitFor(() => runs.length === 2)
    await waitFor(async () => (await bench.rows()).length === 1)
    await worker.stop()
    t.same(await locks(bench), [])
    await pgbus.queues.purge('default')
  })

  t.test('when the worker stops and gives the first back, then it has no lock', async t => {
    const entered = deferred()
    const job = defineJob<number>({ name: 'one_stopped', unique }, async (_, ctx) => {
      entered.resolve()
      await new Promise((_resolve, reject) =>
        ctx.signal.addEventListener('abort', () => reject(ctx.signal.reason)),
      )
    })
    await job.enqueue(4, { pgbus })
    const worker = await bench.work()
    await entered.promise
    t.match(await locks(bench), [{ key: '4', strategy: 'while_executing' }])
    await worker.stop({ immediate: true })
    t.match(await bench.rows(), [{ read_ct: 0, hidden: false }])
    t.same(await locks(bench), [])
    await pgbus.queues.purge('default')
  })

  t.test('when one is a dead letter, then its lock is free; retried, it takes it again', async t => {
    const job = defineJob<number>({ name: 'one_dies', unique, maxAttempts: 1 }, () => {
      throw new Error('no')
    })
    const worker = await bench.work()
    await job.enqueue(5, { pgbus })
    await waitFor(async () => (await bench.rows('pgbus_default_dlq')).length === 1)
    t.same(await locks(bench), [])
    await worker.stop()
    await pgbus.deadLetters.retryAll()
    t.equal((await ask(bench)).answer, 'run')
    t.match(await locks(bench), [{ key: '5' }])
    await pgbus.queues.purge('default')
    t.same(await locks(bench), [])
  })
})

t.test('given a lock whose holder died', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const job = defineJob<number>({ name: 'holder_dies', unique }, () => undefined)

  t.test('when the holder is delivered again, then it runs', async t => {
    await job.enqueue(1, { pgbus })
    const { delivery } = await ask(bench)
    await pgbus.db.query(makeVisible('pgbus_default', [delivery]))
    t.match(await ask(bench), { answer: 'run', delivery: { readCount: 2 } })
  })

  t.test(
    'when another comes before that, then it waits while the lease lasts, then takes the lock over',
    async t => {
      const [holder] = await bench.rows()
      await job.enqueue(1, { pgbus })
      const waits = await ask(bench)
      t.equal(waits.answer, 'wait')
      t.match(await locks(bench), [{ msg_id: Number(holder!.msg_id) }])
      await bench.db.query(
        `UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() - interval '1 s' WHERE msg_id = $1`,
        [holder!.msg_id],
      )
      await bench.db.query(
        `UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() - interval '2 s', read_ct = 0 WHERE msg_id = $1`,
        [waits.delivery.msgId],
      )
      t.equal((await ask(bench)).answer, 'run')
      t.match(await locks(bench), [{ msg_id: waits.delivery.msgId }])
      t.match(await ask(bench, 'discard'), { answer: 'discard', delivery: { msgId: Number(holder!.msg_id) } })
      t.match(await locks(bench), [{ msg_id: waits.delivery.msgId }])
    },
  )

  t.test('when its message or its queue is gone, then another takes the lock over', async t => {
    for (const remove of [
      'DELETE FROM pgmq.q_pgbus_default',
      'TRUNCATE pgmq.q_pgbus_default',
      `UPDATE pgbus_uniqueness_keys SET queue_name = 'pgbus_gone'`,
    ]) {
      await bench.db.query(remove)
      await job.enqueue(1, { pgbus })
      t.equal((await ask(bench)).answer, 'run', remove)
    }
    await pgbus.queues.purge('default')
  })

  t.test('when it is held from an enqueue on, then a job that waits holds it too', async t => {
    const whole = defineJob<number>(
      { name: 'holds_from_enqueue', unique: { key: n => String(n), scope: 'global' } },
      () => undefined,
    )
    const { msgId } = await whole.enqueue(1, { pgbus, queue: 'other' })
    await job.enqueue(1, { pgbus })
    t.equal((await ask(bench)).answer, 'wait')
    await pgbus.cancel('other', msgId!)
    await bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp()')
    t.equal((await ask(bench)).answer, 'run')
    await pgbus.queues.purge('default')
  })
})

t.test('given jobs that are limited as well', async t => {
  const bench = await setup(t)
  const { pgbus } = bench

  t.test('when one has the lock but no slot, then it gives the lock back and waits outside', async t => {
    const job = defineJob<number>({ name: 'both_kinds', unique, concurrency: { limit: 1 } }, () => undefined)
    await job.enqueue(1, { pgbus })
    await job.enqueue(2, { pgbus, delay: '1h' })
    t.equal((await ask(bench)).answer, 'run')
    await hurry(bench)
    t.equal((await ask(bench)).answer, 'parked')
    t.match(await locks(bench), [{ key: '1' }])
    await pgbus.queues.purge('default')
    t.same(await locks(bench), [])
  })
})

t.test('given definitions', async t => {
  t.test('when a policy belongs to the other strategy, then it is refused', async t => {
    for (const wrong of [
      { strategy: 'whileExecuting', onConflict: 'reject' },
      { strategy: 'untilExecuted', onConflict: 'wait' },
      { onConflict: 'wait' },
    ] as UniqueOptions[])
      t.throws(
        () => defineJob({ name: 'wrong', unique: wrong }, () => {}),
        /unique.onConflict of "(whileExecuting|untilExecuted)" must be one of/,
      )
  })
})
