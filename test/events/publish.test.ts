import pg from 'pg'
import t from 'tap'
import { uuidV7 } from '../../lib/core/uuid.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { handled, recorder, setup } from './support.ts'

const one = recorder<{ n: number }>()
const two = recorder<{ n: number }>()
defineHandler<{ n: number }>({ name: 'One', on: ['items.*', 'items.#'] }, one.handle)
defineHandler<{ n: number }>({ name: 'Two', on: '*.made' }, two.handle)

t.test('given bound handlers', async t => {
  const bench = await setup(t)
  const { pgbus, db, rows } = bench
  const clear = () => db.query('DELETE FROM pgmq.q_pgbus_one; DELETE FROM pgmq.q_pgbus_two')
  await pgbus.events.setup()
  await pgbus.events.setup()
  t.afterEach(clear)

  t.test('when events are published, then each queue with a pattern that matches has one copy', async t => {
    t.equal((await pgbus.publish('items.made', { n: 1 })).queues, 2)
    t.equal((await pgbus.publish('items.x.y', { n: 2 })).queues, 1)
    t.same(await pgbus.publish('nobody', { n: 3 }, { eventId: 'mine' }), { eventId: 'mine', queues: 0 })
    t.equal((await rows('pgbus_one')).length, 2)
    t.equal((await rows('pgbus_two')).length, 1)
    const [row] = await rows('pgbus_two')
    t.match(row?.message, {
      event_id: /^[0-9a-f-]{36}$/,
      routing_key: 'items.made',
      payload: { n: 1 },
      published_at: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}000Z$/,
    })
  })

  t.test('when many are published, then in list order, each with its own options', async t => {
    const results = await pgbus.publishMany([
      { routingKey: 'items.a', payload: { n: 1 }, headers: { h: 1 } },
      { routingKey: 'nobody', payload: null },
      { routingKey: 'items.made', payload: { n: 2 }, delay: '1h', group: 'g' },
      { routingKey: 'items.b', payload: { n: 3 }, delay: new Date(0), eventId: 'e3' },
    ])
    t.same(
      results.map(result => result.queues),
      [1, 0, 2, 1],
    )
    const stored = await rows('pgbus_one')
    t.same(
      stored.map(({ message, headers, hidden }) => [(message.payload as { n: number }).n, headers, hidden]),
      [
        [1, { h: 1 }, false],
        [2, { 'x-pgmq-group': 'g' }, true],
        [3, null, false],
      ],
    )
    t.equal(stored[2]?.message.event_id, 'e3')
    t.same(await pgbus.publishMany([]), [])
    const many = Array.from({ length: 1_500 }, (_, n) => ({ routingKey: 'items.a', payload: { n } }))
    t.equal((await pgbus.publishMany(many)).length, 1_500)
  })

  t.test('when nobody wants one that is mandatory, then that fails and nothing is published', async t => {
    await t.rejects(pgbus.publish('nobody', {}, { mandatory: true }), {
      code: 'PGBUS_ERR_UNROUTABLE_EVENT',
      message: /"nobody"/,
    })
    const items = [
      { routingKey: 'items.a', payload: {} },
      { routingKey: 'nobody', payload: {}, mandatory: true },
    ]
    await t.rejects(pgbus.publishMany(items), { code: 'PGBUS_ERR_UNROUTABLE_EVENT' })
    t.same(await rows('pgbus_one'), [])
  })

  t.test('when one of the queues cannot be written, then none has it', async t => {
    await db.query('ALTER TABLE pgmq.q_pgbus_two RENAME TO q_away')
    await t.rejects(pgbus.publish('items.made', {}))
    t.same(await rows('pgbus_one'), [])
    await db.query('ALTER TABLE pgmq.q_away RENAME TO q_pgbus_two')
  })

  t.test('when something is wrong, then it is refused before any SQL', async t => {
    const closed = createTestPgbus(t, { url: 'postgres://localhost:1/none' })
    for (const [args, rule] of [
      [['a..b', {}], /a routing key is/],
      [['a.*', {}], /a routing key is/],
      [['a', {}, { colour: 1 }], /publish of "a": unknown option "colour"/],
      [['a', {}, { eventId: '' }], /eventId/],
      [['a', {}, { eventId: 'x'.repeat(256) }], /eventId/],
      [['a', {}, { delay: 'soon' }], /delay/],
      [['a', {}, { delay: new Date(Number.NaN) }], /delay/],
      [['a', {}, { headers: [] }], /headers/],
      [['a', {}, { tx: new pg.Pool() }], /not a Pool/],
      [['a', {}, { mandatory: 1 }], /mandatory/],
    ] as [[string, unknown, object?], RegExp][]) {
      await t.rejects(closed.publish(args[0], args[1], args[2]), { name: 'TypeError', message: rule })
    }
    await t.rejects(closed.publish('a', {}, { delay: '200y' as never }), /delay/)
    await t.rejects(closed.publish('a', { f: () => 1 }), {
      code: 'PGBUS_ERR_SERIALIZATION',
      message: /payload\.f/,
    })
    await t.rejects(closed.publish('a', { n: Number.NaN }), { code: 'PGBUS_ERR_SERIALIZATION' })
    await t.rejects(closed.publishLater('a', {}, {} as never), /publishLater needs a delay/)
    await t.rejects(closed.publishMany([{ routingKey: 'a', payload: 1, tx: {} } as never]), /give tx once/)
    await t.rejects(closed.publishMany('a' as never), /array/)
  })
})

t.test('given a transaction of the application', async t => {
  const bench = await setup(t)
  const { pgbus, db, rows } = bench
  await db.query('CREATE TABLE orders (id int)')
  await pgbus.events.setup()
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  t.teardown(() => client.end())
  const begin = async () => {
    await client.query('BEGIN')
    await client.query('INSERT INTO orders VALUES (1)')
  }
  const both = async () => [(await db.query('SELECT * FROM orders')).length, (await rows('pgbus_one')).length]
  t.afterEach(() =>
    db.query('DELETE FROM orders; DELETE FROM pgmq.q_pgbus_one; DELETE FROM pgmq.q_pgbus_two'),
  )

  t.test('when it commits, then its events are there with its rows; nothing before', async t => {
    await begin()
    await pgbus.publish('items.made', { n: 1 }, { tx: client })
    await pgbus.publishMany([{ routingKey: 'items.a', payload: {} }], { tx: client })
    t.same(await both(), [0, 0])
    await client.query('COMMIT')
    t.same(await both(), [1, 2])
  })

  t.test('when it rolls back, then neither is there; nor after a savepoint, for what came since', async t => {
    await begin()
    await pgbus.publish('items.made', { n: 1 }, { tx: client })
    await client.query('ROLLBACK')
    t.same(await both(), [0, 0])
    await begin()
    await client.query('SAVEPOINT s')
    await pgbus.publish('items.made', { n: 1 }, { tx: client })
    await client.query('ROLLBACK TO s')
    await client.query('COMMIT')
    t.same(await both(), [1, 0])
  })

  t.test('when it is broken, then the caller is told and nothing is there', async t => {
    await begin()
    await client.query('SELECT 1 / 0').catch(() => undefined)
    await t.rejects(pgbus.publish('items.made', {}, { tx: client }), { code: '25P02' })
    await client.query('COMMIT')
    t.same(await both(), [0, 0])
  })

  t.test('when nobody listens yet, then its consumer gets the event after the commit', async t => {
    const settings = () => client.query('SHOW ALL').then(({ rows: all }) => all)
    const before = await settings()
    await begin()
    await pgbus.publish('items.made', { n: 5 }, { tx: client })
    await bench.consume()
    await client.query('COMMIT')
    await handled(bench, 'one', 'two')
    t.same(
      two.events.map(({ payload }) => payload.n),
      [5],
    )
    t.same(await settings(), before, 'settings of the client are what they were')
  })
})

t.test('given a connection that breaks', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench
  await pgbus.events.setup()

  t.test('when that happens during a publish, then it is not repeated: the caller decides', async t => {
    const client = new pg.Client({ connectionString: db.url })
    await client.connect()
    t.teardown(() => client.end())
    await client.query('BEGIN; LOCK TABLE pgmq.q_pgbus_one')
    const published = pgbus.publish('items.a', { n: 1 }, { eventId: 'once' })
    published.catch(() => undefined)
    const waiting = () =>
      db.query<{ pid: number }>(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus' AND wait_event_type = 'Lock'",
      )
    await waitFor(async () => (await waiting()).length === 1)
    await db.query('SELECT pg_terminate_backend($1)', [(await waiting())[0]?.pid])
    await t.rejects(published, { code: '57P01' })
    await client.query('COMMIT')
    t.same(await bench.rows('pgbus_one'), [])
    await pgbus.publish('items.a', { n: 1 }, { eventId: 'once' })
    t.equal((await bench.rows('pgbus_one')).length, 1)
  })
})

t.test('given ids', async t => {
  t.test('when made later, then they sort later, and carry version and variant', async t => {
    t.match(uuidV7(0), /^00000000-0000-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    t.ok(uuidV7(1_000) < uuidV7(2_000))
    t.not(uuidV7(1), uuidV7(1))
  })
})
