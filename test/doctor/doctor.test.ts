import { readFileSync } from 'node:fs'
import t from 'tap'
import { loadConfig } from '../../lib/config/load.ts'
import type { PgbusConfig } from '../../lib/config/options.ts'
import type { Check } from '../../lib/doctor/check.ts'
import { checks, diagnose } from '../../lib/doctor/doctor.ts'
import { reportLines, shownConfig } from '../../lib/doctor/report.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { Pgbus } from '../../lib/pgbus.ts'
import {
  createDatabase,
  createEmptyDatabase,
  type TestContext,
  type TestDatabase,
} from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { startPgProxy } from '../support/pg-proxy.ts'
import { compiled } from '../support/spawn.ts'

const shared = await createDatabase(t)
const secret = 'a-secret-for-the-tests'

/** What each of the checks, or of those named, says of a configuration. */
async function examine(
  t: TestContext,
  db: Pick<TestDatabase, 'url'>,
  { production = false, ...overrides }: PgbusConfig & { production?: boolean } = {},
  names?: string[],
) {
  const loaded = await loadConfig({
    file: false,
    env: {},
    overrides: { databaseUrl: db.url, log: { level: 'silent' }, ...overrides },
  })
  const pgbus = new Pgbus(loaded.config, { poolSize: 5 })
  t.teardown(() => pgbus.close())
  const chosen = names ? checks.filter(({ name }) => names.includes(name)) : checks
  const { ok, checks: results } = await diagnose({ pgbus, loaded, production }, { only: chosen })
  const said = Object.fromEntries(results.map(({ name, status, detail }) => [name, `${status}: ${detail}`]))
  return { ok, of: (name: string) => said[name] ?? '', all: results }
}

t.test('given a database and a configuration that fit', async t => {
  t.test('when they are examined, then every check is content and says what it saw', async t => {
    const db = await createDatabase(t)
    const workers = [{ queues: ['default', 'mail'] }]
    const config = {
      workers,
      priority: { levels: 2 },
      streams: { secret, broadcastQueue: 'mail' },
      imports: [compiled('test/fixtures/jobs/jobs.ts')],
    }
    const setUp = createTestPgbus(t, db, config)
    await setUp.queues.ensure(['default', 'mail'])
    await setUp.enqueue('note', { n: 1 })
    await setUp.recurring.upsert('each_minute', { job: 'note', schedule: '@hourly' })
    const { ok, all } = await examine(t, db, config)
    t.ok(ok)
    t.match(
      all.map(({ name, status, detail }) => `${status} ${name}: ${detail}`),
      [
        'ok Configuration: valid (no file)',
        /^ok Database: PostgreSQL \d+.* at .*:\d+\/pgbus_t_\w+$/,
        'ok PGMQ schema: 1.12.0 (embedded)',
        'ok Migrations: up to date',
        'ok Queues: 4 of 4 are there',
        'ok LISTEN/NOTIFY: every queue notifies',
        'ok Process liveness: OK',
        'ok Handlers: 1 module, 1 recurring task, every waiting job has a handler',
        'ok Streams secret: set',
        'ok Broadcast queue: mail',
        'ok Primary affinity: on the primary',
        /^ok Dedicated connections: notify \(.*\) delivers; streams \(.*\) delivers$/,
        'ok Connection budget: per job host 1 LISTEN connection and at most',
        'ok Shutdown budget: drainTimeout 30 s, shutdownTimeout 35 s; the orchestrator has to wait for more than 35 s',
      ],
    )
  })

  t.test('when the checks are counted, then they are those of the page, in its order', async t => {
    const page = readFileSync(new URL('../../../docs/doctor.md', import.meta.url), 'utf8')
    t.strictSame(
      [...page.matchAll(/^\| `([^`]+)` \|/gm)].map(match => match[1]),
      checks.map(({ name }) => name),
    )
  })
})

t.test('given something that is missing', async t => {
  t.test(
    'when the database was never migrated, then that fails, and the rest is told all the same',
    async t => {
      const { ok, of, all } = await examine(t, await createEmptyDatabase(t))
      t.notOk(ok)
      t.equal(all.length, checks.length)
      t.match(of('Database'), /^ok/)
      t.match(of('PGMQ schema'), 'fail: absent — run "pgbus migrate"')
      t.match(of('Migrations'), 'fail: none is applied — run "pgbus migrate"')
      t.match(of('Process liveness'), /^fail: pgbus is not installed/)
      t.match(of('Dedicated connections'), /^ok/)
    },
  )

  t.test('when migrations are pending or nobody noted the version, then that is a warning', async t => {
    const db = await createDatabase(t)
    await db.query(`DELETE FROM pgbus_schema_migrations WHERE name = 'R__health.sql'`)
    await db.query('DELETE FROM pgbus_pgmq_schema_versions')
    const { ok, of } = await examine(t, db, {}, ['PGMQ schema', 'Migrations'])
    t.ok(ok)
    t.match(of('PGMQ schema'), /^warn: present, of a version that nobody recorded/)
    t.match(of('Migrations'), 'warn: pending: R__health.sql — run "pgbus migrate"')
    await db.query(`UPDATE pgbus_schema_migrations SET checksum = 'x' WHERE name = '002_core.sql'`)
    t.match((await examine(t, db, {}, ['Migrations'])).of('Migrations'), /^fail: 002_core.sql were changed/)
  })

  t.test('when queues, triggers, jobs or modules are missing, then they are named', async t => {
    const db = await createDatabase(t)
    const config = {
      workers: [{ queues: ['default', 'mail', 'sms_*'] }],
      priority: { levels: 2 },
      imports: ['nowhere/*.js'],
      streams: { broadcastQueue: 'broadcasts' },
    }
    const setUp = createTestPgbus(t, db, config)
    await setUp.enqueue('who-knows', {}, { priority: 0 })
    await setUp.enqueue('who-knows-this', {}, { queue: 'sms_out' })
    await setUp.enqueue('not-ours', {}, { queue: 'elsewhere' })
    defineHandler({ name: 'Unheard', on: 'orders.*' }, () => undefined)
    await setUp.recurring.upsert('nightly', { job: 'no-such-job', schedule: '@daily' })
    await db.query('DROP TRIGGER pgbus_notify_insert ON pgmq.q_pgbus_default_p0')
    const { ok, of } = await examine(t, db, config)
    t.ok(ok, 'none of this is a failure')
    t.match(
      of('Queues'),
      /^warn: not there yet: pgbus_default_p1, pgbus_mail_p0, pgbus_mail_p1; "pgbus start" makes them$/,
    )
    t.match(of('LISTEN/NOTIFY'), /^warn: no insert trigger on pgbus_default_p0; workers poll/)
    t.equal(
      of('Handlers'),
      'warn: nothing matches "nowhere/*.js" (imports); recurring tasks without a job: nightly (no-such-job); no consumer for event handlers: Unheard; jobs wait that nobody defines: who-knows in pgbus_default_p0, who-knows-this in pgbus_sms_out_p1',
    )
    t.match(of('Broadcast queue'), /^warn: no worker of this configuration reads "broadcasts"/)
    const off = await examine(t, db, { notify: { enabled: false } }, ['LISTEN/NOTIFY'])
    t.equal(off.of('LISTEN/NOTIFY'), 'ok: disabled; workers poll')
  })

  t.test('when a module cannot be imported, then that fails', async t => {
    const { ok, of } = await examine(t, shared, { imports: [compiled('test/fixtures/jobs/throws.ts')] }, [
      'Handlers',
    ])
    t.notOk(ok)
    t.match(of('Handlers'), /^fail: cannot import .*throws\.js/)
  })

  t.test('when the secret of streams is missing, then production is stricter', async t => {
    const names = ['Streams secret']
    t.match((await examine(t, shared, {}, names)).of('Streams secret'), /^warn: streams\.secret is not set/)
    t.match((await examine(t, shared, { production: true }, names)).of('Streams secret'), /^fail/)
    const off = { production: true, streams: { enabled: false } }
    t.equal((await examine(t, shared, off, names)).of('Streams secret'), 'ok: streams are disabled')
  })
})

t.test('given a cluster', async t => {
  const db = await createDatabase(t)
  const name = 'Process liveness'
  const liveness = async () => (await examine(t, db, { workers: 'default' }, [name])).of(name)

  t.test(
    'when it is degraded or stands still, then it is a warning or a failure, with the first reason',
    async t => {
      const setUp = createTestPgbus(t, db)
      await setUp.enqueue('note', {}, { queue: 'other' })
      t.match(await liveness(), /^warn: DEGRADED: messages wait in 1 queue for which .*: pgbus_other$/)
      await setUp.enqueue('note', {})
      await db.query("UPDATE pgmq.q_pgbus_default SET vt = vt - interval '1 h'")
      await db.query(
        `INSERT INTO pgbus_processes (kind, last_heartbeat_at, created_at, updated_at)
       SELECT 'worker', at, at, at FROM (SELECT now() AT TIME ZONE 'UTC' AS at) a`,
      )
      t.match(await liveness(), /^fail: STALLED: messages of 1 queue were never claimed .* \(\+1 more\)$/)
    },
  )
})

t.test('given connections', async t => {
  t.test('when notifications do not arrive, then that is a warning, with what to do', async t => {
    const proxy = await startPgProxy(t, shared.url)
    proxy.deaf(true)
    const config = { notify: { databaseUrl: proxy.url }, streams: { secret } }
    const { of } = await examine(t, shared, config, ['Dedicated connections'])
    t.match(
      of('Dedicated connections'),
      /^warn: notify \(.*\): notifications do not arrive, as behind a pooler.* — set notify\.databaseUrl to the server itself$/,
    )
  })

  t.test('when a target cannot be reached, then that fails while the pool works', async t => {
    const config = { streams: { secret, host: '127.0.0.1', port: 1 } }
    const { ok, of } = await examine(t, shared, config, ['Database', 'Dedicated connections'])
    t.notOk(ok)
    t.match(of('Database'), /^ok/)
    t.match(of('Dedicated connections'), /^fail: streams \(127\.0\.0\.1:1\/.*\): connect ECONNREFUSED/)
    const off = { streams: { enabled: false }, notify: { enabled: false } }
    t.equal(
      (await examine(t, shared, off, ['Dedicated connections'])).of('Dedicated connections'),
      'ok: none is needed',
    )
  })

  t.test('when they are counted, then with the right words', async t => {
    const budget = async (config: PgbusConfig) =>
      (await examine(t, shared, config, ['Connection budget'])).of('Connection budget')
    t.equal(
      await budget({ workers: 'default: 1', roles: 'workers', streams: { enabled: false } }),
      'ok: per job host 1 LISTEN connection and at most 2 pooled ones for 1 worker entry and 0 consumers in 1 process',
    )
    t.equal(
      await budget({
        workers: [
          { queues: ['a'], concurrency: 4, processes: 2 },
          { queues: ['b'], concurrency: 3 },
        ],
        consumers: [{ topics: ['#'] }],
        roles: ['workers', 'consumers'],
        notify: { scope: 'fork' },
        streams: { listenScope: 'process', pool: { size: 1 } },
      }),
      'ok: per job host 4 LISTEN connections and at most 16 pooled ones for 2 worker entries and 1 consumer in 4 processes; streams: 1 LISTEN connection per web process and at most 1 pooled one per web process',
    )
    t.match(await budget({ notify: { enabled: false } }), /^ok: per job host 0 LISTEN connections/)
  })

  t.test('when the drain takes longer than the end, then that is a warning', async t => {
    const config = { drainTimeout: '60s', shutdownTimeout: '50s' }
    const { of } = await examine(t, shared, config, ['Shutdown budget', 'Configuration'])
    t.match(of('Shutdown budget'), /^warn: shutdownTimeout \(50 s\) is below drainTimeout \(60 s\)/)
    t.match(of('Configuration'), /^warn: shutdownTimeout is below drainTimeout/)
  })
})

t.test('given checks that go wrong', async t => {
  t.test('when one throws secrets, or waits for ever, then it is a result without them', async t => {
    const loaded = await loadConfig({
      file: false,
      env: {},
      overrides: { databaseUrl: 'postgres://app:p%40ss@127.0.0.1:1/x' },
    })
    const pgbus = new Pgbus(loaded.config)
    t.teardown(() => pgbus.close())
    const odd: Check[] = [
      {
        name: 'throws',
        onError: 'warn',
        examine() {
          throw new Error('p@ss is wrong\nsaid postgres://app:p%40ss@127.0.0.1:1/x')
        },
      },
      { name: 'waits', examine: () => new Promise(() => undefined) },
    ]
    t.strictSame(await diagnose({ pgbus, loaded, production: false }, { only: odd, limit: 200 }), {
      ok: false,
      checks: [
        {
          name: 'throws',
          status: 'warn',
          detail: '[REDACTED] is wrong said postgres://app:[REDACTED]@127.0.0.1:1/x',
        },
        { name: 'waits', status: 'fail', detail: 'no answer within 0.2 s' },
      ],
    })
  })

  t.test('when it is printed, then as lines that align, with signs that the terminal has', async t => {
    const { config } = await loadConfig({
      file: false,
      env: {},
      overrides: {
        connection: { host: 'db', password: 'hidden' },
        workers: [{ queues: ['a', 'b'] }, { name: 'c', queues: ['d'] }],
      },
    })
    const diagnosis = {
      ok: false,
      checks: [
        { name: 'Database', status: 'fail' as const, detail: 'away' },
        { name: 'Migrations', status: 'ok' as const, detail: 'up to date' },
      ],
    }
    const shown = shownConfig(config)
    t.strictSame(reportLines(diagnosis, shown, { utf8: true }).slice(0, 7), [
      'pgbus doctor',
      '========================================',
      '✗ Database               away',
      '✓ Migrations             up to date',
      '',
      'Configuration',
      '----------------------------------------',
    ])
    t.match(reportLines(diagnosis, shown, { utf8: false })[2], /^XX Database/)
    t.match(shown, { capsules: 'a+b, c', connection: 'host=db password=[REDACTED]' })
    t.notOk('database_url' in shown)
    t.strictSame(reportLines(diagnosis, undefined, { utf8: true }).length, 4)
  })
})
