import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

const start = async (t: TestContext, config = {}) => {
  const bench = await setup(t, { visibilityTimeout: '1s', ...config })
  await bench.db.query('CREATE TABLE effect (n int)')
  const effects = async () =>
    (await bench.db.query<{ n: number }>('SELECT n FROM effect ORDER BY n')).map(r => r.n)
  /** Runs `fn` in a transaction of the application. */
  const transaction = async (end: 'COMMIT' | 'ROLLBACK', fn: (client: pg.Client) => Promise<unknown>) => {
    const client = new pg.Client(bench.db.url)
    await client.connect()
    try {
      await client.query('BEGIN')
      await fn(client)
      await client.query(end)
    } finally {
      await client.end()
    }
  }
  return { ...bench, effects, transaction }
}

t.test('given a handler with a transaction of its own', async t => {
  const bench = await start(t)
  const { pgbus, transaction, effects, archived, rows } = bench

  t.test('when the job is completed in it, then effect and end are one', async t => {
    let seen: unknown[] = []
    let again: unknown
    defineJob<number>({ name: 'completes' }, async (n, ctx) => {
      await transaction('COMMIT', async client => {
        await client.query('INSERT INTO effect VALUES ($1)', [n])
        await ctx.completeIn(client)
        seen = [(await rows()).length, await effects()]
        again = await ctx.completeIn(client).catch(error => error)
      })
    })
    const worker = await bench.work()
    await pgbus.enqueue('completes', 1)
    await drained(bench)
    await waitFor(() => worker.stats().inFlight === 0)
    t.same(seen, [1, []], 'nobody sees either before the commit')
    t.match(again, { code: 'PGBUS_ERR_INVALID_TRANSITION' })
    t.same(await effects(), [1])
    t.equal(await archived(), 1)
    t.match(worker.stats(), { processed: 1, failed: 0, leasesLost: 0 })
  })

  t.test('when the transaction takes longer than leases last, then nobody else runs the job', async t => {
    let runs = 0
    // The row is gone at the commit, a little before the handler goes on.
    const aborted = deferred<boolean>()
    defineJob({ name: 'completes-late' }, async (_, ctx) => {
      runs += 1
      await transaction('COMMIT', async client => {
        await ctx.completeIn(client)
        await client.query('SELECT pg_sleep(3.5)')
      })
      aborted.resolve(ctx.signal.aborted)
    })
    await pgbus.enqueue('completes-late', null)
    t.equal(await aborted.promise, false)
    await drained(bench)
    t.equal(runs, 1)
    t.equal(await archived(), 2)
  })

  t.test('when the handler throws afterwards, then neither happened, and it is retried', async t => {
    defineJob<number>({ name: 'completes-twice', retry: () => 0 }, async (n, ctx) => {
      await transaction('COMMIT', async client => {
        await client.query('INSERT INTO effect VALUES ($1)', [n])
        await ctx.completeIn(client)
        if (ctx.job.attempt === 1) throw new Error('rolled back by the end of the connection')
      })
    })
    await pgbus.enqueue('completes-twice', 2)
    await drained(bench)
    t.same(await effects(), [1, 2])
    t.equal(await archived(), 3)
  })

  t.test(
    'when the transaction is rolled back without a word, then the lease runs out and it runs again',
    async t => {
      const attempts: number[] = []
      defineJob({ name: 'completes-silently' }, async (_, ctx) => {
        attempts.push(ctx.job.attempt)
        const end = ctx.job.attempt === 1 ? 'ROLLBACK' : 'COMMIT'
        await transaction(end, client => ctx.completeIn(client))
      })
      await pgbus.enqueue('completes-silently', null)
      await drained(bench)
      t.same(attempts, [1, 2])
    },
  )

  t.test('when the message was taken away, then it rejects, and the caller rolls back', async t => {
    const told = deferred<unknown>()
    defineJob({ name: 'completes-in-vain' }, async (_, ctx) => {
      await bench.db.query('DELETE FROM pgmq.q_pgbus_default WHERE msg_id = $1', [ctx.job.msgId])
      await transaction('ROLLBACK', async client => {
        await client.query('INSERT INTO effect VALUES (99)')
        await ctx.completeIn(client).catch(told.resolve)
      })
      throw new Error('gives up')
    })
    await pgbus.enqueue('completes-in-vain', null)
    t.match(await told.promise, { code: 'PGBUS_ERR_LEASE_LOST' })
    t.same(await effects(), [1, 2])
  })

  t.test('when what it is given is no client, then that is an error of the job', async t => {
    const told = deferred<unknown>()
    defineJob({ name: 'completes-wrongly', retry: () => 'discard' }, async (_, ctx) => {
      await ctx.completeIn(undefined as never).catch(error => {
        told.resolve(error)
        throw error
      })
    })
    await pgbus.enqueue('completes-wrongly', null)
    t.match(await told.promise, { message: 'completeIn needs the client of a transaction' })
    await drained(bench)
  })
})
