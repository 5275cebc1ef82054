import { readFile } from 'node:fs/promises'
import t from 'tap'
import { migrationsFolder } from '../../lib/db/migration-files.ts'
import { createDatabase, type TestDatabase } from '../support/database.ts'
import { openSession } from './setup.ts'

/** The SQL interface that other clients call. */

function ids(rows: { id: string }[]): number[] {
  return rows.map(row => Number(row.id))
}

async function queue(test: TestDatabase, name = 'work'): Promise<void> {
  await test.query('SELECT pgmq.create($1)', [name])
}

t.test('given the functions that were installed', async t => {
  const test = await createDatabase(t)

  t.test('when they are compared with the list that upgrades go by, then both agree', async t => {
    const text = await readFile(`${migrationsFolder}/R__pgmq_functions.sql`, 'utf8')
    const listed = [
      ...text
        .slice(text.indexOf('wanted constant text[]'))
        .split('];')[0]!
        .matchAll(/^\s+'(.*?)',?$/gm),
    ].map(m => m[1]!.replaceAll("''", "'"))
    const installed = await test.query<{ line: string }>(
      `SELECT format('%s(%s) -> %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid)) AS line
         FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace`,
    )
    t.strictSame(installed.map(row => row.line).sort(), listed.sort())
    t.equal(listed.length, 78)
  })

  t.test('when any is looked at, then its search path is fixed', async t => {
    t.strictSame(
      await test.query(
        `SELECT proname FROM pg_proc WHERE pronamespace = 'pgmq'::regnamespace AND NOT coalesce(proconfig::text LIKE '%search_path=pgmq, pg_catalog, pg_temp%', false)`,
      ),
      [],
    )
    const own = await test.query<{ proname: string }>(
      `SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'pgbus\\_%' AND NOT coalesce(proconfig::text LIKE '%search_path=%public%, pg_temp%', false) ORDER BY proname`,
    )
    t.strictSame(
      own.map(row => row.proname),
      ['pgbus_is_tracked', 'pgbus_notify_insert', 'pgbus_outbox_group'],
      'which names no object, or each in full; a setting would keep the first and the last from being inlined',
    )
  })

  t.test(
    'when the records they return are looked at, then attributes are in the order of the interface',
    async t => {
      const rows = await test.query<{ name: string; attributes: string }>(
        `SELECT t.typname AS name, string_agg(a.attname, ' ' ORDER BY a.attnum) AS attributes FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
        WHERE t.typname IN ('message_record', 'queue_record', 'metrics_result') AND a.attnum > 0 GROUP BY 1 ORDER BY 1`,
      )
      t.strictSame(rows, [
        { name: 'message_record', attributes: 'msg_id read_ct enqueued_at last_read_at vt message headers' },
        {
          name: 'metrics_result',
          attributes:
            'queue_name queue_length newest_msg_age_sec oldest_msg_age_sec total_messages scrape_time queue_visible_length',
        },
        { name: 'queue_record', attributes: 'queue_name is_partitioned is_unlogged created_at' },
      ])
    },
  )
})

t.test('given queues by SQL', async t => {
  const test = await createDatabase(t)

  t.test('when one is created twice, in any spelling, then there is one queue', async t => {
    await queue(test, 'My-Queue')
    await queue(test, 'my-queue')
    await queue(test, 'My-Queue')
    t.match(await test.query('SELECT * FROM pgmq.list_queues()'), [
      { queue_name: 'my-queue', is_unlogged: false, is_partitioned: false },
    ])
    t.equal((await test.query('SELECT 1 FROM pgmq.list_queues()')).length, 1)
    t.strictSame(await test.query("SELECT pgmq.drop_queue('MY-queue') AS dropped"), [{ dropped: true }])
    t.strictSame(await test.query('SELECT 1 FROM pgmq.meta'), [])
    t.strictSame(await test.query("SELECT pgmq.drop_queue('MY-queue') AS dropped"), [{ dropped: false }])
  })

  t.test('when a name is bad, then it is refused', async t => {
    for (const name of ['', 'a;b', 'a$b', "a'b", 'a--b', 'x'.repeat(48)]) {
      await t.rejects(queue(test, name), { code: '22023' }, name)
    }
    await queue(test, 'x'.repeat(47))
    await queue(test, 'with space "and quotes')
    t.strictSame(ids(await test.query("SELECT pgmq.send('with space \"and quotes', '{}') AS id")), [1])
    t.strictSame(await test.query("SELECT pgmq.format_table_name('AbC', 'q') AS name"), [{ name: 'q_abc' }])
  })

  t.test(
    'when an unlogged one is created, then its archive is logged, and creating it again keeps its kind',
    async t => {
      await test.query("SELECT pgmq.create_unlogged('fast')")
      await queue(test, 'fast')
      t.strictSame(
        await test.query(
          "SELECT relname, relpersistence AS p FROM pg_class WHERE relname IN ('q_fast', 'a_fast') ORDER BY 1",
        ),
        [
          { relname: 'a_fast', p: 'p' },
          { relname: 'q_fast', p: 'u' },
        ],
      )
      t.match(await test.query("SELECT is_unlogged FROM pgmq.meta WHERE queue_name = 'fast'"), [
        { is_unlogged: true },
      ])
    },
  )

  t.test(
    'when a table was dropped by hand, then drop_queue removes the row that is left and metrics_all goes on',
    async t => {
      await queue(test, 'broken')
      await test.query('DROP TABLE pgmq.q_broken')
      t.ok((await test.query('SELECT * FROM pgmq.metrics_all()')).length > 0)
      await test.query("SELECT pgmq.drop_queue('broken')")
      t.strictSame(await test.query("SELECT 1 FROM pgmq.meta WHERE queue_name = 'broken'"), [])
    },
  )

  t.test('when it is measured and purged, then the numbers are right and ids go on', async t => {
    await queue(test, 'counted')
    t.match(await test.query("SELECT * FROM pgmq.metrics('counted')"), [
      {
        queue_name: 'counted',
        queue_length: '0',
        newest_msg_age_sec: null,
        oldest_msg_age_sec: null,
        total_messages: '0',
        queue_visible_length: '0',
      },
    ])
    await test.query("SELECT pgmq.send('counted', '{}'), pgmq.send('counted', '{}', 60)")
    t.match(await test.query("SELECT * FROM pgmq.metrics('counted')"), [
      {
        queue_length: '2',
        newest_msg_age_sec: 0,
        oldest_msg_age_sec: 0,
        total_messages: '2',
        queue_visible_length: '1',
      },
    ])
    t.strictSame(await test.query("SELECT pgmq.purge_queue('counted') AS n"), [{ n: '2' }])
    t.strictSame(ids(await test.query("SELECT pgmq.send('counted', '{}') AS id")), [3])
  })

  t.test('when a transaction holds it, then purge fails instead of stopping everybody behind it', async t => {
    await queue(test, 'held')
    const holder = await openSession(t, test.url)
    await holder.query('BEGIN')
    await holder.query("SELECT pgmq.send('held', '{}')")
    await t.rejects(test.query("SELECT pgmq.purge_queue('held')"), { code: '55P03' })
    await holder.query('ROLLBACK')
  })

  t.test(
    'when it is created again while a transaction that wrote to it is open, then nobody waits',
    async t => {
      await queue(test, 'written')
      const holder = await openSession(t, test.url)
      await holder.query('BEGIN')
      await holder.query("SELECT pgmq.send('written', '{}')")
      const other = await openSession(t, test.url, '-c lock_timeout=300ms')
      await other.query("SELECT pgmq.create('written')")
      await holder.query('ROLLBACK')
      t.pass('created')
    },
  )
})

t.test('given messages by SQL', async t => {
  const test = await createDatabase(t)
  await queue(test)
  t.beforeEach(() => test.query('TRUNCATE pgmq.q_work, pgmq.a_work RESTART IDENTITY'))
  const due = () =>
    test.query<{ n: string; due: number }>(
      "SELECT message->>'n' AS n, round(extract(epoch FROM vt - now()))::int AS due FROM pgmq.q_work ORDER BY msg_id",
    )

  t.test('when every overload sends, then ids, delays and headers are right', async t => {
    const future = "now() + interval '100 seconds'"
    const sends = [
      `send('work', '{"n":1}')`,
      `send('work', '{"n":2}', '{"h":2}'::jsonb)`,
      `send('work', '{"n":3}', 100)`,
      `send('work', '{"n":4}', ${future})`,
      `send('work', '{"n":5}', '{"h":5}'::jsonb, 100)`,
      `send('work', '{"n":6}', '{"h":6}'::jsonb, ${future})`,
      `send_batch('work', array['{"n":7}', '{"n":8}']::jsonb[])`,
      `send_batch('work', array['{"n":9}']::jsonb[], array['{"h":9}']::jsonb[])`,
      `send_batch('work', array['{"n":10}']::jsonb[], 100)`,
      `send_batch('work', array['{"n":11}']::jsonb[], ${future})`,
      `send_batch('work', array['{"n":12}', '{"n":13}']::jsonb[], array['{"h":12}', null]::jsonb[], 100)`,
      `send_batch('work', array['{"n":14}']::jsonb[], array['{"h":14}']::jsonb[], ${future})`,
    ]
    const sent: number[] = []
    for (const call of sends) sent.push(...ids(await test.query(`SELECT pgmq.${call} AS id`)))
    t.strictSame(
      sent,
      Array.from({ length: 14 }, (_, n) => n + 1),
    )
    t.strictSame(
      (await due()).map(row => [Number(row.n), row.due > 50]),
      sent.map(n => [n, [3, 4, 5, 6, 10, 11, 12, 13, 14].includes(n)]),
    )
    const headers = await test.query<{ n: string; h: string }>(
      "SELECT message->>'n' AS n, headers->>'h' AS h FROM pgmq.q_work WHERE headers IS NOT NULL ORDER BY msg_id",
    )
    t.strictSame(
      headers.map(row => row.h),
      headers.map(row => row.n),
    )
    t.strictSame(
      headers.map(row => row.n),
      ['2', '5', '6', '9', '12', '14'],
    )
  })

  t.test('when a batch is empty or its headers do not fit, then the error says so', async t => {
    await t.rejects(test.query("SELECT pgmq.send_batch('work', null::jsonb[])"), { code: '22023' })
    await t.rejects(test.query("SELECT pgmq.send_batch('work', array[]::jsonb[])"), { code: '22023' })
    await t.rejects(
      test.query(`SELECT pgmq.send_batch('work', array['1','2']::jsonb[], array['{}']::jsonb[])`),
      { message: 'msgs has 2 elements but headers has 1' },
    )
  })

  t.test('when they are read, then due order decides who, and id order how they come', async t => {
    await test.query(
      `SELECT pgmq.send('work', '{"n":1}'), pgmq.send('work', '{"n":2}', -60), pgmq.send('work', '{"n":3}', -120)`,
    )
    const read = await test.query<{ msg_id: string; read_ct: number }>(
      "SELECT * FROM pgmq.read('work', 30, 2)",
    )
    t.strictSame(
      read.map(row => [row.msg_id, row.read_ct]),
      [
        ['2', 1],
        ['3', 1],
      ],
    )
    t.strictSame((await test.query("SELECT * FROM pgmq.read('work', 30, null)")).length, 1, 'null: all')
    await t.rejects(test.query("SELECT * FROM pgmq.read('work', 30, -1)"), { code: '2201W' })
  })

  t.test('when a condition is given, then only messages that hold it are read', async t => {
    await test.query(`SELECT pgmq.send('work', '{"n":1,"a":{"b":1}}'), pgmq.send('work', '{"n":2}')`)
    t.strictSame(
      (await test.query<{ msg_id: string }>(`SELECT * FROM pgmq.read('work', 30, 5, '{"a":{"b":1}}')`)).map(
        r => r.msg_id,
      ),
      ['1'],
    )
  })

  t.test(
    'when reading waits, then it gives what comes, or nothing when time is up, and looks once without any',
    async t => {
      const started = performance.now()
      t.strictSame(await test.query("SELECT * FROM pgmq.read_with_poll('work', 30, 5, 1, 50)"), [])
      t.ok(performance.now() - started >= 900)
      const waiting = test.query<{ msg_id: string }>(
        "SELECT * FROM pgmq.read_with_poll('work', 30, 5, 10, 20)",
      )
      await test.query("SELECT pgmq.send('work', '{}')")
      t.equal((await waiting).length, 1)
      await test.query("SELECT pgmq.send('work', '{}')")
      t.equal((await test.query("SELECT * FROM pgmq.read_with_poll('work', 30, 5, 0)")).length, 1)
    },
  )

  t.test('when they are popped, then they are gone', async t => {
    await test.query("SELECT pgmq.send('work', '{}') FROM generate_series(1, 3)")
    t.strictSame(
      (await test.query<{ msg_id: string }>("SELECT * FROM pgmq.pop('work')")).map(r => r.msg_id),
      ['1'],
    )
    t.strictSame(
      (await test.query<{ msg_id: string }>("SELECT * FROM pgmq.pop('work', 5)")).map(r => r.msg_id),
      ['2', '3'],
    )
    t.strictSame(await due(), [])
  })

  t.test(
    'when visibility is set, by seconds or time, for one or many, then the rows found come back',
    async t => {
      await test.query("SELECT pgmq.send('work', '{}') FROM generate_series(1, 2)")
      const calls = [
        '1::bigint, 50',
        "1::bigint, now() + interval '50 seconds'",
        'array[1, 2, 9]::bigint[], 50',
        "array[2, 1]::bigint[], now() + interval '50 seconds'",
      ]
      for (const call of calls) {
        const rows = await test.query<{ msg_id: string; read_ct: number; ok: boolean }>(
          `SELECT msg_id, read_ct, vt - now() BETWEEN interval '40 seconds' AND interval '51 seconds' AS ok FROM pgmq.set_vt('work', ${call})`,
        )
        t.strictSame(
          rows.map(row => row.msg_id),
          call.startsWith('1') ? ['1'] : ['1', '2'],
        )
        t.ok(rows.every(row => row.ok && row.read_ct === 0))
      }
      t.strictSame(await test.query("SELECT * FROM pgmq.set_vt('work', 9::bigint, 1)"), [])
    },
  )

  t.test('when they are archived or deleted, then each call tells what was there', async t => {
    await test.query("SELECT pgmq.send('work', '{}', '{\"h\":1}'::jsonb) FROM generate_series(1, 4)")
    await test.query("SELECT pgmq.read('work', 0, 4)")
    t.strictSame(
      await test.query("SELECT pgmq.archive('work', 1::bigint) AS a, pgmq.archive('work', 1::bigint) AS b"),
      [{ a: true, b: false }],
    )
    t.strictSame(ids(await test.query("SELECT pgmq.archive('work', array[2, 9]::bigint[]) AS id")), [2])
    t.strictSame(
      await test.query("SELECT pgmq.delete('work', 3::bigint) AS a, pgmq.delete('work', 3::bigint) AS b"),
      [{ a: true, b: false }],
    )
    t.strictSame(ids(await test.query("SELECT pgmq.delete('work', array[4, 9]::bigint[]) AS id")), [4])
    t.match(await test.query('SELECT * FROM pgmq.a_work ORDER BY msg_id'), [
      { msg_id: '1', read_ct: 1, headers: { h: 1 } },
      { msg_id: '2', read_ct: 1 },
    ])
    await test.query("ALTER TABLE pgmq.q_work ALTER msg_id RESTART WITH 1; SELECT pgmq.send('work', '{}')")
    await t.rejects(
      test.query("SELECT pgmq.archive('work', 1::bigint)"),
      { code: '23505' },
      'an id that is archived already',
    )
  })

  t.test('when a role may only monitor, then it can count but not read more than that', async t => {
    const name = `monitor_${process.pid}_${Date.now()}`
    await test.query(`CREATE ROLE ${name} IN ROLE pg_monitor`)
    t.teardown(() => test.query(`DROP OWNED BY ${name}; DROP ROLE ${name}`))
    await queue(test, 'made_later')
    const client = await openSession(t, test.url)
    await client.query(`SET ROLE ${name}`)
    t.equal((await client.query("SELECT * FROM pgmq.metrics('made_later')")).rowCount, 1)
    await t.rejects(client.query("SELECT pgmq.send('made_later', '{}')"), { code: '42501' })
  })

  t.test('when two functions that are out of date are called, then they warn', async t => {
    const client = await openSession(t, test.url)
    const warnings: string[] = []
    client.on('notice', notice => warnings.push(String(notice.message)))
    await client.query("SELECT pgmq.detach_archive('work')")
    await client.query("SELECT pgmq.drop_queue('nothing', false)")
    t.equal(warnings.filter(text => text.includes('deprecated')).length, 2)
  })
})
