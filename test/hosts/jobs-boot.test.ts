import { createServer } from 'node:net'
import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, createEmptyDatabase, startServer } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a database that cannot be used', async t => {
  t.test(
    'when the password is wrong, then it does not try again: the exit code is 1, naming the database',
    async t => {
      const db = await createDatabase(t)
      const url = new URL(db.url)
      url.password = 'not-the-password'
      const host = spawnJobs(t, { url: url.toString() })
      t.strictSame(await host.exited, { code: 1, signal: null })
      t.notMatch(host.output(), /trying again/)
      t.match(
        host.output(),
        new RegExp(
          `pgbus: cannot reach the database via env \\(${url.host}/${db.name}\\): password authentication failed`,
        ),
      )
      t.notMatch(host.output(), /not-the-password/)
      t.notMatch(host.output(), /\n\s+at /, 'no stack')
      t.strictSame(host.survivors(), [])
    },
  )

  t.test(
    'when it is empty, then the exit code is 1, naming the command that helps, and nothing is forked',
    async t => {
      const db = await createEmptyDatabase(t)
      const host = spawnJobs(t, db)
      t.strictSame(await host.exited, { code: 1, signal: null })
      t.match(host.output(), /pgbus: pgbus is not installed in this database — run "pgbus migrate"/)
      t.notMatch(host.output(), /worker started/)
      t.strictSame(host.survivors(), [])
    },
  )

  t.test('when nobody answers for databaseWait, then the exit code is 1', async t => {
    const host = spawnJobs(
      t,
      { url: 'postgres://app:very-secret@127.0.0.1:1/orders' },
      { env: { PGBUS_DATABASE_WAIT: '2s' } },
    )
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.match(host.output(), /trying again for 2 s/)
    t.match(
      host.output(),
      /pgbus: cannot reach the database via env \(127\.0\.0\.1:1\/orders\): .*ECONNREFUSED/,
    )
    t.notMatch(host.output(), /very-secret/)
  })

  t.test('when it is told to stop while it waits, then it ends at once with 0', async t => {
    const host = spawnJobs(t, { url: 'postgres://app:x@127.0.0.1:1/orders' })
    await host.waitForOutput(/trying again for 120 s/)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when it accepts connections and says nothing, then a stop is still obeyed', async t => {
    const silent = createServer(() => undefined)
    await new Promise<void>(resolve => silent.listen(0, '127.0.0.1', resolve))
    t.teardown(() => silent.close())
    const { port } = silent.address() as import('node:net').AddressInfo
    const host = spawnJobs(t, { url: `postgres://app:x@127.0.0.1:${port}/orders` })
    await host.waitForOutput(/boot: worker=/)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })
})

t.test('given a configuration with mistakes', async t => {
  t.test('when started, then all of them are told and the exit code is 1', async t => {
    const host = spawnNode(t, compiled('bin/pgbus.ts'), ['start'], {
      cwd: t.testdir({}),
      env: { PGBUS_DATABASE_URL: 'postgres://127.0.0.1:1/x', PGBUS_POOL_SIZE: 'many', PGBUS_WORKERS: 'a:b' },
    })
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.match(host.output(), /^pgbus: Invalid pgbus configuration \(2 problems\)\n/)
    t.match(host.output(), /pool\.size|PGBUS_POOL_SIZE/)
    t.match(host.output(), /workers/)
  })

  t.test('when there is nothing to run, then it says what to set', async t => {
    const db = await createDatabase(t)
    const host = spawnJobs(t, db, { workers: 'null' })
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.match(host.output(), /pgbus: no role has anything to run/)
  })
})

t.test('given an empty database and migrations.onBoot apply', async t => {
  t.test('when ten hosts start at once, then all come up, on one schema', async t => {
    const db = await createEmptyDatabase(t)
    const reference = await createDatabase(t)
    const hosts = Array.from({ length: 10 }, () =>
      spawnJobs(t, db, { workers: 'default: 1', env: { PGBUS_MIGRATIONS_ON_BOOT: 'apply' } }),
    )
    for (const host of hosts) await host.waitForOutput(/ready: 1 children/, 120_000)
    for (const host of hosts) host.signal('SIGTERM')
    for (const host of hosts) {
      t.strictSame(await host.exited, { code: 0, signal: null })
      t.notMatch(host.output(), /duplicate key|"lvl":"ERROR"/)
    }
    const objects = `
      SELECT 'table' AS kind, n.nspname || '.' || c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
       WHERE n.nspname IN ('public', 'pgmq') AND c.relname !~ '^[qa]_|_pgbus_default' AND c.relkind IN ('r', 'i', 'S')
      UNION ALL
      SELECT 'function', p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace IN ('public'::regnamespace, 'pgmq'::regnamespace)
      ORDER BY 1, 2`
    t.strictSame(await db.query(objects), await reference.query(objects))
  })
})

t.test('given a server that comes and goes', async t => {
  const server = await startServer(t)
  const pgbus = createTestPgbus(t, server)
  await server.query(ledgerTable)
  const count = async () =>
    (await server.query('SELECT DISTINCT n FROM ledger WHERE ended_at IS NOT NULL')).length

  await t.test('when it starts after the host, then the host comes up by itself', async t => {
    await server.stop()
    const host = spawnJobs(t, server, { workers: 'default: 1; default: 1' })
    await host.waitForOutput(/cannot reach the database .* trying again for 120 s/)
    t.notMatch(host.output(), /is ready/)
    await server.start()
    await host.booted(2)
    await pgbus.enqueue('note', { n: 1 })
    await waitFor(async () => (await count()) === 1)

    await t.test('when it restarts while the host runs, then work resumes by itself', async t => {
      await server.stop()
      await waitFor(() => /LISTEN connection lost/.test(host.output()))
      await server.start()
      await pgbus.enqueueMany([2, 3, 4, 5].map(n => ({ job: 'note', args: { n } })))
      await waitFor(async () => (await count()) === 5, { timeout: 30_000, message: 'all jobs' })
      await waitFor(async () => {
        const rows = await server.query(
          `SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbus-listen'`,
        )
        return rows.length === 1
      })
      t.equal(host.ready().length, 2, 'no worker was replaced')
    })

    await t.test('when it is away while the host is told to stop, then it ends in time', async t => {
      await server.stop()
      host.signal('SIGTERM')
      t.strictSame(await host.exited, { code: 0, signal: null })
      t.strictSame(host.survivors(), [])
    })
  })
})
