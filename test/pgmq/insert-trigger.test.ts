import t from 'tap'
import { insertChannel } from '../../lib/pgmq/names.ts'
import { sendMany } from '../../lib/pgmq/statements.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { type Bench, listen, openSession, setup } from './setup.ts'

const insert = (queue: string) => `INSERT INTO pgmq.q_${queue} (vt, message) VALUES (now(), '{}')`

/** A queue with one of the two triggers, and what listeners of it hear. */
async function prepare(
  t: TestContext,
  kind: 'ours' | 'pgmq',
  throttle = 0,
): Promise<Bench & { queue: string; heard: string[] }> {
  const bench = await setup(t)
  const queue = 'pgbus_work'
  if (kind === 'ours') {
    await bench.queues.ensure('work')
  } else {
    await bench.test.query('SELECT pgmq.create($1)', [queue])
    await bench.test.query('SELECT pgmq.enable_notify_insert($1, $2)', [queue, throttle])
  }
  return { ...bench, queue, heard: await listen(t, bench.test.url, insertChannel(queue)) }
}

t.test('given a queue of ours', async t => {
  const bench = await prepare(t, 'ours')
  const { queue, heard, test } = bench

  t.test('when a batch is sent, then listeners hear of it once, with an empty payload', async t => {
    const items = Array.from({ length: 1_000 }, () => ({ message: '{}', headers: null, delayMs: 0 }))
    await bench.run(sendMany(queue, items))
    await waitFor(() => heard.length > 0)
    await test.query(insert(queue))
    await waitFor(() => heard.length === 2)
    t.strictSame(heard, ['', ''])
  })

  t.test(
    'when a message is stored but not committed, then nobody is woken; a rollback wakes nobody',
    async t => {
      heard.length = 0
      const client = await openSession(t, test.url)
      await client.query('BEGIN')
      await client.query(insert(queue))
      await client.query('ROLLBACK')
      await client.query('BEGIN')
      await client.query(insert(queue))
      await client.query('SAVEPOINT a')
      await client.query(insert(queue))
      await client.query('ROLLBACK TO SAVEPOINT a')
      await test.query(insert(queue))
      await waitFor(() => heard.length === 1)
      await client.query('COMMIT')
      await waitFor(() => heard.length === 2)
      t.equal(heard.length, 2)
    },
  )

  t.test('when one session sends again and again, then each transaction wakes', async t => {
    heard.length = 0
    const client = await openSession(t, test.url)
    for (let round = 1; round <= 20; round += 1) {
      await client.query(insert(queue))
      await waitFor(() => heard.length === round)
    }
    t.equal(heard.length, 20)
  })

  t.test('when sixteen send at once, then the last commit is covered by a wake', async t => {
    heard.length = 0
    const clients = await Promise.all(Array.from({ length: 16 }, () => openSession(t, test.url)))
    await Promise.all(
      clients.map(async client => {
        for (let n = 0; n < 50; n += 1) await client.query(insert(queue))
      }),
    )
    await waitFor(() => heard.length > 0)
    t.ok(heard.length <= 800)
    const before = heard.length
    await test.query(insert(queue))
    await waitFor(() => heard.length > before, { message: 'a wake after the storm: no lock is left behind' })
  })
})

for (const kind of ['ours', 'pgmq'] as const) {
  t.test(
    `given a queue with ${kind === 'ours' ? 'our trigger' : 'the trigger of PGMQ, throttled'}`,
    async t => {
      const { queue, heard, test } = await prepare(t, kind, 60_000)

      t.test('when a transaction that sent stays open, then others send without waiting', async t => {
        const holder = await openSession(t, test.url)
        await holder.query('BEGIN')
        await holder.query(insert(queue))
        const other = await openSession(t, test.url, '-c lock_timeout=200ms')
        await other.query(insert(queue))
        await waitFor(() => heard.length === 1)
        t.equal(heard.length, 1, 'and wake')
        await holder.query('COMMIT')
      })

      for (const level of ['REPEATABLE READ', 'SERIALIZABLE']) {
        t.test(`when two send at once under ${level}, then neither fails because of the trigger`, async t => {
          await test.query('UPDATE pgmq.notify_insert_throttle SET last_notified_at = to_timestamp(0)')
          const [a, b] = [await openSession(t, test.url), await openSession(t, test.url)]
          for (const client of [a, b]) {
            await client.query(`BEGIN ISOLATION LEVEL ${level}`)
            await client.query('SELECT 1')
          }
          await a.query(insert(queue))
          await a.query('COMMIT')
          await b.query(insert(queue))
          await b.query('COMMIT')
          t.pass('both committed')
        })
      }
    },
  )
}

t.test("given PGMQ's throttle", async t => {
  t.test(
    'when messages follow within the interval, then one wake is enough; after it, there is another',
    async t => {
      const { queue, heard, test } = await prepare(t, 'pgmq', 60_000)
      for (let n = 0; n < 5; n += 1) await test.query(insert(queue))
      await test.query(
        "UPDATE pgmq.notify_insert_throttle SET last_notified_at = now() - interval '2 minutes'",
      )
      await test.query(insert(queue))
      await waitFor(() => heard.length === 2)
      t.equal(heard.length, 2)
    },
  )

  t.test('when the unlogged table is empty after a crash, then every insert wakes', async t => {
    const { queue, heard, test } = await prepare(t, 'pgmq', 60_000)
    await test.query('TRUNCATE pgmq.notify_insert_throttle')
    for (let n = 0; n < 3; n += 1) await test.query(insert(queue))
    await waitFor(() => heard.length === 3)
    t.equal(heard.length, 3)
  })

  t.test('when a queue is registered in mixed case, then it wakes, and its throttle works', async t => {
    const { test } = await setup(t)
    await test.query("SELECT pgmq.create('Mixed-Case')")
    await test.query("UPDATE pgmq.meta SET queue_name = 'Mixed-Case'")
    await test.query("SELECT pgmq.enable_notify_insert('Mixed-Case', 60000)")
    const heard = await listen(t, test.url, 'pgmq.q_mixed-case.INSERT')
    await test.query("SELECT pgmq.send('Mixed-Case', '{}')")
    await waitFor(() => heard.length === 1)
    await test.query("SELECT pgmq.send('Mixed-Case', '{}')")
    await test.query("SELECT pgmq.update_notify_insert('mixed-case', 0)")
    await test.query("SELECT pgmq.send('mixed-case', '{}')")
    await waitFor(() => heard.length === 2)
    t.equal(heard.length, 2)
  })

  t.test(
    'when many enable it at once with different intervals, then all succeed and the last one told counts',
    async t => {
      const { test } = await setup(t)
      await test.query("SELECT pgmq.create('work')")
      await Promise.all(
        Array.from({ length: 16 }, (_, n) => test.query("SELECT pgmq.enable_notify_insert('work', $1)", [n])),
      )
      await test.query("SELECT pgmq.enable_notify_insert('work', 77)")
      t.match(await test.query('SELECT * FROM pgmq.list_notify_insert_throttles()'), [
        { queue_name: 'work', throttle_interval_ms: 77 },
      ])
      const before = await test.query(
        "SELECT xmin, oid FROM pg_trigger WHERE tgrelid = 'pgmq.q_work'::regclass",
      )
      t.equal(before.length, 1)
      await test.query("SELECT pgmq.enable_notify_insert('work', 78)")
      t.strictSame(
        await test.query("SELECT xmin, oid FROM pg_trigger WHERE tgrelid = 'pgmq.q_work'::regclass"),
        before,
        'no trigger is made again',
      )
      await test.query("SELECT pgmq.disable_notify_insert('work')")
      t.strictSame(await test.query("SELECT oid FROM pg_trigger WHERE tgrelid = 'pgmq.q_work'::regclass"), [])
      await t.rejects(test.query("SELECT pgmq.update_notify_insert('work', 5)"), { code: '55000' })
    },
  )

  t.test('when it is asked for wrongly, then the error says what to do', async t => {
    const { test } = await setup(t)
    await t.rejects(test.query("SELECT pgmq.enable_notify_insert('nothing')"), {
      message: /does not exist.*pgmq\.create/,
    })
    await test.query("SELECT pgmq.create('work')")
    await t.rejects(test.query("SELECT pgmq.enable_notify_insert('work', -1)"), { code: '22023' })
    await t.rejects(test.query("SELECT pgmq.update_notify_insert('work', -1)"), { code: '22023' })
    await t.rejects(test.query("SELECT pgmq.update_notify_insert('nothing', 1)"), {
      message: /does not exist/,
    })
  })
})
