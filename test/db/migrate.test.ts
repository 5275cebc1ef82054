import t from 'tap'
import { MigrationError, SchemaNotReadyError } from '../../lib/core/errors.ts'
import { migrationLock } from '../../lib/db/advisory-locks.ts'
import { assertSchema, checkSchema } from '../../lib/db/migrate.ts'
import { describeSchema, openQueues, openSession } from '../pgmq/setup.ts'
import { createDatabase, createEmptyDatabase } from '../support/database.ts'
import { allFiles, copyMigrations, migrator } from './migrate-setup.ts'

t.test('given an empty database', async t => {
  t.test('when it is migrated, then all files are applied; when again, then none', async t => {
    const test = await createEmptyDatabase(t)
    const { migrate, status, lines } = migrator(test.url)
    t.strictSame(await status(), {
      applied: [],
      pending: allFiles,
      changed: [],
      pgmq: { mode: 'none', version: null },
    })
    t.strictSame(await migrate({ dryRun: true }), allFiles)
    t.strictSame(
      await test.query(
        "SELECT to_regnamespace('pgmq') AS pgmq, to_regclass('pgbus_schema_migrations') AS ledger",
      ),
      [{ pgmq: null, ledger: null }],
      'a dry run changes nothing',
    )
    t.strictSame(await migrate(), allFiles)
    const schema = await describeSchema(test)
    t.strictSame(await migrate(), [])
    t.strictSame(await migrate({ dryRun: true }), [])
    t.strictSame(await describeSchema(test), schema)
    t.strictSame(await status(), {
      applied: allFiles,
      pending: [],
      changed: [],
      pgmq: { mode: 'embedded', version: '1.12.0' },
    })
    t.ok(lines.includes('applied 002_core.sql') && lines.includes('would apply 002_core.sql'))
  })

  t.test('when it is used before, then the error names the command', async t => {
    const test = await createEmptyDatabase(t)
    const { db } = openQueues(t, test.url)
    await t.rejects(assertSchema(db), SchemaNotReadyError)
    await t.rejects(assertSchema(db), {
      code: 'PGBUS_ERR_SCHEMA_NOT_READY',
      message: /run "pgbus migrate".*pgmq\.meta/,
    })
    await migrator(test.url).migrate()
    t.strictSame(await checkSchema(db), [])
    await assertSchema(db)
    await test.query('DROP FUNCTION pgbus_claim_many')
    t.strictSame(await checkSchema(db), [
      'pgbus_claim_many(text[],text[],integer,integer,integer,text,bigint[],text[])',
    ])
  })

  t.test(
    'when the search path names another schema, then everything of ours goes and stays there',
    async t => {
      const test = await createEmptyDatabase(t)
      await test.query(
        `CREATE SCHEMA "My App"; ALTER DATABASE ${test.name} SET search_path = "My App", public`,
      )
      await migrator(test.url).migrate()
      t.strictSame(await migrator(test.url).migrate(), [])
      const [row] = await test.query<{ n: string }>(
        "SELECT count(*) AS n FROM pg_class WHERE relnamespace = 'public'::regnamespace",
      )
      t.equal(row?.n, '0')
      const { queues, db } = openQueues(t, test.url)
      await queues.ensure('mail')
      t.strictSame(await checkSchema(db), [])
      const stranger = await openSession(t, test.url, '-c search_path=pg_temp')
      t.equal(
        (await stranger.query(`SELECT "My App".pgbus_stream_append('s', '{}')`)).rowCount,
        1,
        'whatever the caller uses',
      )
      await stranger.query("INSERT INTO pgmq.q_pgbus_mail (vt, message) VALUES (now(), '{}')")
    },
  )

  t.test('when the role is no superuser but owns the database, then it can migrate', async t => {
    const test = await createEmptyDatabase(t)
    const role = `owner_${test.name}`
    await test.query(
      `CREATE ROLE ${role} LOGIN PASSWORD 'x'; ALTER DATABASE ${test.name} OWNER TO ${role}; ALTER SCHEMA public OWNER TO ${role}`,
    )
    const url = new URL(test.url)
    url.username = role
    url.password = 'x'
    t.teardown(() =>
      test.query(
        `DROP OWNED BY ${role} CASCADE; ALTER DATABASE ${test.name} OWNER TO CURRENT_USER; DROP ROLE ${role}`,
      ),
    )
    t.strictSame(await migrator(url.toString()).migrate(), allFiles)
    const { queues, db } = openQueues(t, url.toString())
    await queues.ensure('mail')
    await db.close()
  })
})

t.test('given a migrated database', async t => {
  t.test('when an applied file was changed, then migrating refuses, and status names it', async t => {
    const test = await createDatabase(t)
    const folder = copyMigrations(t)
    folder.edit('002_core.sql', text => `${text}\n-- more\n`)
    folder.write('011_more.sql', 'CREATE TABLE more (id int);')
    const { migrate, status } = migrator(test.url, folder.path)
    await t.rejects(migrate(), { message: 'migration 002_core.sql was changed after it was applied' })
    await t.rejects(migrate(), MigrationError)
    t.match(await status(), { changed: ['002_core.sql'], pending: ['011_more.sql'] })
    t.strictSame(await test.query("SELECT to_regclass('more') AS more"), [{ more: null }])
  })

  t.test(
    'when a file fails, then it rolls back alone, and the error names file, line and SQLSTATE',
    async t => {
      const test = await createDatabase(t)
      const folder = copyMigrations(t)
      folder.write('011_good.sql', 'CREATE TABLE good (id int);')
      folder.write('012_bad.sql', 'CREATE TABLE half (id int);\n\nSELECT no_such_column\n  FROM half;\n')
      folder.write('013_later.sql', 'CREATE TABLE later (id int);')
      const { migrate, status } = migrator(test.url, folder.path)
      await t.rejects(migrate(), {
        code: 'PGBUS_ERR_MIGRATION',
        message: /^migration 012_bad\.sql failed at line 3: .*\(SQLSTATE 42703\)$/,
      })
      t.strictSame(
        await test.query(
          "SELECT to_regclass('good') IS NOT NULL AS good, to_regclass('half') AS half, to_regclass('later') AS later",
        ),
        [{ good: true, half: null, later: null }],
      )
      t.strictSame((await status()).pending, ['012_bad.sql', '013_later.sql'])
      folder.write('012_bad.sql', 'CREATE TABLE half (id int);')
      t.strictSame(await migrate(), ['012_bad.sql', '013_later.sql'])
    },
  )

  t.test('when a repeatable file changes, then it is applied again, and only it', async t => {
    const test = await createDatabase(t)
    const folder = copyMigrations(t)
    folder.edit(
      'R__functions.sql',
      text => `${text}\ncreate or replace function pgbus_new() returns int language sql as 'select 1';\n`,
    )
    const { migrate, status } = migrator(test.url, folder.path)
    t.strictSame((await status()).pending, ['R__functions.sql'])
    t.strictSame(await migrate(), ['R__functions.sql'])
    t.strictSame(await test.query('SELECT pgbus_new() AS n'), [{ n: 1 }])
    t.strictSame(await migrate(), [])
  })

  t.test('when a newer version has migrated, then an older one leaves its functions alone', async t => {
    const test = await createDatabase(t)
    const folder = copyMigrations(t)
    folder.write('011_newer.sql', 'CREATE TABLE newer (id int);')
    folder.edit('R__functions.sql', text => `${text}\n-- newer\n`)
    folder.edit('R__pgmq_functions.sql', text => text.replace(/pgbus build \d+/, 'pgbus build 99'))
    t.strictSame(await migrator(test.url, folder.path).migrate(), [
      '011_newer.sql',
      'R__functions.sql',
      'R__pgmq_functions.sql',
    ])
    t.strictSame(await migrator(test.url).migrate(), [])
    t.strictSame((await migrator(test.url).status()).pending, [])
    t.strictSame(
      await migrator(test.url, folder.path).migrate(),
      [],
      'and the newer one finds everything in place',
    )
  })

  t.test('when somebody else is migrating, then it waits, and says so when it takes too long', async t => {
    const test = await createDatabase(t)
    const holder = await openSession(t, test.url)
    await holder.query(`SELECT pg_advisory_lock(${migrationLock})`)
    const quick = migrator(test.url, undefined, { migrations: { lockTimeout: 300 } })
    await t.rejects(quick.migrate(), {
      code: 'PGBUS_ERR_MIGRATION',
      message: 'another process is migrating (waited 0.3s)',
    })
    const patient = migrator(test.url).migrate()
    await holder.query(`SELECT pg_advisory_unlock(${migrationLock})`)
    t.strictSame(await patient, [])
  })

  t.test('when a table is locked for long, then the file fails instead of waiting for ever', async t => {
    const test = await createDatabase(t)
    const folder = copyMigrations(t)
    folder.write('011_more.sql', 'ALTER TABLE pgbus_processes ADD COLUMN more int;')
    const holder = await openSession(t, test.url)
    await holder.query('BEGIN')
    await holder.query('SELECT * FROM pgbus_processes')
    const quick = migrator(test.url, folder.path, { migrations: { lockTimeout: 300 } })
    await t.rejects(quick.migrate(), { message: /011_more\.sql failed.*55P03/ })
    await holder.query('ROLLBACK')
    t.strictSame(await quick.migrate(), ['011_more.sql'])
  })
})
