import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { createLogger } from '../../lib/core/log.ts'
import { Connector } from '../../lib/db/connector.ts'
import { Database, isConnectionError, isNotThereYet } from '../../lib/db/database.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../support/database.ts'
import { startPgProxy } from '../support/pg-proxy.ts'
import { waitFor } from '../support/wait-for.ts'

const log = createLogger({ logger: null, format: 'json', level: 'silent' })

function open(t: TestContext, url: string, overrides: PgbusConfig & { size?: number } = {}): Database {
  const { size = 3, ...options } = overrides
  const config = resolveConfig({ databaseUrl: url, ...options })
  const db = new Database({
    connector: new Connector(config),
    connect: { target: 'base', applicationName: 'pgbus', statementTimeout: config.readTimeout ?? 0 },
    size,
    sizeKey: 'pool.size',
    timeout: config.pool.timeout,
    readTimeout: config.readTimeout,
    requirePrimary: false,
    log,
  })
  t.teardown(() => db.close())
  return db
}

async function setup(t: TestContext): Promise<{ test: TestDatabase; db: Database }> {
  const test = await createDatabase(t)
  await test.query('CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY, word text)')
  return { test, db: open(t, test.url) }
}

async function killSessions(test: TestDatabase): Promise<void> {
  for (const { pid } of await test.census()) await test.query('SELECT pg_terminate_backend($1)', [pid])
  await test.vacated()
}

t.test('given pooled connections that the server ended while they were idle', async t => {
  const { test, db } = await setup(t)

  t.test('when a row is written, then the first call works and writes one row', async t => {
    for (let round = 0; round < 5; round += 1) {
      await Promise.all([db.query('SELECT 1'), db.query('SELECT 2'), db.query('SELECT 3')])
      await killSessions(test)
      await db.query('INSERT INTO ledger (word) VALUES ($1)', [`round ${round}`])
    }
    const rows = await test.query<{ word: string }>('SELECT word FROM ledger ORDER BY id')
    t.strictSame(
      rows.map(({ word }) => word),
      ['round 0', 'round 1', 'round 2', 'round 3', 'round 4'],
    )
  })
})

t.test('given a connection that dies under a running statement', async t => {
  const { test, db } = await setup(t)
  const killSleeper = () =>
    waitFor(
      async () =>
        (
          await test.query(
            `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND application_name = 'pgbus'`,
          )
        ).length,
    )

  t.test('when the statement may have run, then the caller is told and it is not repeated', async t => {
    const write = db.query(`INSERT INTO ledger (word) SELECT 'once' FROM pg_sleep(5)`)
    await Promise.all([t.rejects(write, { code: '57P01' }), killSleeper()])
    t.strictSame(await test.query(`SELECT 1 FROM ledger WHERE word = 'once'`), [])
  })

  t.test('when the statement is marked idempotent, then it is repeated once', async t => {
    const read = db.query<{ word: string }>({
      text: `SELECT 'here' AS word FROM pg_sleep(2)`,
      idempotent: true,
    })
    const [result] = await Promise.all([read, killSleeper()])
    t.strictSame(result.rows, [{ word: 'here' }])
  })

  t.test('when it was inside a transaction, then nothing of it stays and the pool goes on', async t => {
    const work = db.transaction(async tx => {
      await tx.query(`INSERT INTO ledger (word) VALUES ('half')`)
      await tx.query('SELECT pg_sleep(5)')
    })
    await Promise.all([t.rejects(work, { code: '57P01' }), killSleeper()])
    t.strictSame(await test.query(`SELECT 1 FROM ledger WHERE word = 'half'`), [])
    t.equal((await db.query('SELECT 1')).rowCount, 1)
  })
})

t.test('given a pool whose connections are all taken', async t => {
  const { test } = await setup(t)
  const db = open(t, test.url, { size: 1, pool: { timeout: '200ms' } })

  t.test('when another is asked for, then the error has the counters and the advice', async t => {
    const busy = db.query('SELECT pg_sleep(1)')
    await t.rejects(db.query('SELECT 1'), {
      code: 'PGBUS_ERR_POOL_TIMEOUT',
      message: /size 1, available 0, waiting \d, timeout 200 ms\) — raise pool\.size or lower concurrency/,
    })
    await busy
  })
})

t.test('given a statement that runs longer than readTimeout', async t => {
  const { test } = await setup(t)
  const db = open(t, test.url, { size: 1, readTimeout: '300ms' })

  t.test('when the server cancels it, then the connection stays', async t => {
    const before = (await db.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')).rows
    await t.rejects(db.query('SELECT pg_sleep(5)'), { code: 'PGBUS_ERR_READ_TIMEOUT' })
    t.strictSame((await db.query('SELECT pg_backend_pid() AS pid')).rows, before)
  })
})

t.test('given a peer that vanishes in the middle of a statement', async t => {
  const { test } = await setup(t)
  const proxy = await startPgProxy(t, test.url)
  const db = open(t, proxy.url, { size: 1, readTimeout: '100ms' })
  await db.query('SELECT 1')

  t.test(
    'when the deadline of the client passes, then the socket is destroyed and the next call works',
    async t => {
      proxy.blackhole(true)
      await t.rejects(db.query({ text: 'SELECT 1', idempotent: true }), { code: 'PGBUS_ERR_READ_TIMEOUT' })
      proxy.blackhole(false)
      t.equal((await db.query('SELECT 1')).rowCount, 1)
    },
  )
})

t.test('given a pooler that refuses start-up options', async t => {
  const { test } = await setup(t)
  const proxy = await startPgProxy(t, test.url)
  proxy.refuseOptions(true)

  t.test('when gucMode is options, then it fails once with a message that names the key', async t => {
    const connector = new Connector(resolveConfig({ databaseUrl: proxy.url }))
    await t.rejects(
      connector.connect({ target: 'base', applicationName: 'pgbus', statementTimeout: 0 }),
      /connection\.gucMode to "session"/,
    )
    await t.rejects(open(t, proxy.url).query('SELECT 1'), /connection\.gucMode to "session"/)
  })

  t.test('when gucMode is session, then settings are applied after connecting', async t => {
    const connection = { gucMode: 'session', variables: { work_mem: '3MB' } } as const
    const db = open(t, proxy.url, { connection })
    const { rows } = await db.query(
      `SELECT current_setting('work_mem') AS work_mem, current_setting('TimeZone') AS zone`,
    )
    t.strictSame(rows, [{ work_mem: '3MB', zone: 'UTC' }])
  })

  t.test('when a setting is wrong, then the socket is closed before the error is thrown', async t => {
    const config = resolveConfig({
      databaseUrl: proxy.url,
      connection: { gucMode: 'session', variables: { work_mem: 'lots' } },
    })
    await t.rejects(
      new Connector(config).connect({
        target: 'notify',
        applicationName: 'pgbus-listen',
        statementTimeout: 0,
      }),
      /work_mem/,
    )
    await waitFor(async () => (await test.census()).every(row => row.application_name !== 'pgbus-listen'))
  })
})

t.test('given values that the driver reads differently', async t => {
  const { db } = await setup(t)

  t.test('when bigint and timestamps are read, then they are numbers and UTC instants', async t => {
    const { rows } = await db.query(
      `SELECT 9007199254740991::bigint AS id, timestamp '2026-03-01 10:00:00.123' AS at, ARRAY[1::bigint] AS ids`,
    )
    t.equal(rows[0]?.id, 9_007_199_254_740_991)
    t.strictSame(rows[0]?.at, new Date('2026-03-01T10:00:00.123Z'))
    await t.rejects(db.query('SELECT 9007199254740992::bigint'), RangeError)
  })
})

t.test('given a database URL with options of its own', async t => {
  const { test } = await setup(t)
  const url = new URL(test.url)
  url.searchParams.set('options', '-c search_path=pgmq,public -c work_mem=3MB')

  t.test('when a connection is made, then it has them and ours', async t => {
    const db = open(t, url.toString(), {
      readTimeout: '7s',
      connection: { variables: { application_name: 'two words' } },
    })
    const { rows } =
      await db.query(`SELECT current_setting('search_path') AS path, current_setting('work_mem') AS memory,
      current_setting('TimeZone') AS zone, current_setting('statement_timeout') AS timeout, current_setting('plan_cache_mode') AS plans`)
    t.strictSame(rows, [
      { path: 'pgmq,public', memory: '3MB', zone: 'UTC', timeout: '7s', plans: 'force_custom_plan' },
    ])
  })

  t.test('when it cannot be decoded, then it is shown as it is', async t => {
    const connector = new Connector(resolveConfig({ databaseUrl: 'postgres://u@db/a%zz' }))
    t.equal(connector.describe('base'), 'db/a%zz')
  })
})

t.test('given errors of the driver and of the system', async t => {
  const error = (code: string) => Object.assign(new Error(code), { code })

  t.test('when they are told apart, then each says what is known', async t => {
    for (const code of [
      'ECONNREFUSED',
      'ENOENT',
      'ENOTFOUND',
      'EAI_AGAIN',
      'EHOSTUNREACH',
      'ENETUNREACH',
      '57P03',
      '53300',
    ]) {
      t.ok(isConnectionError(error(code)), `${code} is about the connection`)
      t.ok(isNotThereYet(error(code)), `${code} may pass`)
    }
    for (const code of ['ECONNRESET', 'ETIMEDOUT', 'EPIPE', '57P01', '57P02', '08006'])
      t.ok(isConnectionError(error(code)), code)
    for (const code of ['28P01', '3D000', '42P01', '23505', '57014']) {
      t.notOk(isConnectionError(error(code)), code)
      t.notOk(isNotThereYet(error(code)), code)
    }
  })
})

t.test('given different ways to say where the database is', async t => {
  t.test('when there is no host, then none is invented', async t => {
    const connector = new Connector(resolveConfig({ connection: { database: 'app', user: 'me' } }))
    const config = connector.clientConfig({ target: 'base', applicationName: 'pgbus', statementTimeout: 0 })
    t.notOk('host' in config)
    t.notOk('port' in config)
  })

  t.test(
    'when only streams.port is set, then the streams targets follow it and the base does not',
    async t => {
      const connector = new Connector(
        resolveConfig({ databaseUrl: 'postgres://u:p@db.internal:6432/app', streams: { port: 5432 } }),
      )
      t.equal(connector.describe('base'), 'db.internal:6432/app')
      t.equal(connector.describe('streams'), 'db.internal:5432/app')
      t.equal(connector.describe('streamsPool'), 'db.internal:5432/app')
    },
  )

  t.test('when streams.pool.port is set, then only that pool uses it', async t => {
    const connector = new Connector(
      resolveConfig({
        databaseUrl: 'postgres://u:p@db.internal:6432/app',
        streams: { port: 5432, pool: { port: 7432 } },
      }),
    )
    t.equal(connector.describe('streams'), 'db.internal:5432/app')
    t.equal(connector.describe('streamsPool'), 'db.internal:7432/app')
  })

  t.test('when a password is in the URL, then a description never shows it', async t => {
    const connector = new Connector(resolveConfig({ databaseUrl: 'postgres://me:p%40ss%3Aw%2Frd@db/app' }))
    t.notMatch(connector.describe('base'), /ss|rd/)
  })

  t.test('when nothing is configured, then the first use says what to set', async t => {
    const { PGHOST, PGDATABASE } = process.env
    delete process.env.PGHOST
    delete process.env.PGDATABASE
    t.teardown(() => Object.assign(process.env, PGHOST && { PGHOST }, PGDATABASE && { PGDATABASE }))
    const connector = new Connector(resolveConfig({}))
    t.throws(
      () => connector.clientConfig({ target: 'base', applicationName: 'pgbus', statementTimeout: 0 }),
      {
        code: 'PGBUS_ERR_CONFIG',
        message: /no database configured — set databaseUrl/,
      },
    )
  })
})
