import pg from 'pg'
import t from 'tap'
import type { JobNotUniqueError } from '../../lib/core/errors.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import type { UniqueOptions } from '../../lib/limits/unique.ts'
import { type Bench, setup } from '../jobs/support.ts'
import type { TestContext } from '../support/database.ts'

interface Order {
  id: number
  note?: string
}

let made = 0

/** A job that is unique by `id`, under a name of its own. */
function uniqueJob(options: UniqueOptions<Order> = {}) {
  made += 1
  return defineJob<Order>(
    { name: `unique_${made}`, unique: { key: ({ id }) => String(id), ...options } },
    () => {},
  )
}

const locks = (bench: Bench) =>
  bench.db.query(
    'SELECT lock_key, queue_name, msg_id::int, strategy FROM pgbus_uniqueness_keys ORDER BY lock_key',
  )

async function client(t: TestContext, bench: Bench): Promise<pg.Client> {
  const tx = new pg.Client(bench.db.url)
  await tx.connect()
  t.teardown(() => tx.end())
  await tx.query('BEGIN')
  return tx
}

t.test('given a job that is unique by a part of its arguments', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  await pgbus.queues.ensure('default')

  t.test('when it is enqueued again before it has ended, then that is refused with the holder', async t => {
    const job = uniqueJob()
    const first = await job.enqueue({ id: 7 }, { pgbus })
    t.match(first, { status: 'enqueued', msgId: Number })
    await t.rejects(job.enqueue({ id: 7, note: 'other' }, { pgbus }), {
      code: 'PGBUS_ERR_JOB_NOT_UNIQUE',
      key: `${job.name}:7`,
      queue: 'default',
      msgId: first.msgId,
      pending: false,
    })
    t.match(await job.enqueue({ id: 8 }, { pgbus }), { status: 'enqueued' })
    t.match(await locks(bench), [
      {
        lock_key: `${job.name}:7`,
        queue_name: 'pgbus_default',
        msg_id: first.msgId,
        strategy: 'until_executed',
      },
      { lock_key: `${job.name}:8` },
    ])
    const [stored] = await bench.rows()
    t.match(stored!.message, {
      pgbus_uniqueness_key: `${job.name}:7`,
      pgbus_uniqueness_strategy: 'until_executed',
    })
    t.match(await pgbus.locks.list({ limit: 1 }), [{ key: `${job.name}:8`, queue: 'default', since: Date }])
    await t.rejects(pgbus.locks.list({ limit: 0 }), TypeError)
  })

  t.test('when fifty enqueue it at once, then one wins', async t => {
    const job = uniqueJob()
    const results = await Promise.allSettled(
      Array.from({ length: 50 }, (_, n) => job.enqueue({ id: 1, note: String(n) }, { pgbus })),
    )
    t.equal(results.filter(({ status }) => status === 'fulfilled').length, 1)
    for (const result of results)
      if (result.status === 'rejected') t.equal(result.reason.code, 'PGBUS_ERR_JOB_NOT_UNIQUE')
  })

  t.test('when the second is to be discarded or logged, then the result says so', async t => {
    for (const onConflict of ['discard', 'log'] as const) {
      const job = uniqueJob({ onConflict })
      await job.enqueue({ id: 1 }, { pgbus })
      const before = (await bench.rows()).length
      t.match(await job.enqueue({ id: 1 }, { pgbus }), { status: 'duplicate', msgId: null, queue: 'default' })
      t.equal((await bench.rows()).length, before)
      const line = bench.lines.findLast(({ message }) => message.includes('was not enqueued'))
      t.match(line, { level: onConflict === 'log' ? 'warn' : 'info', fields: { job: job.name } })
    }
  })

  t.test('when many are enqueued with one that is refused, then nothing of them is stored', async t => {
    const [job, plain] = [uniqueJob(), defineJob<number>({ name: 'not_unique' }, () => {})]
    await job.enqueue({ id: 2 }, { pgbus })
    const before = [await bench.rows(), await locks(bench)]
    const items = [
      { job: plain, args: 1 },
      { job, args: { id: 1 } },
      { job, args: { id: 2 } },
      { job, args: { id: 3 } },
    ]
    await t.rejects(pgbus.enqueueMany(items), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE', key: `${job.name}:2` })
    const tx = await client(t, bench)
    await t.rejects(pgbus.enqueueMany(items, { tx }), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
    await tx.query('COMMIT')
    t.same([await bench.rows(), await locks(bench)], before)
  })

  t.test('when many are enqueued with one twice, then the later one is the duplicate', async t => {
    const job = uniqueJob({ onConflict: 'discard' })
    const results = await pgbus.enqueueMany([
      { job: 'not_unique', args: 1 },
      { job, args: { id: 5, note: 'a' } },
      { job, args: { id: 4 } },
      { job, args: { id: 5, note: 'b' } },
      { job: 'not_unique', args: 2 },
    ])
    t.same(
      results.map(({ status }) => status),
      ['enqueued', 'enqueued', 'enqueued', 'duplicate', 'enqueued'],
    )
    for (const { msgId, status } of results) {
      if (status === 'duplicate') continue
      t.match(await pgbus.jobs.get('default', msgId!), { state: 'ready' })
    }
    const ids = new Set(results.map(({ msgId }) => msgId))
    t.equal(ids.size, 5)
  })

  t.test('when the waiting one is replaced, then it has the new arguments, due time and headers', async t => {
    const job = uniqueJob({ onConflict: 'replace' })
    const first = await job.enqueue({ id: 1, note: 'old' }, { pgbus, delay: '1h', headers: { old: 1 } })
    const second = await job.enqueue({ id: 1, note: 'new' }, { pgbus, headers: { now: 1 } })
    t.match(second, { status: 'replaced', msgId: first.msgId })
    t.not(second.jobId, first.jobId)
    t.match(await pgbus.jobs.get('default', first.msgId!), {
      state: 'ready',
      jobId: second.jobId,
      message: { arguments: [{ id: 1, note: 'new' }] },
      headers: { now: 1, old: undefined },
    })
    await job.enqueue({ id: 1, note: 'last' }, { pgbus })
    t.match(await pgbus.jobs.get('default', first.msgId!), { headers: null })
    await bench.db.query('UPDATE pgmq.q_pgbus_default SET read_ct = 1 WHERE msg_id = $1', [first.msgId])
    await t.rejects(job.enqueue({ id: 1 }, { pgbus }), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
    t.match(await pgbus.jobs.get('default', first.msgId!), { message: { arguments: [{ note: 'last' }] } })
  })

  t.test('when the transaction of the caller rolls back, then no lock is left', async t => {
    const job = uniqueJob()
    const tx = await client(t, bench)
    await tx.query("SET timezone TO 'Asia/Tokyo'")
    await job.enqueue({ id: 1 }, { pgbus, tx })
    await t.rejects(job.enqueue({ id: 1 }, { pgbus, tx }), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
    const [lock] = (
      await tx.query(
        `SELECT abs(extract(epoch FROM created_at - now() AT TIME ZONE 'UTC')) < 60 AS utc FROM pgbus_uniqueness_keys WHERE lock_key = $1`,
        [`${job.name}:1`],
      )
    ).rows
    t.same(lock, { utc: true })
    await tx.query('ROLLBACK')
    t.match(await job.enqueue({ id: 1 }, { pgbus }), { status: 'enqueued' })
  })

  t.test('when the sending of it fails, then no lock is left', async t => {
    const job = uniqueJob()
    await bench.db.query(
      `ALTER TABLE pgmq.q_pgbus_default ADD CONSTRAINT no CHECK (message ->> 'job_class' <> '${job.name}')`,
    )
    await t.rejects(job.enqueue({ id: 1 }, { pgbus }), { code: '23514' })
    await bench.db.query('ALTER TABLE pgmq.q_pgbus_default DROP CONSTRAINT no')
    t.match(await job.enqueue({ id: 1 }, { pgbus }), { status: 'enqueued' })
  })

  t.test('when its queue was dropped elsewhere, then it is made again', async t => {
    const job = uniqueJob()
    await job.enqueue({ id: 1 }, { pgbus, queue: 'fleeting' })
    await bench.db.query(`SELECT pgmq.drop_queue('pgbus_fleeting')`)
    t.match(await job.enqueue({ id: 2 }, { pgbus, queue: 'fleeting' }), {
      status: 'enqueued',
      queue: 'fleeting',
    })
  })
})

t.test('given a transaction that holds a key and does not end', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const [rejects, discards] = [uniqueJob(), uniqueJob({ onConflict: 'discard' })]
  const tx = await client(t, bench)
  await rejects.enqueue({ id: 1 }, { pgbus, tx })
  await discards.enqueue({ id: 1 }, { pgbus, tx })

  t.test('when another enqueues it, then it is told that nothing is decided', async t => {
    const own = await client(t, bench)
    const [pool, within, discarded, list] = await Promise.allSettled([
      rejects.enqueue({ id: 1 }, { pgbus }),
      rejects.enqueue({ id: 1 }, { pgbus, tx: own }),
      discards.enqueue({ id: 1 }, { pgbus }),
      discards.enqueueMany([{ args: { id: 1 } }, { args: { id: 2 } }], { pgbus }),
    ])
    for (const result of [pool, within]) {
      t.equal(result.status, 'rejected')
      const error = (result as PromiseRejectedResult).reason as JobNotUniqueError
      t.match(error, {
        code: 'PGBUS_ERR_JOB_NOT_UNIQUE',
        pending: true,
        msgId: null,
        key: `${rejects.name}:1`,
      })
    }
    await own.query('SELECT 1')
    t.match(discarded, { value: { status: 'duplicate' } })
    t.match(list, { value: [{ status: 'duplicate' }, { status: 'enqueued' }] })
  })

  t.test('when it rolls back while another waits, then that one has the key', async t => {
    const waiting = rejects.enqueue({ id: 1 }, { pgbus })
    await bench.db.query('SELECT 1')
    await tx.query('ROLLBACK')
    t.match(await waiting, { status: 'enqueued' })
  })
})

t.test('given keys of every kind', async t => {
  const bench = await setup(t)
  const { pgbus } = bench

  t.test('when two jobs share a global key, then there is one of both', async t => {
    const [one, two] = [uniqueJob({ scope: 'global' }), uniqueJob({ scope: 'global' })]
    await one.enqueue({ id: 99 }, { pgbus })
    await t.rejects(two.enqueue({ id: 99 }, { pgbus }), { message: /its key "99"/ })
  })

  t.test('when there is no key function, then the name is the key, and arguments are refused', async t => {
    const job = defineJob<unknown>({ name: 'by_name', unique: {} }, () => {})
    await t.rejects(
      job.enqueue({ id: 1 }, { pgbus }),
      /job "by_name" is unique by its name alone.*unique\.key/,
    )
    await t.rejects(job.enqueue('x', { pgbus }), TypeError)
    await job.enqueue({}, { pgbus })
    await t.rejects(job.enqueue(null, { pgbus }), { message: /its key "by_name"/ })
  })

  t.test('when a key is long, then it is cut at a character and told apart by its hash', async t => {
    const job = defineJob<string>({ name: 'long', unique: { key: text => text, scope: 'global' } }, () => {})
    const keys = [
      `${'a'.repeat(179)}€${'x'.repeat(100)}`,
      `${'a'.repeat(179)}€${'x'.repeat(101)}`,
      'b'.repeat(255),
    ]
    for (const key of keys) await job.enqueue(key, { pgbus })
    const stored = (await locks(bench)).map(row => row.lock_key as string).filter(key => key.length > 100)
    t.match(stored, [/^a{179}:[0-9a-f]{64}$/, /^a{179}:[0-9a-f]{64}$/, /^b{255}$/])
    await t.rejects(job.enqueue(keys[0]!, { pgbus }), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
  })

  t.test('when a key is no text, then nothing is stored', async t => {
    const before = await locks(bench)
    for (const key of ['', 'a\0b', '\ud800', 7, null]) {
      const job = uniqueJob({ key: () => key as string })
      await t.rejects(job.enqueue({ id: 1 }, { pgbus }), TypeError, JSON.stringify(key))
    }
    const job = uniqueJob({
      key: () => {
        throw new RangeError('no key')
      },
    })
    await t.rejects(job.enqueue({ id: 1 }, { pgbus }), { name: 'TypeError', cause: { message: 'no key' } })
    t.same(await locks(bench), before)
  })

  t.test('when a definition is wrong, then it is refused with the name of the job', async t => {
    const wrong: unknown[] = [
      true,
      { key: false },
      { key: 'id' },
      { strategy: 'never' },
      { scope: 'all', key: () => '' },
      { scope: 'global' },
      { onConflict: 'ignore' },
      { lockTtl: '1h' },
    ]
    for (const unique of wrong)
      t.throws(
        () => defineJob({ name: 'wrong', unique: unique as UniqueOptions }, () => {}),
        /job "wrong": unique/,
        JSON.stringify(unique),
      )
  })
})
