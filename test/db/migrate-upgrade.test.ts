import t from 'tap'
import { describeSchema, listen, openQueues, openSession } from '../pgmq/setup.ts'
import { createDatabase, createEmptyDatabase, type TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { allFiles, copyMigrations, migrator } from './migrate-setup.ts'

/** What another client installed some versions ago: other types, other overloads, no comment, a queue in use. */
async function installOlder(test: TestDatabase): Promise<void> {
  await test.query(`
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.meta (queue_name varchar UNIQUE NOT NULL, is_partitioned boolean NOT NULL, is_unlogged boolean NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE UNLOGGED TABLE pgmq.notify_insert_throttle (
  queue_name varchar UNIQUE NOT NULL CONSTRAINT notify_insert_throttle_meta_queue_name_fk REFERENCES pgmq.meta (queue_name) ON DELETE CASCADE,
  throttle_interval_ms int NOT NULL DEFAULT 0, last_notified_at timestamptz NOT NULL DEFAULT to_timestamp(0));
CREATE TYPE pgmq.message_record AS (msg_id bigint, read_ct int, enqueued_at timestamptz, vt timestamptz, message jsonb);
CREATE TYPE pgmq.queue_record AS (queue_name varchar, is_partitioned boolean, is_unlogged boolean, created_at timestamptz);
CREATE TABLE pgmq.q_work (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int NOT NULL DEFAULT 0,
  enqueued_at timestamptz NOT NULL DEFAULT now(), last_read_at timestamptz, vt timestamptz NOT NULL, message jsonb, headers jsonb);
CREATE TABLE pgmq.a_work (msg_id bigint PRIMARY KEY, read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(),
  last_read_at timestamptz, archived_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb, headers jsonb);
CREATE INDEX q_work_vt_idx ON pgmq.q_work (vt);
INSERT INTO pgmq.meta (queue_name, is_partitioned, is_unlogged) VALUES ('work', false, false);
INSERT INTO pgmq.notify_insert_throttle (queue_name, throttle_interval_ms) VALUES ('work', 5);
INSERT INTO pgmq.q_work (vt, read_ct, message) SELECT now() + n * interval '1 minute', n, jsonb_build_object('n', n) FROM generate_series(0, 9) n;
CREATE FUNCTION pgmq.read(queue_name text, vt int, qty int) RETURNS SETOF pgmq.message_record LANGUAGE sql AS 'SELECT msg_id, read_ct, enqueued_at, vt, message FROM pgmq.q_work';
CREATE FUNCTION pgmq.pop(queue_name text) RETURNS SETOF pgmq.message_record LANGUAGE sql AS 'SELECT msg_id, read_ct, enqueued_at, vt, message FROM pgmq.q_work';
CREATE FUNCTION pgmq.send(queue_name text, msg jsonb, delay int DEFAULT 0) RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION pgmq.drop_queue(queue text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE FUNCTION pgmq.purge_queue(queue_name text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION pgmq.somebodys_own() RETURNS int LANGUAGE sql AS 'SELECT 42';
CREATE FUNCTION pgmq.notify_queue_listeners() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''old'', ''''); RETURN null; END';
CREATE CONSTRAINT TRIGGER trigger_notify_queue_insert_listeners AFTER INSERT ON pgmq.q_work DEFERRABLE FOR EACH ROW EXECUTE FUNCTION pgmq.notify_queue_listeners();
CREATE TABLE pgbus_failed_events (id bigserial PRIMARY KEY, queue_name varchar NOT NULL, msg_id bigint, payload jsonb, headers jsonb, error_class varchar,
  error_message text, backtrace text, retry_count int DEFAULT 0, failed_at timestamp(6) NOT NULL DEFAULT current_timestamp);
INSERT INTO pgbus_failed_events (queue_name, msg_id) VALUES ('work', 3)`)
}

t.test('given an older build of another client, with a queue in use', async t => {
  const test = await createEmptyDatabase(t)
  await installOlder(test)
  const before = await test.query('SELECT * FROM pgmq.q_work ORDER BY msg_id')
  const trigger = "SELECT oid, xmin FROM pg_trigger WHERE tgrelid = 'pgmq.q_work'::regclass"
  const triggerBefore = await test.query(trigger)
  t.strictSame(await migrator(test.url).migrate(), allFiles)

  t.test('when it is upgraded, then the interface is ours and their own functions stay', async t => {
    const installed = await migrator(test.url).status()
    t.match(installed, { pending: [], pgmq: { mode: 'embedded', version: '1.12.0' } })
    t.strictSame(await test.query('SELECT install_method FROM pgbus_pgmq_schema_versions'), [
      { install_method: 'upgrade' },
    ])
    t.strictSame(await test.query('SELECT pgmq.somebodys_own() AS n'), [{ n: 42 }])
    const functions = (lines: string[]) =>
      lines.filter(line => line.startsWith('function pgmq') && !line.includes('somebodys_own'))
    t.strictSame(
      functions(await describeSchema(test)),
      functions(await describeSchema(await createDatabase(t))),
    )
  })

  t.test(
    'when it is upgraded, then every message, read count and due time is as before, and the failures too',
    async t => {
      t.strictSame(await test.query('SELECT * FROM pgmq.q_work ORDER BY msg_id'), before)
      t.strictSame(await test.query('SELECT queue_name FROM pgbus_failed_events'), [{ queue_name: 'work' }])
      await test.query(
        "INSERT INTO pgbus_failed_events (queue_name, msg_id) VALUES ('work', 3) ON CONFLICT (queue_name, msg_id) DO NOTHING",
      )
      t.match(await test.query("SELECT * FROM pgmq.read('work', 0, 1)"), [
        { msg_id: '1', read_ct: 1, message: { n: 0 } },
      ])
    },
  )

  t.test('when it is upgraded, then the insert trigger is the same one and wakes', async t => {
    t.strictSame(await test.query(trigger), triggerBefore)
    const heard = await listen(t, test.url, 'pgmq.q_work.INSERT')
    await test.query("SELECT pgmq.send('work', '{}')")
    await waitFor(() => heard.length === 1)
    t.match(await test.query('SELECT * FROM pgmq.list_notify_insert_throttles()'), [
      { throttle_interval_ms: 5 },
    ])
  })

  t.test('when it is upgraded, then its queue has the index on (vt, msg_id) under the old name', async t => {
    const rows = await test.query<{ indexdef: string }>(
      "SELECT indexdef FROM pg_indexes WHERE tablename = 'q_work' ORDER BY indexname",
    )
    t.strictSame(
      rows.map(row => row.indexdef),
      [
        'CREATE UNIQUE INDEX q_work_pkey ON pgmq.q_work USING btree (msg_id)',
        'CREATE INDEX q_work_vt_idx ON pgmq.q_work USING btree (vt, msg_id)',
      ],
    )
  })
})

t.test('given something that a user built on an outdated function', async t => {
  t.test('when it is in the way of the upgrade, then that fails and nothing vanishes', async t => {
    const test = await createEmptyDatabase(t)
    await installOlder(test)
    await test.query("CREATE VIEW mine AS SELECT * FROM pgmq.read('work', 1, 1)")
    await t.rejects(migrator(test.url).migrate(), { message: /R__pgmq_functions\.sql failed.*2BP01/ })
    t.equal((await test.query('SELECT * FROM mine')).length, 10)
  })
})

t.test('given queues that lost something', async t => {
  const test = await createDatabase(t)
  const { queues } = openQueues(t, test.url)
  await queues.ensure('work')
  await test.query("SELECT pgmq.enable_notify_insert('pgbus_work', 33)")

  t.test('when migrated again, then settings and the insert trigger with its interval are back', async t => {
    const schema = await describeSchema(test)
    await test.query(`
      ALTER TABLE pgmq.q_pgbus_work RESET (fillfactor, autovacuum_vacuum_scale_factor);
      ALTER TABLE pgmq.a_pgbus_work RESET (autovacuum_vacuum_cost_delay);
      ALTER TABLE pgbus_processes RESET (autovacuum_vacuum_cost_delay);
      DROP TRIGGER trigger_notify_queue_insert_listeners ON pgmq.q_pgbus_work`)
    t.strictSame(await migrator(test.url).migrate(), [])
    const sorted = (lines: string[]) =>
      lines.map(line => (line.startsWith('relation') ? [...line].sort().join('') : line))
    t.strictSame(sorted(await describeSchema(test)), sorted(schema))
    t.match(await test.query('SELECT * FROM pgmq.list_notify_insert_throttles()'), [
      { queue_name: 'pgbus_work', throttle_interval_ms: 33 },
    ])
  })

  t.test('when our functions change, then our insert triggers are not touched', async t => {
    const triggers =
      "SELECT oid, xmin, tgname FROM pg_trigger WHERE tgrelid = 'pgmq.q_pgbus_work'::regclass ORDER BY tgname"
    const before = await test.query(triggers)
    t.equal(before.length, 2)
    const folder = copyMigrations(t)
    for (const name of ['R__functions.sql', 'R__pgmq_functions.sql'])
      folder.edit(name, text => `${text}\n-- changed\n`)
    t.strictSame(await migrator(test.url, folder.path).migrate(), [
      'R__functions.sql',
      'R__pgmq_functions.sql',
    ])
    t.strictSame(await test.query(triggers), before)
    const heard = await listen(t, test.url, 'pgmq.q_pgbus_work.INSERT')
    await test.query("SELECT pgmq.send('pgbus_work', '{}')")
    await waitFor(() => heard.length > 0)
  })

  t.test('when schema pgmq is gone, then it is installed again', async t => {
    const other = await createDatabase(t)
    await other.query('DROP SCHEMA pgmq CASCADE')
    t.strictSame(await migrator(other.url).migrate(), ['001_pgmq.sql', 'R__pgmq_functions.sql'])
    t.equal((await other.query('SELECT * FROM pgmq.list_queues()')).length, 0)
  })
})

t.test('given queues with the index of another client', async t => {
  const oldIndex = (name: string) =>
    `DROP INDEX pgmq.q_${name}_vt_idx; CREATE INDEX q_${name}_vt_idx ON pgmq.q_${name} (vt); INSERT INTO pgmq.q_${name} (vt, message) VALUES (now(), '{}')`
  const indexes = (test: TestDatabase) =>
    test.query<{ line: string }>(
      `SELECT pg_get_indexdef(indexrelid) || CASE WHEN indisvalid THEN '' ELSE ' invalid' END AS line FROM pg_index
        WHERE indrelid::regclass::text LIKE 'pgmq.q\\_%' AND NOT indisprimary ORDER BY 1`,
    )

  t.test('when a run was interrupted at any point, then the next one completes it', async t => {
    const test = await createDatabase(t)
    const longest = 'x'.repeat(47)
    for (const name of ['untouched', 'invalid', 'both', 'renaming', 'leftover', longest])
      await test.query('SELECT pgmq.create($1)', [name])
    const expected = (await indexes(test)).map(row => row.line)
    for (const name of ['untouched', 'invalid', 'both', longest]) await test.query(oldIndex(name))
    for (const name of ['invalid', 'both', 'leftover'])
      await test.query(`CREATE INDEX q_${name}_vt_msg_id_idx ON pgmq.q_${name} (vt, msg_id)`)
    await test.query(
      "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pgmq.q_invalid_vt_msg_id_idx'::regclass",
    )
    await test.query('ALTER INDEX pgmq.q_renaming_vt_idx RENAME TO q_renaming_vt_msg_id_idx')
    t.strictSame(await migrator(test.url).migrate(), ['N01_vt_index.sql'])
    t.strictSame(
      (await indexes(test)).map(row => row.line),
      expected,
    )
    t.strictSame(await migrator(test.url).migrate(), [])
  })

  t.test('when several migrate at once, then nobody deadlocks', async t => {
    const test = await createDatabase(t)
    for (const name of ['a', 'b', 'c']) {
      await test.query('SELECT pgmq.create($1)', [name])
      await test.query(oldIndex(name))
    }
    const results = await Promise.allSettled(Array.from({ length: 6 }, () => migrator(test.url).migrate()))
    t.strictSame(
      results.filter(result => result.status === 'rejected'),
      [],
    )
    t.ok((await indexes(test)).every(row => row.line.endsWith('(vt, msg_id)')))
  })

  t.test(
    'when a transaction that wrote to a queue stays open, then the rest is left to the next run',
    async t => {
      const test = await createDatabase(t)
      await test.query("SELECT pgmq.create('a')")
      await test.query(oldIndex('a'))
      const holder = await openSession(t, test.url)
      await holder.query('BEGIN')
      await holder.query("INSERT INTO pgmq.q_a (vt, message) VALUES (now(), '{}')")
      const run = migrator(test.url, undefined, { migrations: { lockTimeout: 300 } })
      t.strictSame(await run.migrate(), [])
      t.match(run.lines.join('\n'), /a table is in use/)
      await holder.query('COMMIT')
      t.strictSame(await run.migrate(), ['N01_vt_index.sql'])
      t.ok((await indexes(test)).every(row => row.line.endsWith('(vt, msg_id)')))
    },
  )
})
