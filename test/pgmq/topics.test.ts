import t from 'tap'
import { createDatabase } from '../support/database.ts'
import { openSession } from './setup.ts'

/** Topics by SQL: which queues receive what is sent to a routing key. */

t.test('given topics', async t => {
  const test = await createDatabase(t)
  for (const name of ['one', 'two', 'Three']) await test.query('SELECT pgmq.create($1)', [name])
  const lengths = async () =>
    (
      await test.query<{ queue_name: string; queue_length: string }>(
        'SELECT queue_name, queue_length FROM pgmq.metrics_all()',
      )
    ).map(row => `${row.queue_name} ${row.queue_length}`)
  t.afterEach(() =>
    test.query(
      'DELETE FROM pgmq.topic_bindings; TRUNCATE pgmq.q_one RESTART IDENTITY; TRUNCATE pgmq.q_two RESTART IDENTITY',
    ),
  )

  t.test('when keys are matched, then each pattern takes exactly what the interface says', async t => {
    const table: [pattern: string, matches: string[], others: string[]][] = [
      ['orders', ['orders'], ['orders.created', 'Orders', 'xorders', 'ordersx']],
      ['orders.*', ['orders.created'], ['orders', 'orders.line.added', 'ordersXcreated']],
      ['orders.#', ['orders.created', 'orders.line.added'], ['orders']],
      ['#.error', ['app.error', 'x.y.error'], ['error']],
      ['a.#.b', ['a.c.b', 'a.c.d.b'], ['a.b']],
      ['*.b', ['a.b'], ['a.a.b', 'b']],
      ['#', ['a', 'a.b', 'A-1_.x'.replace('.x', '')], []],
      ['lo*gs', ['loXgs'], ['logs', 'lo.gs']],
      ['x#', ['x', 'x1', 'x.y'], ['y']],
    ]
    for (const [pattern, matches, others] of table) {
      await test.query("SELECT pgmq.bind_topic($1, 'one')", [pattern])
      for (const key of [...matches, ...others]) {
        const found = await test.query('SELECT * FROM pgmq.test_routing($1)', [key])
        t.equal(found.length, matches.includes(key) ? 1 : 0, `${pattern} and ${key}`)
      }
      await test.query('DELETE FROM pgmq.topic_bindings')
    }
  })

  t.test('when keys and patterns are checked, then bad ones are refused', async t => {
    const bad = ['', '.a', 'a.', 'a..b', 'a b', 'a!', 'ä', 'x'.repeat(256), 'a\n', null]
    for (const text of [...bad, 'a.*', '#']) {
      await t.rejects(
        test.query('SELECT pgmq.validate_routing_key($1)', [text]),
        { code: '22023' },
        `key ${text}`,
      )
    }
    for (const text of [...bad, '**', '##', '*#', 'a.#*']) {
      await t.rejects(
        test.query('SELECT pgmq.validate_topic_pattern($1)', [text]),
        { code: '22023' },
        `pattern ${text}`,
      )
    }
    for (const text of ['a', 'a.b-c_d.0', 'x'.repeat(255)]) {
      t.strictSame(await test.query('SELECT pgmq.validate_routing_key($1) AS ok', [text]), [{ ok: true }])
    }
    for (const text of ['*', '#', 'a.*.#', 'lo*gs', 'x#']) {
      t.strictSame(await test.query('SELECT pgmq.validate_topic_pattern($1) AS ok', [text]), [{ ok: true }])
    }
  })

  t.test(
    'when queues are bound, then once per pattern, in any spelling, and only queues that exist',
    async t => {
      await test.query(
        "SELECT pgmq.bind_topic('a.*', 'one'), pgmq.bind_topic('a.*', 'ONE'), pgmq.bind_topic('#', 'tHREE')",
      )
      t.strictSame(
        await test.query('SELECT pattern, queue_name FROM pgmq.list_topic_bindings() ORDER BY 1'),
        [
          { pattern: '#', queue_name: 'three' },
          { pattern: 'a.*', queue_name: 'one' },
        ],
      )
      t.equal((await test.query("SELECT * FROM pgmq.list_topic_bindings('One')")).length, 1)
      await t.rejects(test.query("SELECT pgmq.bind_topic('a', 'nothing')"), {
        message: /does not exist.*pgmq\.create/,
      })
      await t.rejects(test.query("SELECT pgmq.bind_topic('a..b', 'one')"), { code: '22023' })
      t.strictSame(
        await test.query("SELECT pgmq.unbind_topic('a.*', 'one') AS a, pgmq.unbind_topic('a.*', 'one') AS b"),
        [{ a: true, b: false }],
      )
    },
  )

  t.test('when a queue is dropped, then its bindings go with it', async t => {
    await test.query("SELECT pgmq.create('gone'), pgmq.bind_topic('#', 'gone')")
    await test.query("SELECT pgmq.drop_queue('gone')")
    t.strictSame(await test.query("SELECT pgmq.send_topic('a', '{}') AS n"), [{ n: 0 }])
  })

  t.test(
    'when something is sent, then every matching queue gets it once, however many patterns match',
    async t => {
      await test.query(
        "SELECT pgmq.bind_topic('a.*', 'one'), pgmq.bind_topic('#', 'one'), pgmq.bind_topic('a.b', 'two'), pgmq.bind_topic('x', 'three')",
      )
      t.strictSame(await test.query(`SELECT pgmq.send_topic('a.b', '{"n":1}', '{"h":1}', 60) AS n`), [
        { n: 2 },
      ])
      t.strictSame(await test.query("SELECT pgmq.send_topic('a.b', '{}') AS n"), [{ n: 2 }])
      t.strictSame(await test.query("SELECT pgmq.send_topic('a.b', '{}', 5) AS n"), [{ n: 2 }])
      t.strictSame(await lengths(), ['one 3', 'three 0', 'two 3'])
      t.match(await test.query('SELECT *, vt > now() AS delayed FROM pgmq.q_two ORDER BY msg_id LIMIT 1'), [
        { message: { n: 1 }, headers: { h: 1 }, delayed: true },
      ])
    },
  )

  t.test('when a batch is sent, in any form, then ids come back by queue and in order', async t => {
    await test.query("SELECT pgmq.bind_topic('#', 'two'), pgmq.bind_topic('#', 'one')")
    const messages = `ARRAY['{"n":1}', '{"n":2}']::jsonb[]`
    const headers = `ARRAY['{"h":1}', null]::jsonb[]`
    const forms = ['', ', 5', ', now()', `, ${headers}`, `, ${headers}, 5`, `, ${headers}, now()`]
    for (const [at, form] of forms.entries()) {
      t.strictSame(
        await test.query(
          `SELECT queue_name, msg_id::int AS id FROM pgmq.send_batch_topic('a.b', ${messages}${form})`,
        ),
        ['one', 'two'].flatMap(queue_name => [1, 2].map(n => ({ queue_name, id: at * 2 + n }))),
        `send_batch_topic${form}`,
      )
    }
    t.strictSame(
      await test.query('SELECT headers, (vt > now())::int AS d FROM pgmq.q_one ORDER BY msg_id DESC LIMIT 4'),
      [
        { headers: null, d: 0 },
        { headers: { h: 1 }, d: 0 },
        { headers: null, d: 1 },
        { headers: { h: 1 }, d: 1 },
      ],
    )
  })

  t.test('when what is sent is not right, then nothing is sent anywhere', async t => {
    await test.query("SELECT pgmq.bind_topic('#', 'one'), pgmq.bind_topic('#', 'two')")
    for (const call of [
      "pgmq.send_topic('a.', '{}')",
      "pgmq.send_topic('a', null)",
      "pgmq.send_topic('a', '{}', -1)",
      "pgmq.send_batch_topic('a', '{}'::jsonb[])",
      "pgmq.send_batch_topic('a', null::jsonb[])",
      "pgmq.send_batch_topic('a', ARRAY['{}']::jsonb[], ARRAY[null, null]::jsonb[])",
    ]) {
      await t.rejects(test.query(`SELECT ${call}`), /./, call)
    }
    const session = await openSession(t, test.url)
    await session.query('BEGIN; DROP TABLE pgmq.q_two')
    await t.rejects(session.query("SELECT pgmq.send_topic('a', '{}')"), { code: '42P01' })
    await session.query('ROLLBACK')
    t.strictSame(await lengths(), ['one 0', 'three 0', 'two 0'])
  })
})

t.test('given partitions', async t => {
  const test = await createDatabase(t)

  t.test('when pg_partman is not installed, then that is said and nothing is left behind', async t => {
    await test.query("SELECT pgmq.create('plain')")
    await t.rejects(test.query("SELECT pgmq.create_partitioned('parts')"), { message: /pg_partman/ })
    await t.rejects(test.query("SELECT pgmq.convert_archive_partitioned('plain')"), { message: /pg_partman/ })
    t.strictSame(
      await test.query(
        "SELECT relname FROM pg_class WHERE relname ~ '^[aq]_(parts|plain)(_old)?$' ORDER BY 1",
      ),
      [{ relname: 'a_plain' }, { relname: 'q_plain' }],
    )
    await test.query("SELECT pgmq.create_partitioned('plain'), pgmq.convert_archive_partitioned('nothing')")
  })
})
