import t from 'tap'
import { SchemaNotReadyError } from '../../lib/core/errors.ts'
import { sendMany } from '../../lib/pgmq/statements.ts'
import { createEmptyDatabase, type TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { foreignQueue, listen, openQueues, openSession, setup } from './setup.ts'

const one = { message: '{}', headers: null, delayMs: 0 }

function triggers(test: TestDatabase, table: string): Promise<{ name: string; definition: string }[]> {
  return test.query(
    `SELECT tgname AS name, pg_get_triggerdef(oid) AS definition FROM pg_trigger WHERE tgrelid = $1::regclass AND NOT tgisinternal`,
    [table],
  )
}

function tables(test: TestDatabase): Promise<{ name: string }[]> {
  return test.query(
    `SELECT relname AS name FROM pg_class WHERE relnamespace = 'pgmq'::regnamespace AND relname ~ '^[qa]_' AND relkind = 'r' ORDER BY 1`,
  )
}

t.test('given an empty database', async t => {
  t.test('when a queue is ensured, then the error names the command that is missing', async t => {
    const test = await createEmptyDatabase(t)
    const { queues } = openQueues(t, test.url)
    await t.rejects(queues.ensure('mail'), SchemaNotReadyError)
    await t.rejects(queues.ensure('mail'), { message: /pgbus migrate/ })
    t.notOk(queues.isKnown('pgbus_mail'))
    await t.rejects(queues.list(), SchemaNotReadyError)
  })
})

t.test('given a migrated database', async t => {
  const bench = await setup(t)
  const { test, queues } = bench

  t.test(
    'when a queue is ensured, then table, archive, index, settings and trigger are as they should be',
    async t => {
      await queues.ensure('mail')
      t.ok(queues.isKnown('pgbus_mail'))
      const columns = await test.query<{ line: string }>(`
      SELECT format('%s %s %s%s', attname, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'not null ' END, attidentity) AS line
        FROM pg_attribute WHERE attrelid = 'pgmq.q_pgbus_mail'::regclass AND attnum > 0 ORDER BY attnum`)
      t.strictSame(
        columns.map(c => c.line.trim()),
        [
          'msg_id bigint not null a',
          'read_ct integer not null',
          'enqueued_at timestamp with time zone not null',
          'last_read_at timestamp with time zone',
          'vt timestamp with time zone not null',
          'message jsonb',
          'headers jsonb',
        ],
      )
      const indexes = await test.query<{ indexdef: string }>(
        `SELECT indexdef FROM pg_indexes WHERE schemaname = 'pgmq' AND tablename IN ('q_pgbus_mail', 'a_pgbus_mail') ORDER BY tablename, indexname`,
      )
      t.strictSame(
        indexes.map(i => i.indexdef),
        [
          'CREATE UNIQUE INDEX a_pgbus_mail_pkey ON pgmq.a_pgbus_mail USING btree (msg_id)',
          'CREATE INDEX archived_at_idx_pgbus_mail ON pgmq.a_pgbus_mail USING btree (archived_at)',
          'CREATE UNIQUE INDEX q_pgbus_mail_pkey ON pgmq.q_pgbus_mail USING btree (msg_id)',
          'CREATE INDEX q_pgbus_mail_vt_idx ON pgmq.q_pgbus_mail USING btree (vt, msg_id)',
        ],
      )
      t.match(await triggers(test, 'pgmq.q_pgbus_mail'), [
        {
          name: 'pgbus_notify_insert',
          definition: /CONSTRAINT TRIGGER .* AFTER INSERT .* DEFERRABLE INITIALLY DEFERRED FOR EACH ROW/,
        },
      ])
      const [settings] = await test.query<{ q: string[]; a: string[] }>(
        `SELECT (SELECT reloptions FROM pg_class WHERE oid = 'pgmq.q_pgbus_mail'::regclass) AS q, (SELECT reloptions FROM pg_class WHERE oid = 'pgmq.a_pgbus_mail'::regclass) AS a`,
      )
      t.ok(
        settings?.q.includes('fillfactor=70') && settings.q.includes('autovacuum_vacuum_scale_factor=0.01'),
      )
      t.ok(settings?.a.includes('autovacuum_vacuum_cost_delay=5'))
    },
  )

  t.test('when an unlogged one is created by SQL, then only the waiting messages are at risk', async t => {
    await test.query("SELECT pgbus_create_queue('pgbus_fast', 'job', true)")
    t.strictSame(
      await test.query(
        "SELECT relname, relpersistence AS p FROM pg_class WHERE relname IN ('q_pgbus_fast', 'a_pgbus_fast') ORDER BY 1",
      ),
      [
        { relname: 'a_pgbus_fast', p: 'p' },
        { relname: 'q_pgbus_fast', p: 'u' },
      ],
    )
    t.match(
      (await queues.list()).find(queue => queue.name === 'fast'),
      { unlogged: true },
    )
    await t.rejects(test.query("SELECT pgbus_create_queue('pgbus_x', 'topic')"), { code: '22023' })
  })

  t.test('when a dead-letter queue is ensured, then it has no trigger', async t => {
    await queues.ensurePhysical('pgbus_mail_dlq', 'dlq')
    t.strictSame(await triggers(test, 'pgmq.q_pgbus_mail_dlq'), [])
    t.match(
      (await queues.list()).find(q => q.physical === 'pgbus_mail_dlq'),
      { name: 'mail', kind: 'dlq' },
    )
  })

  t.test('when it is ensured again, by us and by others, then nothing is touched', async t => {
    const before = await test.query(
      `SELECT xmin, * FROM pg_trigger WHERE tgrelid = 'pgmq.q_pgbus_mail'::regclass`,
    )
    const others = openQueues(t, test.url)
    await Promise.all(Array.from({ length: 10 }, () => others.queues.ensure(['mail', 'mail'])))
    queues.forget('pgbus_mail')
    await queues.ensure('mail')
    t.strictSame(
      await test.query(`SELECT xmin, * FROM pg_trigger WHERE tgrelid = 'pgmq.q_pgbus_mail'::regclass`),
      before,
    )
  })

  t.test('when a hostile name is used, then it fails and the tables are as before', async t => {
    const before = await tables(test)
    for (const name of ["x'; drop table pgmq.meta; --", 'a"b', 'a;b', 'a-b', '', 'q'.repeat(48)]) {
      await t.rejects(queues.ensure(name), { code: 'PGBUS_ERR_INVALID_QUEUE_NAME' })
      await t.rejects(queues.drop(name), { code: 'PGBUS_ERR_INVALID_QUEUE_NAME' })
    }
    await t.rejects(test.query('SELECT pgmq.create($1)', ["x'; drop table pgmq.meta; --"]), { code: '22023' })
    t.equal(await queues.drop({ physical: 'no_such"; drop table pgmq.meta' }).catch(() => false), false)
    t.strictSame(await tables(test), before)
  })

  t.test('when messages are counted, purged and dropped, then each answer is right', async t => {
    await bench.run(sendMany('pgbus_mail', [one, one, { ...one, delayMs: 60_000 }]))
    t.match(await queues.metrics('mail'), [
      { name: 'mail', physical: 'pgbus_mail', kind: 'job', length: 3, visibleLength: 2, total: 3 },
    ])
    t.ok((await queues.metrics('mail'))[0]!.oldestClaimableAge! < 60)
    t.equal(await queues.purge('mail'), 3)
    t.match(await queues.metrics('mail'), [
      { length: 0, visibleLength: 0, oldestClaimableAge: null, total: 3 },
    ])
    t.equal(await queues.drop('mail'), true)
    t.equal(await queues.drop('mail'), false)
    t.notOk(queues.isKnown('pgbus_mail'))
    t.equal(await queues.purge('mail'), 0)
    t.strictSame(await queues.metrics('mail'), [])
  })

  t.test('when only delayed messages wait, then there is no backlog age', async t => {
    await queues.ensure('later')
    await bench.run(sendMany('pgbus_later', [{ ...one, delayMs: 60_000 }]))
    t.match(await queues.metrics('later'), [{ length: 1, visibleLength: 0, oldestClaimableAge: null }])
  })

  t.test('when a transaction holds a queue, then purge gives up and says so', async t => {
    await queues.ensure('held')
    const holder = await openSession(t, test.url)
    await holder.query('BEGIN')
    await holder.query("INSERT INTO pgmq.q_pgbus_held (vt, message) VALUES (now(), '{}')")
    await t.rejects(queues.purge('held'), {
      message: 'queue "pgbus_held" is busy (a transaction holds it); try again',
    })
    await holder.query('ROLLBACK')
    t.equal(await queues.purge('held'), 0)
  })
})

t.test('given priorities', async t => {
  t.test('when a queue is ensured, then each level has a table and the bare name has none', async t => {
    const { test, queues } = await setup(t, { priority: { levels: 2 } })
    await queues.ensure(['mail'])
    t.strictSame(
      (await tables(test)).map(row => row.name).filter(name => name.startsWith('q_')),
      ['q_pgbus_mail_p0', 'q_pgbus_mail_p1'],
    )
    t.equal(await queues.drop('mail'), true)
    t.strictSame(await tables(test), [])
  })
})

t.test('given notifications are switched off', async t => {
  t.test('when a queue is ensured, then it has no trigger; one that is there stays', async t => {
    const { test, queues } = await setup(t, { notify: { enabled: false } })
    await queues.ensure('quiet')
    t.strictSame(await triggers(test, 'pgmq.q_pgbus_quiet'), [])
    const others = openQueues(t, test.url)
    await others.queues.ensure('quiet')
    queues.forget('pgbus_quiet')
    await queues.ensure('quiet')
    t.equal((await triggers(test, 'pgmq.q_pgbus_quiet')).length, 1)
  })
})

t.test('given a queue that another client made', async t => {
  const bench = await setup(t)
  const { test, queues } = bench

  t.test('when it is empty and has the index of that client, then it gets ours, and the trigger', async t => {
    await foreignQueue(test, 'pgbus_foreign')
    await queues.ensure('foreign')
    t.match(await indexOf(test, 'q_pgbus_foreign_vt_idx'), /\(vt, msg_id\)$/)
    t.strictSame(
      (await triggers(test, 'pgmq.q_pgbus_foreign')).map(trigger => trigger.name),
      ['pgbus_notify_insert'],
    )
  })

  t.test(
    'when it holds messages, then its index is left to the migration, and it is used all the same',
    async t => {
      await foreignQueue(test, 'pgbus_full')
      await test.query("INSERT INTO pgmq.q_pgbus_full (vt, message) VALUES (now(), '{}')")
      await queues.ensure('full')
      t.match(await indexOf(test, 'q_pgbus_full_vt_idx'), /\(vt\)$/)
      t.equal((await triggers(test, 'pgmq.q_pgbus_full')).length, 1)
    },
  )

  t.test(
    'when a transaction that wrote to it stays open, then ensuring does not wait for its end',
    async t => {
      await foreignQueue(test, 'pgbus_busy')
      const holder = await openSession(t, test.url)
      await holder.query('BEGIN')
      await holder.query("INSERT INTO pgmq.q_pgbus_busy (vt, message) VALUES (now(), '{}')")
      await queues.ensure('busy')
      t.strictSame(await triggers(test, 'pgmq.q_pgbus_busy'), [])
      await holder.query('COMMIT')
      queues.forget('pgbus_busy')
      await queues.ensure('busy')
      t.equal((await triggers(test, 'pgmq.q_pgbus_busy')).length, 1, 'the next call completes it')
    },
  )

  t.test('when it lacks only its archive, then it gets one and keeps its trigger', async t => {
    const trigger = "SELECT oid, xmin FROM pg_trigger WHERE tgrelid = 'pgmq.q_pgbus_foreign'::regclass"
    const before = await test.query(trigger)
    await test.query('DROP TABLE pgmq.a_pgbus_foreign')
    queues.forget('pgbus_foreign')
    await queues.ensure('foreign')
    t.strictSame(await test.query("SELECT to_regclass('pgmq.a_pgbus_foreign') IS NOT NULL AS there"), [
      { there: true },
    ])
    t.strictSame(await test.query(trigger), before)
  })

  t.test(
    'when its name is in mixed case, then it is listed once, notifies, and goes with everything',
    async t => {
      await test.query(
        'CREATE TABLE pgmq."q_mixed" (LIKE pgmq.q_pgbus_foreign INCLUDING ALL); CREATE TABLE pgmq."a_mixed" (LIKE pgmq.a_pgbus_foreign INCLUDING ALL)',
      )
      await test.query(
        "INSERT INTO pgmq.meta (queue_name, is_partitioned, is_unlogged) VALUES ('Mixed', false, false), ('mixed', false, false)",
      )
      await test.query("SELECT pgmq.enable_notify_insert('Mixed', 0)")
      const heard = await listen(t, test.url, 'pgmq.q_mixed.INSERT')
      await test.query("SELECT pgmq.send('Mixed', '{}')")
      await waitFor(() => heard.length === 1)
      t.equal((await queues.list()).filter(queue => queue.physical === 'mixed').length, 1)
      t.match(
        (await queues.list()).find(queue => queue.physical === 'mixed'),
        { name: 'mixed', kind: 'job' },
      )
      t.equal(await queues.drop({ physical: 'Mixed' }), true)
      t.strictSame(
        (await queues.list()).filter(queue => queue.physical === 'mixed'),
        [],
      )
      t.strictSame(
        await test.query("SELECT 1 FROM pgmq.notify_insert_throttle WHERE queue_name = 'Mixed'"),
        [],
      )
    },
  )
})

t.test("given a caller's open transaction", async t => {
  t.test(
    'when a queue is used for the first time, then that transaction is neither ended nor given locks to keep',
    async t => {
      const { test, queues } = await setup(t)
      const caller = await openSession(t, test.url)
      await caller.query('BEGIN')
      await caller.query('CREATE TABLE own (id int)')
      await queues.ensure('fresh')
      await caller.query("INSERT INTO pgmq.q_pgbus_fresh (vt, message) VALUES (now(), '{}')")
      await caller.query('ROLLBACK')
      t.ok(queues.isKnown('pgbus_fresh'))
      t.strictSame(
        await test.query('SELECT 1 FROM pgmq.q_pgbus_fresh'),
        [],
        'the message is gone, the queue is not',
      )
      t.strictSame(await test.query("SELECT to_regclass('own') AS own"), [{ own: null }])
    },
  )
})

t.test('given a queue that a peer dropped', async t => {
  t.test('when it is forgotten and ensured, then it is there again', async t => {
    const bench = await setup(t)
    await bench.queues.ensure('mail')
    await bench.test.query("SELECT pgmq.drop_queue('pgbus_mail')")
    await t.rejects(bench.run(sendMany('pgbus_mail', [one])), { code: '42P01' })
    bench.queues.forget('pgbus_mail')
    await bench.queues.ensure('mail')
    t.equal(
      (await bench.run(sendMany('pgbus_mail', [one]))).length,
      1,
      'the prepared statement works on the new table',
    )
  })
})

async function indexOf(test: TestDatabase, name: string): Promise<string | undefined> {
  const [row] = await test.query<{ indexdef: string }>(
    'SELECT indexdef FROM pg_indexes WHERE indexname = $1',
    [name],
  )
  return row?.indexdef
}
