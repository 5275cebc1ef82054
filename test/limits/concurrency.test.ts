import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob, type JobContext } from '../../lib/jobs/define.ts'
import type { ConcurrencyOptions } from '../../lib/limits/concurrency.ts'
import { admit, finishTracked } from '../../lib/limits/statements.ts'
import { makeVisible } from '../../lib/pgmq/statements.ts'
import { type Bench, claimOne, drained, setup } from '../jobs/support.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'

interface Call {
  tenant: string
  n?: number
}

let made = 0

function limitedJob(
  options: Partial<ConcurrencyOptions<Call>> = {},
  handler: (args: Call, ctx: JobContext) => unknown = () => undefined,
) {
  made += 1
  return defineJob<Call>(
    {
      name: `limited_${made}`,
      retry: () => '1h',
      concurrency: { limit: 1, key: ({ tenant }) => tenant, ...options },
    },
    handler,
  )
}

interface Held {
  key: string
  value: number
  max: number
  slots: number
  blocked: number
}

const held = (bench: Bench, name = '') =>
  bench.db.query<Held>(
    `SELECT s.key, s.value, s.max_value AS max, (SELECT count(*)::int FROM pgbus_semaphore_slots t WHERE t.key = s.key) AS slots,
            (SELECT count(*)::int FROM pgbus_blocked_executions b WHERE b.concurrency_key = s.key) AS blocked
       FROM pgbus_semaphores s WHERE s.key LIKE $1 ORDER BY s.key`,
    [`${name}%`],
  )

async function client(t: TestContext, bench: Bench): Promise<pg.Client> {
  const tx = new pg.Client(bench.db.url)
  await tx.connect()
  t.teardown(() => tx.end())
  await tx.query('BEGIN')
  return tx
}

const finish = (bench: Bench, delivery: { physical: string; msgId: number; readCount: number }) =>
  bench.pgbus.db.query(finishTracked(delivery.physical, { kind: 'archive' }, [delivery], 'default'))

t.test('given a job of which three with one key may be at a time', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench

  t.test('when fifty are enqueued at once, then three are in the queue and the others wait', async t => {
    const job = limitedJob({ limit: 3 })
    const results = await Promise.all(
      Array.from({ length: 50 }, (_, n) => job.enqueue({ tenant: 'a', n }, { pgbus })),
    )
    t.equal(results.filter(({ status }) => status === 'enqueued').length, 3)
    t.equal(results.filter(({ status, msgId }) => status === 'blocked' && msgId === null).length, 47)
    t.same(await held(bench, job.name), [{ key: `${job.name}:a`, value: 3, max: 3, slots: 3, blocked: 47 }])
    t.match(await job.enqueue({ tenant: 'b' }, { pgbus }), { status: 'enqueued' })
    await pgbus.queues.purge('default')
    t.same(await held(bench), [])
    t.same(await db.query('SELECT * FROM pgbus_blocked_executions'), [])
  })

  t.test('when many are enqueued as a list, then the first of each key are in the queue', async t => {
    const job = limitedJob({ limit: 2 })
    const plain = defineJob<number>({ name: 'unlimited' }, () => undefined)
    const results = await pgbus.enqueueMany([
      { job, args: { tenant: 'b' } },
      { job, args: { tenant: 'a' } },
      { job: plain, args: 1 },
      { job, args: { tenant: 'b' } },
      { job, args: { tenant: 'b' } },
    ])
    t.same(
      results.map(({ status }) => status),
      ['enqueued', 'enqueued', 'enqueued', 'enqueued', 'blocked'],
    )
    await pgbus.queues.purge('default')
  })

  t.test('when all of them run, then never more than three at once, each once, the urgent first', async t => {
    const running = new Set<number>()
    const order: number[] = []
    let most = 0
    const job = limitedJob({ limit: 3 }, async ({ n }) => {
      order.push(n!)
      running.add(n!)
      most = Math.max(most, running.size)
      await new Promise(resolve => setImmediate(resolve))
      running.delete(n!)
    })
    for (let n = 0; n < 30; n += 1)
      await job.enqueue(
        { tenant: 'a', n },
        { pgbus, priority: n % 2 === 0 ? 5 : 1, delay: n === 29 ? '1ms' : 0 },
      )
    const worker = await bench.work({ concurrency: 10 })
    await waitFor(() => order.length === 30)
    await drained(bench)
    await worker.stop()
    t.equal(most <= 3, true, `${most} at once`)
    t.equal(new Set(order).size, 30)
    const waited = order.filter(n => n > 2 && n < 29)
    const urgent = waited.map(n => n % 2)
    t.same(
      urgent,
      urgent.toSorted((a, b) => b - a),
    )
    for (const parity of [0, 1]) {
      const same = waited.filter(n => n % 2 === parity)
      t.same(
        same,
        same.toSorted((a, b) => a - b),
      )
    }
    t.same(await held(bench), [])
  })
})

t.test('given a limit that is reached', async t => {
  const bench = await setup(t, { priority: { levels: 3 } })
  const { pgbus, db } = bench

  t.test('when the next is to be discarded, then nothing of it is left', async t => {
    const job = defineJob<Call>(
      {
        name: 'both',
        unique: { key: ({ n }) => String(n) },
        concurrency: { limit: 1, onConflict: 'discard' },
      },
      () => undefined,
    )
    await job.enqueue({ tenant: 'a', n: 1 }, { pgbus })
    t.match(await job.enqueue({ tenant: 'a', n: 2 }, { pgbus }), { status: 'discarded', msgId: null })
    await t.rejects(job.enqueue({ tenant: 'a', n: 1 }, { pgbus }), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
    t.match(await db.query('SELECT lock_key FROM pgbus_uniqueness_keys'), [{ lock_key: 'both:1' }])
    t.match(await held(bench), [{ key: 'both', value: 1, slots: 1, blocked: 0 }])
    await pgbus.queues.purge('default')
  })

  t.test(
    'when the next raises, then the error says which limit, and nothing of the call is stored',
    async t => {
      const job = limitedJob({ limit: 2, onConflict: 'raise' })
      const full = [1, 2, 3].map(n => ({ args: { tenant: 'a', n } }))
      await t.rejects(job.enqueueMany(full, { pgbus }), {
        code: 'PGBUS_ERR_CONCURRENCY_LIMIT_EXCEEDED',
        key: `${job.name}:a`,
        limit: 2,
      })
      t.same(await held(bench), [])
      const tx = await client(t, bench)
      await t.rejects(
        job.enqueue({ tenant: 'a' }, { pgbus, tx }),
        /"raise" cannot be decided inside a transaction/,
      )
      await t.rejects(job.enqueue({ tenant: 'a' }, { pgbus, delay: '1h' }), TypeError)
    },
  )

  t.test('when a unique one waits, then its lock waits with it, and it can be replaced', async t => {
    const job = defineJob<Call>(
      {
        name: 'unique_waits',
        unique: { key: ({ n }) => String(n), onConflict: 'replace' },
        concurrency: { limit: 1, key: ({ tenant }) => tenant },
      },
      () => undefined,
    )
    await job.enqueue({ tenant: 'a', n: 1 }, { pgbus, priority: 2 })
    t.match(await job.enqueue({ tenant: 'a', n: 2 }, { pgbus, priority: 2 }), { status: 'blocked' })
    t.match(await job.enqueue({ tenant: 'a', n: 2 }, { pgbus, priority: 2, headers: { new: true } }), {
      status: 'replaced',
      msgId: null,
    })
    await t.rejects(job.enqueue({ tenant: 'b', n: 2 }, { pgbus, priority: 2 }), {
      code: 'PGBUS_ERR_JOB_NOT_UNIQUE',
      queue: null,
    })
    await pgbus.cancel('default', 1)
    const [promoted] = await bench.rows('pgbus_default_p2')
    t.match(promoted, { message: { pgbus_uniqueness_key: 'unique_waits:2' }, headers: { new: true } })
    t.match(await pgbus.locks.list(), [
      { key: 'unique_waits:2', queue: 'default', msgId: Number(promoted!.msg_id) },
    ])
    await pgbus.queues.purge('default')
    t.same(await pgbus.locks.list(), [])
  })

  t.test(
    'when the sending of the next one fails, then it keeps waiting and nothing is given away',
    async t => {
      const job = limitedJob()
      await job.enqueue({ tenant: 'a', n: 1 }, { pgbus, priority: 0 })
      await job.enqueue({ tenant: 'a', n: 2 }, { pgbus, priority: 1 })
      await db.query(`ALTER TABLE pgmq.q_pgbus_default_p1 ADD CONSTRAINT no CHECK (false) NOT VALID`)
      const [row] = await bench.rows('pgbus_default_p0')
      await t.rejects(pgbus.cancel('default', Number(row!.msg_id), { priority: 0 }), { code: '23514' })
      t.match(await held(bench), [{ value: 1, slots: 1, blocked: 1 }])
      await db.query('ALTER TABLE pgmq.q_pgbus_default_p1 DROP CONSTRAINT no')
      await pgbus.cancel('default', Number(row!.msg_id), { priority: 0 })
      t.match(await held(bench), [{ value: 1, slots: 1, blocked: 0 }])
      t.equal((await bench.rows('pgbus_default_p1')).length, 1, 'at its own priority')
      await pgbus.queues.purge('default')
    },
  )
})

t.test('given a limited job that is to run later', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const ask = async (most?: number) => {
    const delivery = await claimOne(pgbus, 60_000)
    const rule = most === undefined ? {} : { concurrency: { limit: most, onConflict: 'block' } }
    const { rows } = await pgbus.db.query<{ answer: string }>(
      admit(delivery.physical, delivery, rule, 1, 'default'),
    )
    return { answer: rows[0]!.answer, delivery }
  }
  const due = () =>
    bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() WHERE vt > clock_timestamp()')

  t.test('when it is not due, then it has no slot; when it is claimed, it takes one or waits', async t => {
    const job = limitedJob()
    await job.enqueue({ tenant: 'a', n: 1 }, { pgbus, delay: '1h' })
    t.same(await held(bench), [])
    await due()
    const first = await ask()
    t.equal(first.answer, 'run')
    t.match(await held(bench), [{ value: 1, slots: 1 }])
    await job.enqueue({ tenant: 'a', n: 2 }, { pgbus, delay: '1h' })
    await bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() WHERE read_ct = 0')
    const second = await ask()
    t.equal(second.answer, 'parked')
    t.match(await held(bench), [{ value: 1, slots: 1, blocked: 1 }])
    await pgbus.db.query(makeVisible(first.delivery.physical, [first.delivery]))
    const again = await ask()
    t.match(again, { answer: 'run', delivery: { msgId: first.delivery.msgId, readCount: 2 } })
    t.match(await held(bench), [{ value: 1, slots: 1, blocked: 1 }], 'after a crash it has the slot it had')
    await finish(bench, first.delivery)
    t.match(await held(bench), [{ value: 1, slots: 1, blocked: 1 }], 'an old claim gives nothing back')
    await finish(bench, again.delivery)
    await finish(bench, again.delivery)
    t.match(await held(bench), [{ value: 1, slots: 1, blocked: 0 }], 'a second finish gives nothing back')
    const [row] = await bench.rows()
    t.match(row, { read_ct: 0, message: { arguments: [{ n: 2 }], pgbus_limit: undefined } })
    await pgbus.queues.purge('default')
  })

  t.test('when the definition allows more than was stored, then that counts', async t => {
    const job = limitedJob()
    for (const n of [1, 2]) await job.enqueue({ tenant: 'a', n }, { pgbus, delay: '1h' })
    await due()
    t.equal((await ask()).answer, 'run')
    t.equal((await ask(2)).answer, 'run')
    await pgbus.queues.purge('default')
  })

  t.test('when it is to be discarded at the limit, then it is archived unrun', async t => {
    const runs: number[] = []
    const gate = deferred()
    const job = limitedJob({ onConflict: 'discard' }, async ({ n }) => {
      runs.push(n!)
      await gate.promise
    })
    await job.enqueue({ tenant: 'a', n: 1 }, { pgbus })
    const worker = await bench.work({ concurrency: 2 })
    await waitFor(() => runs.length === 1)
    await job.enqueue({ tenant: 'a', n: 2 }, { pgbus, delay: '1ms' })
    await waitFor(() => bench.lines.some(({ message }) => message === 'job discarded'))
    gate.resolve()
    await drained(bench)
    await worker.stop()
    t.same(runs, [1])
    t.same(await held(bench), [])
    t.same(await bench.failures(), [])
  })

  t.test('when the database does not answer as it is asked, then the job is not charged', async t => {
    const runs: number[] = []
    const job = limitedJob({}, (_, ctx) => void runs.push(ctx.job.attempt))
    await bench.db.query('ALTER FUNCTION pgbus_acquire(text, int) RENAME TO gone')
    await job.enqueue({ tenant: 'a' }, { pgbus, delay: '1ms' })
    const worker = await bench.work()
    await waitFor(async () => {
      const [row] = await bench.rows()
      return row?.read_ct === 0 && row.hidden
    })
    await bench.db.query('ALTER FUNCTION gone(text, int) RENAME TO pgbus_acquire')
    await drained(bench)
    await worker.stop()
    t.same(runs, [1])
    t.same(await bench.failures(), [])
  })
})

t.test('given transactions that stay open', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const { readTimeout } = pgbus.config

  t.test(
    'when one has enqueued a limited job, then others of the key go on, and it takes its turn',
    async t => {
      const runs: number[] = []
      const job = limitedJob({}, ({ n }) => void runs.push(n!))
      const tx = await client(t, bench)
      t.match(await job.enqueue({ tenant: 'a', n: 0 }, { pgbus, tx }), { status: 'enqueued' })
      const worker = await bench.work({ concurrency: 4 })
      for (const n of [1, 2, 3]) await job.enqueue({ tenant: 'a', n }, { pgbus })
      await waitFor(() => runs.length === 3)
      await tx.query('COMMIT')
      await waitFor(() => runs.length === 4)
      await drained(bench)
      await worker.stop()
      t.same(runs, [1, 2, 3, 0])
      t.same(await held(bench), [])
    },
  )

  t.test('when one has ended a limited job in it, then others of the key go on', async t => {
    t.ok(readTimeout)
    const tx = await client(t, bench)
    const [entered, gate] = [deferred(), deferred()]
    const runs: number[] = []
    const job = limitedJob({ limit: 2 }, async ({ n }, ctx) => {
      runs.push(n!)
      if (n !== 0) return
      await ctx.completeIn(tx)
      entered.resolve()
      await gate.promise
    })
    await job.enqueue({ tenant: 'a', n: 0 }, { pgbus })
    const worker = await bench.work({ concurrency: 4 })
    await entered.promise
    for (const n of [1, 2, 3]) await job.enqueue({ tenant: 'a', n }, { pgbus })
    await waitFor(() => runs.length === 4)
    await waitFor(async () => (await held(bench))[0]?.slots === 1)
    t.match(await held(bench), [{ value: 1, slots: 1 }], 'the slot is held until the commit')
    await tx.query('COMMIT')
    t.same(await held(bench), [])
    gate.resolve()
    await worker.stop()
    t.same(await bench.db.query('SELECT * FROM pgbus_pending_ends'), [])
  })

  t.test(
    'when one has cancelled a limited job, then the next comes with its commit, or not at all',
    async t => {
      const job = limitedJob()
      const { msgId } = await job.enqueue({ tenant: 'a', n: 1 }, { pgbus })
      await job.enqueue({ tenant: 'a', n: 2 }, { pgbus })
      for (const end of ['ROLLBACK', 'COMMIT']) {
        const tx = await client(t, bench)
        await pgbus.cancel('default', msgId!, { tx })
        t.match(await held(bench), [{ value: 1, slots: 1, blocked: 1 }])
        await tx.query(end)
        t.match(await held(bench), [{ value: 1, slots: 1, blocked: end === 'COMMIT' ? 0 : 1 }])
      }
      await pgbus.queues.purge('default')
    },
  )
})

t.test('given limited jobs that fail', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false } })
  const { pgbus } = bench

  t.test('when one waits for its next attempt, then it keeps its slot', async t => {
    const job = limitedJob({}, () => {
      throw new Error('once')
    })
    const worker = await bench.work()
    await job.enqueue({ tenant: 'a' }, { pgbus })
    await waitFor(async () => (await bench.failures()).length === 1)
    t.match(await job.enqueue({ tenant: 'a' }, { pgbus }), { status: 'blocked' })
    await worker.stop()
    await pgbus.queues.purge('default')
  })

  t.test('when one is a dead letter, then its slot is free; retried, it takes its turn', async t => {
    let fail = true
    const runs: number[] = []
    const gate = deferred()
    const job = defineJob<Call>(
      { name: 'dies', maxAttempts: 1, concurrency: { limit: 1 } },
      async ({ n }) => {
        runs.push(n!)
        if (fail) throw new Error('no')
        if (n === 2) await gate.promise
      },
    )
    const worker = await bench.work({ concurrency: 3 })
    await job.enqueue({ tenant: 'a', n: 1 }, { pgbus })
    await waitFor(async () => (await bench.rows('pgbus_default_dlq')).length === 1)
    t.same(await held(bench), [])
    fail = false
    await job.enqueue({ tenant: 'a', n: 2 }, { pgbus })
    await waitFor(() => runs.length === 2)
    await pgbus.deadLetters.retryAll()
    await waitFor(async () => (await held(bench))[0]?.blocked === 1)
    gate.resolve()
    await waitFor(() => runs.length === 3)
    await drained(bench)
    await worker.stop()
    t.same(runs, [1, 2, 1])
    t.same(await held(bench), [])
  })
})

t.test('given definitions of limits', async t => {
  t.test('when one is wrong, then it is refused with the name of the job', async t => {
    const wrong: unknown[] = [
      3,
      {},
      { limit: 0 },
      { limit: 1.5 },
      { limit: '3' },
      { limit: 2_147_483_648 },
      { limit: 1, key: 'tenant' },
      { limit: 1, scope: 'global' },
      { limit: 1, onConflict: 'wait' },
      { limit: 1, duration: '15m' },
    ]
    for (const concurrency of wrong)
      t.throws(
        () => defineJob({ name: 'wrong', concurrency: concurrency as ConcurrencyOptions }, () => {}),
        /job "wrong": concurrency/,
        JSON.stringify(concurrency),
      )
  })
})
