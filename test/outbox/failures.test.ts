import pg from 'pg'
import t from 'tap'
import { setup } from '../events/support.ts'
import { createTestPgbus } from '../support/instance.ts'

const breakQueue = (name: string, when: string) => `
  CREATE FUNCTION refuse_${name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
  CREATE TRIGGER refuse BEFORE INSERT ON pgmq.q_pgbus_${name} FOR EACH ROW WHEN (${when}) EXECUTE FUNCTION refuse_${name}()`

t.test('given entries that cannot be sent', async t => {
  const bench = await setup(t)
  const { db, pgbus, rows } = bench
  const { outbox } = pgbus
  await pgbus.queues.ensure(['good', 'bad'])
  await db.query(breakQueue('bad', "new.message->>'n' <> '0'"))
  t.beforeEach(() => db.query('TRUNCATE pgbus_outbox_entries; TRUNCATE pgmq.q_pgbus_good, pgmq.q_pgbus_bad'))

  t.test('when there are 150 of them at the head, then the good ones behind are published', async t => {
    await db.query(
      "INSERT INTO pgbus_outbox_entries (queue_name, payload) SELECT 'bad', jsonb_build_object('n', n) FROM generate_series(1, 150) n",
    )
    for (let n = 0; n < 20; n += 1) await outbox.publish('good', { n })
    let published = 0
    for (let pass = 0; pass < 3; pass += 1) published += (await outbox.pass(100)).published
    t.equal(published, 20)
    t.same(
      (await rows('pgbus_good')).map(({ message }) => message.n),
      Array.from({ length: 20 }, (_, n) => n),
    )
    t.match(await outbox.entries.stats(), { waiting: 150, failing: 150 })
  })

  t.test('when one fails, then it is tried again later, each time after longer, and can be seen', async t => {
    const id = await outbox.publish('bad', { n: 1 })
    const pauses: number[] = []
    for (let attempt = 1; attempt <= 4; attempt += 1) {
      const pass = await outbox.pass(100)
      t.match(pass, {
        published: 0,
        failed: 1,
        failures: [{ id, destination: 'bad', attempts: attempt, error: 'not now' }],
      })
      t.ok(pass.nextDueMs !== null && pass.nextDueMs > 0)
      t.match(await outbox.pass(100), { published: 0, failed: 0 }, 'not before its time')
      const [row] = await db.query<{ s: number }>(
        'SELECT round(extract(epoch FROM available_at - clock_timestamp()) / 5)::int * 5 AS s FROM pgbus_outbox_entries',
      )
      pauses.push(row!.s)
      await outbox.entries.retry(id)
    }
    t.same(pauses, [5, 10, 20, 40])
    t.match(await outbox.entries.list({ failing: true }), {
      total: 1,
      entries: [{ id, queue: 'bad', routingKey: null, attempts: 4, lastError: 'not now' }],
    })
    await outbox.publish('good', { n: 1 })
    t.match(await outbox.entries.list({ failing: true }), { total: 1 })
    t.match(await outbox.entries.list(), { total: 2 })
    t.equal(await outbox.entries.retryAll(), 0)
    await outbox.entries.discard(id)
    await t.rejects(outbox.entries.discard(id), /no entry .* waits/)
    await t.rejects(outbox.entries.retry(id), /no entry .* waits/)
    t.match(await outbox.entries.stats(), { waiting: 1, failing: 0 })
  })

  t.test(
    'when one of a group fails, then the others of its group wait behind it, and only these',
    async t => {
      for (let n = 0; n < 4; n += 1) {
        await outbox.publish('bad', { n: n === 1 ? 1 : 0, step: n }, { group: 'a' })
        await outbox.publish('bad', { n: 0, step: n }, { group: 'b' })
        await outbox.publish('bad', { n: 0, step: n })
        await outbox.publish('good', { n: 0, step: n }, { group: 'a' })
      }
      const steps = async (queue: string, group: string | null) =>
        (await rows(`pgbus_${queue}`))
          .filter(({ headers }) => (headers?.['x-pgmq-group'] ?? null) === group)
          .map(({ message }) => message.step)
      t.match(await outbox.flush(), { failed: 1 })
      t.match(await outbox.flush(), { published: 0, failed: 0 })
      t.same(await steps('bad', 'a'), [0])
      t.same(await steps('bad', 'b'), [0, 1, 2, 3])
      t.same(await steps('bad', null), [0, 1, 2, 3])
      t.same(await steps('good', 'a'), [0, 1, 2, 3])
      await db.query('UPDATE pgbus_outbox_entries SET payload = payload || \'{"n":0}\'')
      t.match(await outbox.flush(), { published: 0 }, 'it still waits for its time')
      await outbox.entries.retryAll()
      t.match(await outbox.flush(), { published: 3, failed: 0 })
      t.same(await steps('bad', 'a'), [0, 1, 2, 3])
    },
  )

  t.test('when an event has a queue that fails, then none of its queues has it', async t => {
    await db.query("SELECT pgmq.bind_topic('both', 'pgbus_good'), pgmq.bind_topic('both', 'pgbus_bad')")
    await outbox.publishEvent('both', {})
    await db.query(
      'DROP TRIGGER refuse ON pgmq.q_pgbus_bad; CREATE TRIGGER refuse BEFORE INSERT ON pgmq.q_pgbus_bad FOR EACH ROW EXECUTE FUNCTION refuse_bad()',
    )
    t.match(await outbox.flush(), { published: 0, failed: 1 })
    t.same(await rows('pgbus_good'), [])
    await db.query('DROP TRIGGER refuse ON pgmq.q_pgbus_bad')
    await outbox.entries.retryAll()
    t.match(await outbox.flush(), { published: 1, failed: 0 })
    t.equal((await rows('pgbus_good')).length, 1)
    t.equal((await rows('pgbus_bad')).length, 1)
  })

  t.test('when somebody has locked a queue, then the others are served', async t => {
    await outbox.publish('bad', { n: 0 })
    await outbox.publish('good', { n: 0 })
    const client = new pg.Client({ connectionString: db.url })
    await client.connect()
    t.teardown(() => client.end())
    await client.query('BEGIN; LOCK TABLE pgmq.q_pgbus_bad')
    t.match(await outbox.flush(), { published: 1, failed: 1 })
    await client.query('ROLLBACK')
    await outbox.entries.retryAll()
    t.match(await outbox.flush(), { published: 1, failed: 0 })
  })
})

t.test('given several pollers', async t => {
  const bench = await setup(t)
  const { db, pgbus, rows } = bench
  const others = [1, 2, 3].map(() => createTestPgbus(t, db))

  t.test('when they publish at once, then each entry once, and in order', async t => {
    await db.query(
      "INSERT INTO pgbus_outbox_entries (queue_name, payload) SELECT 'many', jsonb_build_object('n', n) FROM generate_series(1, 2000) n",
    )
    const work = async (instance: typeof pgbus) => {
      while ((await instance.outbox.entries.stats()).waiting > 0) await instance.outbox.pass(50)
    }
    await Promise.all([pgbus, ...others].map(work))
    t.same(
      (await rows('pgbus_many')).map(({ message }) => message.n),
      Array.from({ length: 2_000 }, (_, n) => n + 1),
    )
  })

  t.test('when one is at it, then another does nothing and says so', async t => {
    await pgbus.outbox.publish('many', 1)
    const client = new pg.Client({ connectionString: db.url })
    await client.connect()
    t.teardown(() => client.end())
    await client.query("BEGIN; SELECT * FROM pgbus_outbox_flush(10, 'pgbus_', 1, true)")
    t.match(await pgbus.outbox.pass(10), { published: 0, failed: 0, more: false })
    await client.query('ROLLBACK')
    t.match(await pgbus.outbox.pass(10), { published: 1 })
  })
})
