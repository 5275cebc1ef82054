import pg from 'pg'
import t from 'tap'
import { DiscardJob } from '../../lib/jobs/control.ts'
import { defineJob, type JobContext } from '../../lib/jobs/define.ts'
import { Salvage } from '../../lib/processes/supervisor/salvage.ts'
import { type Bench, claimOne, drained, setup } from '../jobs/support.ts'
import { waitFor } from '../support/wait-for.ts'

/**
 * Every way out of a queue. Whatever a job holds must be given back by each of them, once, and by nothing else.
 */

type Behave = (ctx: JobContext) => unknown

const unique = { key: (n: number) => String(n) }
const concurrency = { ...unique, limit: 1 }
let behave: Behave = () => undefined
const job = defineJob<number>({ name: 'holder', unique, concurrency, retry: () => '1h' }, (_, ctx) =>
  behave(ctx),
)
const deleted = defineJob<number>(
  { name: 'holder_deleted', unique, concurrency, archive: false },
  () => undefined,
)
const buried = defineJob<number>({ name: 'holder_buried', unique, concurrency, maxAttempts: 1 }, () => {
  throw new RangeError('no')
})
defineJob({ name: 'plain_one' }, () => undefined)

/** Locks and slots; a slot must be counted. */
const held = async (bench: Bench) =>
  (
    await bench.db.query<{ name: string }>(
      `SELECT lock_key AS name FROM pgbus_uniqueness_keys
UNION ALL SELECT 'slot ' || coalesce(t.key, s.key || ' ' || s.value)
  FROM pgbus_semaphores s FULL JOIN pgbus_semaphore_slots t ON t.key = s.key AND s.value = 1 ORDER BY 1`,
    )
  ).map(row => row.name)

/** What is held by jobs with these keys. */
const by = (...keys: string[]) => [...keys, ...keys.map(key => `slot ${key}`)]

t.test('given unique jobs that a worker ends', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false } })
  const { pgbus } = bench
  await bench.work({ concurrency: 4 })

  t.test('when they are done, deleted, discarded or buried, then their locks are free', async t => {
    await job.enqueue(1, { pgbus })
    await deleted.enqueue(1, { pgbus })
    await buried.enqueue(1, { pgbus })
    await drained(bench)
    t.same(await held(bench), [])
    t.equal(await bench.archived(), 1)
    const [dead] = await bench.rows('pgbus_default_dlq')
    t.match(dead, {
      message: { job_class: 'holder_buried' },
      headers: { pgbus_dead_letter: { error_class: 'RangeError', queue: 'pgbus_default', read_ct: 1 } },
    })
    t.same(await bench.failures(), [])
    behave = () => {
      throw new DiscardJob('not needed')
    }
    await job.enqueue(1, { pgbus })
    await drained(bench)
    t.same(await held(bench), [])
  })

  t.test(
    'when a dead letter is retried, then it has no lock, and takes none with it when it ends',
    async t => {
      const { msgId } = await buried.enqueue(2, { pgbus, delay: '1h' })
      await pgbus.deadLetters.retry(1)
      await waitFor(async () => (await bench.rows('pgbus_default_dlq')).length === 1)
      await waitFor(async () => (await bench.rows()).length === 1)
      t.same(await held(bench), ['holder_buried:2'])
      await pgbus.deadLetters.discardAll()
      t.same(await held(bench), ['holder_buried:2'])
      await pgbus.cancel('default', msgId!)
    },
  )

  t.test(
    'when one fails and waits for its next attempt, then it keeps its lock until it has ended',
    async t => {
      behave = () => {
        throw new Error('once')
      }
      const { msgId } = await job.enqueue(3, { pgbus })
      await waitFor(async () => (await bench.failures()).length === 1)
      t.same(await held(bench), by('holder:3'))
      behave = () => undefined
      await bench.db.query('UPDATE pgmq.q_pgbus_default SET vt = clock_timestamp() WHERE msg_id = $1', [
        msgId,
      ])
      await drained(bench)
      t.same(await held(bench), [])
      t.same(await bench.failures(), [])
    },
  )

  t.test('when plain jobs run, then no statement of theirs is for those with locks', async t => {
    const texts: string[] = []
    const { db } = pgbus
    const query = db.query.bind(db)
    db.query = ((statement: string | { text: string }, values?: unknown[]) => {
      texts.push(typeof statement === 'string' ? statement : statement.text)
      return query(statement as string, values)
    }) as typeof db.query
    await pgbus.enqueueMany([1, 2, 3].map(args => ({ job: 'plain_one', args })))
    await drained(bench)
    db.query = query
    t.ok(texts.some(text => text.includes('DELETE FROM pgmq."q_pgbus_default"')))
    t.notOk(texts.some(text => /pgbus_(finish|enqueue|after_end|admit|uniqueness|semaphore)/.test(text)))
  })
})

t.test('given a unique job whose handler ends it within its own transaction', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const tx = new pg.Client(bench.db.url)
  await tx.connect()
  t.teardown(() => tx.end())

  for (const [end, left] of [
    ['COMMIT', []],
    ['ROLLBACK', by('holder:1')],
  ] as const) {
    t.test(`when it says ${end}, then the lock ${left.length > 0 ? 'stays' : 'is free'}`, async t => {
      behave = async ctx => {
        await tx.query('BEGIN')
        await ctx.completeIn(tx)
        await tx.query(end)
      }
      await job.enqueue(1, { pgbus })
      const worker = await bench.work({ concurrency: 1 })
      await waitFor(() => worker.stats().succeeded === 1)
      await worker.stop()
      t.same(await held(bench), left)
    })
  }
})

t.test('given unique jobs that others take out of their queue', async t => {
  const bench = await setup(t, { priority: { levels: 2 } })
  const { pgbus, db } = bench
  const tx = new pg.Client(bench.db.url)
  await tx.connect()
  t.teardown(() => tx.end())

  t.test('when one is cancelled, then its lock is free, in the same transaction', async t => {
    const { msgId } = await job.enqueue(1, { pgbus })
    await tx.query('BEGIN')
    await pgbus.cancel('default', msgId!, { tx })
    await tx.query('ROLLBACK')
    t.same(await held(bench), by('holder:1'))
    t.match(await pgbus.cancel('default', msgId!), { status: 'cancelled' })
    t.same(await held(bench), [])
  })

  t.test('when a queue is purged or dropped, then the locks of its jobs are free, and no others', async t => {
    for (const way of ['purge', 'drop'] as const) {
      await job.enqueue(1, { pgbus, priority: 0 })
      await job.enqueue(2, { pgbus, priority: 1 })
      await job.enqueue(3, { pgbus, queue: 'other' })
      await pgbus.enqueue('plain_one', null)
      await pgbus.queues[way]('default')
      t.same(await held(bench), by('holder:3'), way)
      await pgbus.queues.purge('other')
    }
  })

  t.test('when a lock names another message, then the end of this one does not free it', async t => {
    const first = await job.enqueue(1, { pgbus })
    t.equal(await pgbus.locks.discard('holder:1'), true)
    t.equal(await pgbus.locks.discard('holder:1'), false)
    await job.enqueue(1, { pgbus })
    await pgbus.cancel('default', first.msgId!)
    t.same(await held(bench), by('holder:1'), 'the slot went to the second')
    await pgbus.queues.purge('default')
  })

  t.test('when another client wrote the lock with the logical name, then the end frees it', async t => {
    const { msgId } = await job.enqueue(1, { pgbus })
    await db.query(`UPDATE pgbus_uniqueness_keys SET queue_name = 'default'`)
    await pgbus.cancel('default', msgId!)
    t.same(await held(bench), [])
  })
})

t.test('given a unique job that takes its process down again', async t => {
  const bench = await setup(t)
  const { pgbus } = bench

  t.test('when the supervisor buries it, then its lock is free', async t => {
    await job.enqueue(1, { pgbus })
    const salvage = new Salvage({ pgbus, log: pgbus.log })
    const exit = { code: null, signal: 'SIGKILL' as const, expected: false, reason: 'killed' }
    for (const left of [by('holder:1'), []]) {
      const { physical, msgId, readCount } = await claimOne(pgbus, 60_000)
      const running = new Map([[physical, [{ msgId, readCount }]]])
      salvage.giveBack({ slot: 'worker', pid: -1, held: { waiting: new Map(), running } }, exit as never, [])
      await salvage.done()
      t.same(await held(bench), left)
    }
    t.equal((await bench.rows('pgbus_default_dlq')).length, 1)
  })
})
