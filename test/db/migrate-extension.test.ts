import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { migrationsFolder } from '../../lib/db/migration-files.ts'
import { openQueues } from '../pgmq/setup.ts'
import { createEmptyDatabase, type TestContext, type TestDatabase } from '../support/database.ts'
import { allFiles, migrator } from './migrate-setup.ts'

/**
 * A database on whose server an extension called pgmq is available: our own SQL, packed as one by the server
 * itself. Fails on a server that cannot be given one (before PostgreSQL 18, or without a superuser).
 */
async function withExtension(t: TestContext, version: string): Promise<TestDatabase> {
  const test = await createEmptyDatabase(t)
  const sql = await Promise.all(
    ['001_pgmq.sql', 'R__pgmq_functions.sql'].map(name => readFile(join(migrationsFolder, name), 'utf8')),
  )
  const [row] = await test.query<{ data_directory: string }>('SHOW data_directory')
  const folder = `${row!.data_directory}/extension_of_${test.name}`
  // A program that ends without reading its input fails the statement, now and then.
  const run = (command: string) => test.query(`COPY (SELECT 1) TO PROGRAM 'cat >/dev/null && ${command}'`)
  await run(`mkdir -p ${folder}/extension`)
  t.teardown(() => run(`rm -r ${folder}`))
  const write = async (name: string, text: string) => {
    const [object] = await test.query('SELECT lo_from_bytea(0, $1) AS oid', [Buffer.from(text)])
    await test.query('SELECT lo_export($1, $2)', [object!.oid, `${folder}/extension/${name}`])
  }
  await write('pgmq.control', `default_version = '${version}'\nschema = 'pgmq'\nrelocatable = false\n`)
  await write(`pgmq--${version}.sql`, sql.join('\n').replace(/comment on schema[^;]*;/, ''))
  await test.query(`ALTER DATABASE ${test.name} SET extension_control_path = '$system:${folder}'`)
  return test
}

async function isAvailable(test: TestDatabase | undefined): Promise<boolean> {
  if (!test) return false
  const { db } = openQueues({ teardown: () => undefined }, test.url)
  const { rows } = await db.query("SELECT 1 FROM pg_available_extensions WHERE name = 'pgmq'")
  await db.close()
  return rows.length > 0
}

const mode = (schemaMode: 'auto' | 'extension' | 'embedded') => ({ pgmq: { schemaMode } })

t.test('given a server that has the extension', async t => {
  const probe = await withExtension(t, '1.12.1').catch(() => undefined)
  if (!(await isAvailable(probe))) {
    t.comment('the server cannot be given an extension')
    return
  }

  t.test(
    'when migrated in auto or extension mode, then it is created and used, and our text is not applied',
    async t => {
      for (const schemaMode of ['auto', 'extension'] as const) {
        const test = await withExtension(t, '1.12.1')
        const { migrate, status } = migrator(test.url, undefined, mode(schemaMode))
        t.strictSame(await migrate(), allFiles)
        t.match(await status(), { pending: [], pgmq: { mode: 'extension', version: '1.12.1' } })
        t.strictSame(await test.query('SELECT version, install_method FROM pgbus_pgmq_schema_versions'), [
          { version: '1.12.1', install_method: 'extension' },
        ])
        t.strictSame(
          await test.query("SELECT obj_description('pgmq'::regnamespace, 'pg_namespace') AS comment"),
          [{ comment: null }],
        )
        t.strictSame(await migrate(), [])
        const { queues } = openQueues(t, test.url)
        await queues.ensure('mail')
        t.equal((await queues.list()).length, 1)
      }
    },
  )

  t.test('when ten migrate at once, then all succeed', async t => {
    const test = await withExtension(t, '1.12.1')
    const results = await Promise.allSettled(Array.from({ length: 10 }, () => migrator(test.url).migrate()))
    t.strictSame(
      results.filter(result => result.status === 'rejected'),
      [],
    )
  })

  t.test(
    'when migrated in embedded mode, then it is left alone; one that is installed is used all the same',
    async t => {
      const test = await withExtension(t, '1.12.1')
      await migrator(test.url, undefined, mode('embedded')).migrate()
      t.match(await migrator(test.url).status(), { pgmq: { mode: 'embedded' } })
      t.strictSame(await migrator(test.url).migrate(), [], 'auto mode then stays with what is there')
      await t.rejects(migrator(test.url, undefined, mode('extension')).migrate(), {
        message: /installed without the extension; drop it or use schemaMode "embedded"/,
      })

      const other = await withExtension(t, '1.12.1')
      await migrator(other.url).migrate()
      const embedded = migrator(other.url, undefined, mode('embedded'))
      t.strictSame(await embedded.migrate(), [])
      t.match(embedded.lines.join('\n'), /installed as an extension; embedded SQL is not applied/)
    },
  )

  t.test('when it is too old, then migrating says which command is needed, and changes nothing', async t => {
    const test = await withExtension(t, '1.10.4')
    await t.rejects(migrator(test.url).migrate(), {
      message: 'pgmq 1.10.4 is too old, run ALTER EXTENSION pgmq UPDATE (1.11 or newer needed)',
    })
    t.strictSame(await test.query("SELECT 1 FROM pg_extension WHERE extname = 'pgmq'"), [])
  })

  t.test(
    'when the role may not create it, then auto mode installs the interface and extension mode fails',
    async t => {
      const test = await withExtension(t, '1.12.1')
      const role = `owner_${test.name}`
      await test.query(
        `CREATE ROLE ${role} LOGIN PASSWORD 'x'; ALTER DATABASE ${test.name} OWNER TO ${role}; ALTER SCHEMA public OWNER TO ${role}`,
      )
      t.teardown(() =>
        test.query(
          `DROP OWNED BY ${role} CASCADE; ALTER DATABASE ${test.name} OWNER TO CURRENT_USER; DROP ROLE ${role}`,
        ),
      )
      const url = new URL(test.url)
      url.username = role
      url.password = 'x'
      await t.rejects(migrator(url.toString(), undefined, mode('extension')).migrate(), {
        message: /could not be created: permission denied.*42501/,
      })
      const auto = migrator(url.toString())
      t.strictSame(await auto.migrate(), allFiles)
      t.match(auto.lines.join('\n'), /could not be created .*installing its interface instead/)
      t.match(await auto.status(), { pgmq: { mode: 'embedded', version: '1.12.0' } })
    },
  )

  t.test('when it was dropped after migrating, then the interface is installed in its place', async t => {
    const test = await withExtension(t, '1.12.1')
    await migrator(test.url).migrate()
    await test.query('DROP EXTENSION pgmq CASCADE; DROP SCHEMA IF EXISTS pgmq CASCADE')
    t.strictSame(await migrator(test.url, undefined, mode('embedded')).migrate(), [
      '001_pgmq.sql',
      'R__pgmq_functions.sql',
    ])
  })
})

t.test('given a server without the extension', async t => {
  t.test('when migrated in extension mode, then the error says that it is not available', async t => {
    const test = await createEmptyDatabase(t)
    await t.rejects(migrator(test.url, undefined, mode('extension')).migrate(), {
      message: 'extension "pgmq" is not available on this server',
    })
    t.strictSame(await test.query("SELECT to_regclass('pgbus_schema_migrations') AS ledger"), [
      { ledger: null },
    ])
  })
})
