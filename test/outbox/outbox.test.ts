import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { handled, recorder, setup } from '../events/support.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'

const seen = recorder<{ n: number }>()
defineHandler<{ n: number }>({ name: 'Seen', on: 'outbox.exact' }, seen.handle)
defineJob({ name: 'plain' }, () => undefined)
const unique = { strategy: 'untilExecuted', key: (args: unknown) => String(args) } as const
for (const onConflict of ['reject', 'discard', 'replace'] as const) {
  defineJob({ name: `unique-${onConflict}`, unique: { ...unique, onConflict } }, () => undefined)
}

t.test('given an outbox', async t => {
  const bench = await setup(t)
  const { db, pgbus, rows } = bench
  const { outbox } = pgbus

  t.test('when entries are written, then they wait until somebody publishes them', async t => {
    await pgbus.events.setup()
    await outbox.publish('mail', { a: 1 }, { headers: { h: 1 } })
    await outbox.publish('mail', [2])
    await outbox.publishEvent('outbox.exact', { n: 1 }, { eventId: 'e1', headers: { h: 2 } })
    await outbox.enqueue('plain', { n: 2 }, { jobId: 'j1', queue: 'jobs' })
    t.match(await outbox.entries.stats(), { waiting: 4, failing: 0 })
    t.same(await db.query("SELECT 1 FROM pgmq.meta WHERE queue_name = 'pgbus_mail'"), [])
    t.same(await outbox.flush(), { published: 4, failed: 0 })
    t.same(await outbox.flush(), { published: 0, failed: 0 })
    t.same(
      (await rows('pgbus_mail')).map(({ message, headers }) => [message, headers]),
      [
        [{ a: 1 }, { h: 1 }],
        [[2], null],
      ],
    )
    t.match(await rows('pgbus_jobs'), [
      { message: { job_class: 'plain', job_id: 'j1', arguments: [{ n: 2 }] } },
    ])
    t.match(await rows('pgbus_seen'), [
      { message: { event_id: 'e1', routing_key: 'outbox.exact', payload: { n: 1 } }, headers: { h: 2 } },
    ])
    await bench.consume()
    await handled(bench, 'seen')
    t.match(seen.events, [{ id: 'e1', routingKey: 'outbox.exact' }])
    t.match(await outbox.entries.stats(), { waiting: 0, oldestAge: null })
  })

  t.test('when rows are inserted by hand, from any time zone, then they are published as well', async t => {
    seen.events.length = 0
    await db.query(`SET timezone TO 'Asia/Tokyo';
      INSERT INTO pgbus_outbox_entries (routing_key, payload) VALUES ('outbox.exact', '{"n":7}'), ('outbox.exact', '8');
      INSERT INTO pgbus_outbox_entries (routing_key, payload) VALUES ('outbox.exact', '{"event_id":"theirs","payload":{"n":9}}');
      INSERT INTO pgbus_outbox_entries (queue_name, payload, delay) VALUES ('Mail', '{"b":1}', 3600); RESET timezone`)
    t.ok((await outbox.entries.stats()).oldestAge! < 60_000)
    t.same(await outbox.flush(), { published: 4, failed: 0 })
    await handled(bench, 'seen')
    t.same(
      seen.events.map(({ payload }) => payload),
      [{ n: 7 }, { value: 8 }, { n: 9 }],
    )
    t.equal(seen.events[2]?.id, 'theirs')
    t.match((await rows('pgbus_mail')).at(-1), { message: { b: 1 }, hidden: true })
    await t.rejects(
      db.query("INSERT INTO pgbus_outbox_entries (queue_name, routing_key, payload) VALUES ('a', 'b', '1')"),
      { code: '23514' },
    )
    await t.rejects(db.query("INSERT INTO pgbus_outbox_entries (payload) VALUES ('1')"), { code: '23514' })
  })

  t.test('when they are delayed, then that counts from the insert', async t => {
    await outbox.publish('later', 1, { delay: '1h' })
    await outbox.publish('later', 2, { delay: 1 })
    await outbox.enqueue('plain', 3, { queue: 'later', runAt: new Date(Date.now() + 3_600_000) })
    await outbox.publishEvent('outbox.exact', { n: 1 }, { delay: new Date(Date.now() + 3_600_000) })
    await outbox.flush()
    t.same(
      (await rows('pgbus_later')).map(row => row.hidden),
      [true, false, true],
    )
    const [{ minutes }] = (await db.query(
      "SELECT round(extract(epoch FROM vt - clock_timestamp()) / 60)::int AS minutes FROM pgmq.q_pgbus_later WHERE message = '1'",
    )) as [{ minutes: number }]
    t.equal(minutes, 60)
    t.equal((await rows('pgbus_seen')).filter(row => row.hidden).length, 1)
  })

  t.test('when what is published is unique, then its rule is applied at that time', async t => {
    await pgbus.enqueue('unique-reject', 'a')
    const ids = [
      await outbox.enqueue('unique-reject', 'a'),
      await outbox.enqueue('unique-discard', 'a'),
      await outbox.enqueue('unique-discard', 'a'),
      await outbox.enqueue('unique-reject', 'b'),
      await outbox.enqueue('unique-reject', 'b'),
    ]
    t.same(await outbox.flush(), { published: 5, failed: 0 })
    const jobs = (await rows()).map(({ message }) => [message.job_class, (message.arguments as unknown[])[0]])
    t.same(jobs, [
      ['unique-reject', 'a'],
      ['unique-discard', 'a'],
      ['unique-reject', 'b'],
    ])
    const notes = await db.query<{ last_error: string | null }>(
      'SELECT last_error FROM pgbus_outbox_entries WHERE id = ANY ($1) ORDER BY id',
      [ids],
    )
    t.match(
      notes.map(row => row.last_error),
      [/^left out: .* message 1 of queue "pgbus_default"$/, null, 'left out: duplicate', null, /^left out/],
    )
    t.equal((await db.query('SELECT 1 FROM pgbus_uniqueness_keys')).length, 3, 'no lock without a job')
  })

  t.test('when something is wrong, then it is refused before any SQL', async t => {
    const away = createTestPgbus(t, { url: 'postgres://127.0.0.1:1/none' }).outbox
    for (const [call, rule] of [
      [() => away.publish('a-b', 1), { code: 'PGBUS_ERR_INVALID_QUEUE_NAME' }],
      [() => away.publish('a', 1, { colour: 1 } as never), /unknown option "colour"/],
      [() => away.publish('a', 1, { priority: -1 }), /priority/],
      [() => away.publish('a', 1, { delay: 'soon' as never }), /delay/],
      [() => away.publish('a', new Date() as never), { code: 'PGBUS_ERR_SERIALIZATION' }],
      [() => away.publish('a', 1, { tx: new pg.Pool() }), /not a Pool/],
      [() => away.publishEvent('a..b', 1), /routing key/],
      [() => away.publishEvent('a', 1, { mandatory: true } as never), /unknown option "mandatory"/],
      [() => away.enqueue('', 1), /job/],
      [() => away.enqueue('plain', () => 1), { code: 'PGBUS_ERR_SERIALIZATION' }],
      [() => away.flush({ max: 0 }), /max/],
    ] as [() => Promise<unknown>, RegExp][])
      await t.rejects(call(), rule)
  })

  t.test('when nobody is there to publish, then that is said once', async t => {
    const lines = bench.lines.filter(({ message }) => /no poller is registered/.test(message))
    t.equal(lines.length, 1)
  })
})

t.test('given a job of which so many may be at a time', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const gate = deferred()
  let running = 0
  let most = 0
  let done = 0
  defineJob({ name: 'limited', concurrency: { limit: 2 } }, async () => {
    running += 1
    most = Math.max(most, running)
    await gate.promise
    running -= 1
    done += 1
  })
  defineJob({ name: 'raises', concurrency: { limit: 1, onConflict: 'raise' } }, () => undefined)
  await bench.work()

  t.test('when it is published, then the limit holds', async t => {
    for (let n = 0; n < 4; n += 1) await pgbus.outbox.enqueue('limited', n)
    await pgbus.outbox.flush()
    await waitFor(async () => (await bench.db.query('SELECT 1 FROM pgbus_blocked_executions')).length === 2)
    t.equal(running, 2)
    gate.resolve()
    await waitFor(() => done === 4)
    t.equal(most, 2)
    await t.rejects(pgbus.outbox.enqueue('raises', 1), /cannot be decided through the outbox/)
  })
})

t.test('given priorities', async t => {
  const bench = await setup(t, { priority: { levels: 3, default: 1 } })
  const { outbox } = bench.pgbus

  t.test('when entries are published, then each is in the table of its priority, 0 included', async t => {
    const written: [priority: number | undefined, headers: Record<string, number> | undefined][] = [
      [0, undefined],
      [0, { h: 1 }],
      [2, { h: 2 }],
      [9, undefined],
      [undefined, { h: 3 }],
    ]
    for (const [index, [priority, headers]] of written.entries())
      await outbox.publish('mail', { index }, { priority, headers })
    await outbox.enqueue('plain', 1, { queue: 'mail', priority: 0 })
    const check = async () => {
      const found = async (level: number) =>
        (await bench.rows(`pgbus_mail_p${level}`)).map(({ message, headers }) => [message.index, headers])
      t.same(await found(0), [
        [0, null],
        [1, { h: 1 }],
        [undefined, null],
      ])
      t.same(await found(1), [[4, { h: 3 }]])
      t.same(await found(2), [
        [2, { h: 2 }],
        [3, null],
      ])
    }
    await outbox.flush()
    await check()
    // Once more with one among them that cannot be sent: then each is sent by itself.
    await bench.db.query(`TRUNCATE pgmq.q_pgbus_mail_p0, pgmq.q_pgbus_mail_p1, pgmq.q_pgbus_mail_p2;
      UPDATE pgbus_outbox_entries SET published_at = NULL;
      INSERT INTO pgbus_outbox_entries (queue_name, payload) VALUES ('not allowed!', '1')`)
    t.same(await outbox.flush(), { published: 6, failed: 1 })
    await check()
  })
})

t.test('given a transaction of the application', async t => {
  const bench = await setup(t)
  const { db, pgbus } = bench
  const { outbox } = pgbus
  await db.query('CREATE TABLE orders (id int)')
  await pgbus.queues.ensure('mail')
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  t.teardown(() => client.end())
  const write = async () => {
    await client.query('INSERT INTO orders VALUES (1)')
    await outbox.publish('mail', 1, { tx: client })
    await outbox.publishEvent('outbox.exact', { n: 1 }, { tx: client })
    await outbox.enqueue('plain', 1, { tx: client, queue: 'mail' })
  }
  const state = async () => {
    const { published } = await outbox.flush()
    return [
      (await db.query('SELECT 1 FROM orders')).length,
      published,
      (await bench.rows('pgbus_mail')).length,
    ]
  }
  t.afterEach(() => db.query('TRUNCATE orders, pgbus_outbox_entries; TRUNCATE pgmq.q_pgbus_mail'))

  t.test('when it commits, then all is there once', async t => {
    await client.query('BEGIN')
    await write()
    t.same(await state(), [0, 0, 0])
    await client.query('COMMIT')
    t.same(await state(), [1, 3, 2])
    t.same(await state(), [1, 0, 2])
  })

  t.test('when it rolls back, wholly or to a savepoint, or breaks, then nothing is', async t => {
    await client.query('BEGIN')
    await write()
    await client.query('ROLLBACK')
    t.same(await state(), [0, 0, 0])
    await client.query('BEGIN; SAVEPOINT s')
    await write()
    await client.query('ROLLBACK TO s; COMMIT')
    t.same(await state(), [0, 0, 0])
    await client.query('BEGIN')
    await write()
    await client.query('SELECT 1 / 0').catch(() => undefined)
    await t.rejects(outbox.publish('mail', 1, { tx: client }), { code: '25P02' })
    await client.query('COMMIT')
    t.same(await state(), [0, 0, 0])
  })

  t.test('when its role has no right on queues, then it may write to the outbox all the same', async t => {
    // Roles are shared by all databases of the server.
    const role = `writer_${db.name}`
    await db.query(`CREATE ROLE ${role}; GRANT INSERT, SELECT (id) ON pgbus_outbox_entries TO ${role};
      GRANT USAGE ON SEQUENCE pgbus_outbox_entries_id_seq TO ${role}`)
    try {
      await client.query(`BEGIN; SET LOCAL ROLE ${role}`)
      await t.rejects(
        client.query("SAVEPOINT s; INSERT INTO pgmq.q_pgbus_mail (vt, message) VALUES (now(), '1')"),
        { code: '42501' },
      )
      await client.query('ROLLBACK TO s')
      await outbox.publish('mail', 1, { tx: client })
      await client.query('COMMIT')
      t.same(await state(), [0, 1, 1])
    } finally {
      await client.query('ROLLBACK')
      await db.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
    }
  })
})

t.test('given a database that was not migrated', async t => {
  const bench = await setup(t)
  await bench.db.query('DROP TABLE pgbus_outbox_entries CASCADE')
  t.test('when it is used, then it is said what to do', async t => {
    const missing = { code: 'PGBUS_ERR_SCHEMA_NOT_READY', message: /011_outbox\.sql/ }
    await t.rejects(bench.pgbus.outbox.publish('mail', 1), missing)
    await t.rejects(bench.pgbus.outbox.flush(), missing)
  })
})
