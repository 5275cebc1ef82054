import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { defineHandler } from '../../lib/events/define.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import {
  createDatabase,
  createEmptyDatabase,
  type TestContext,
  type TestDatabase,
} from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { startPgProxy } from '../support/pg-proxy.ts'
import { waitFor } from '../support/wait-for.ts'

const workers = [{ queues: ['default', 'mail'] }]

/** For tests that leave nothing behind. */
const shared = await createDatabase(t)

async function setup(
  t: TestContext,
  config: PgbusConfig = {},
  given?: TestDatabase,
): Promise<{ db: TestDatabase; pgbus: Pgbus; codes: () => Promise<string[]> }> {
  const db = given ?? (await createDatabase(t))
  const pgbus = createTestPgbus(t, db, { workers, ...config })
  const codes = async () => (await pgbus.health()).signals.map(({ code }) => code)
  return { db, pgbus, codes }
}

const addProcess = (db: TestDatabase, kind: string, metadata: object = {}, age = 0, loopAge = 0) =>
  db.query(
    `INSERT INTO pgbus_processes (kind, hostname, pid, metadata, last_heartbeat_at, created_at, updated_at)
SELECT $1, 'there', 7, $2::jsonb || jsonb_build_object('loop_tick_at', extract(epoch FROM clock_timestamp()) - $3 - $4),
       at, at, at FROM (SELECT (clock_timestamp() AT TIME ZONE 'UTC') - $3 * interval '1 second' AS at) a`,
    [kind, JSON.stringify(metadata), age, loopAge],
  )
/** Lets everything that is due in a queue have been so for two minutes. */
const wait = (db: TestDatabase, physical: string) =>
  db.query(`UPDATE pgmq."q_${physical}" SET vt = vt - interval '2 minutes' WHERE vt <= clock_timestamp()`)

t.test('given a cluster', async t => {
  t.test('when nothing was ever enqueued, then it is well', async t => {
    const { pgbus } = await setup(t, {}, shared)
    t.match(await pgbus.health(), {
      status: 'OK',
      reasons: [],
      signals: [],
      checkedAt: Date,
      summary: { queues: 0, totalVisible: 0, totalDepth: 0, workers: 0, oldestTransactionAge: null },
    })
  })

  t.test('when a worker does not take what waits, then it stands still, after the grace', async t => {
    const { db, pgbus, codes } = await setup(t)
    await addProcess(db, 'worker')
    await pgbus.enqueueMany(Array.from({ length: 50 }, () => ({ job: 'note', args: {} })))
    t.strictSame(await codes(), [], 'a burst')
    t.strictSame(
      (await pgbus.health({ unreadGrace: 0 })).signals.map(({ code }) => code),
      ['NEVER_CLAIMED'],
      'without a grace',
    )
    await wait(db, 'pgbus_default')
    t.match(await pgbus.health(), {
      status: 'STALLED',
      signals: [{ code: 'NEVER_CLAIMED', count: 1, queues: ['pgbus_default'] }],
      summary: { queues: 1, totalVisible: 50, totalDepth: 50, workers: 1 },
    })
    await db.query('UPDATE pgmq.q_pgbus_default SET read_ct = 1, vt = vt - interval $$1 h$$ WHERE msg_id = 1')
    t.strictSame(await codes(), ['NEVER_CLAIMED'], 'one that was tried before stands in front')
  })

  t.test('when a job waits long, then it depends on the others whether its queue is worked on', async t => {
    const read = "last_read_at = now() - interval '1 h', vt = now() + interval '20 s'"
    const failed = (queue: string) =>
      `INSERT INTO pgbus_failed_events (queue_name, msg_id, retry_count) VALUES ('${queue}', 2, 0)`
    /** What happened to the second of two jobs of a queue, and whether that is work. */
    const cases: Record<string, [statements: (table: string) => string[], isWork: boolean]> = {
      nothing: [() => [], false],
      was_finished: [() => ["SELECT pgmq.archive('pgbus_was_finished', 2)"], true],
      was_finished_long_ago: [
        () => [
          "SELECT pgmq.archive('pgbus_was_finished_long_ago', 2)",
          "UPDATE pgmq.a_pgbus_was_finished_long_ago SET archived_at = archived_at - interval '91 s'",
        ],
        false,
      ],
      was_taken: [
        table => [`UPDATE ${table} SET read_ct = 1, last_read_at = now(), vt = now() WHERE msg_id = 2`],
        true,
      ],
      was_given_back: [
        table => [`UPDATE ${table} SET last_read_at = now(), vt = now() WHERE msg_id = 2`],
        true,
      ],
      runs_for_an_hour: [table => [`UPDATE ${table} SET read_ct = 1, ${read} WHERE msg_id = 2`], true],
      runs_again: [
        table => [`UPDATE ${table} SET read_ct = 2, ${read} WHERE msg_id = 2`, failed('runs_again')],
        true,
      ],
      failed: [
        table => [`UPDATE ${table} SET read_ct = 1, ${read} WHERE msg_id = 2`, failed('failed')],
        false,
      ],
      heads_its_group: [
        table => [
          `UPDATE ${table} SET read_ct = 1, ${read}, headers = '{"x-pgmq-group":"g"}' WHERE msg_id = 2`,
          failed('heads_its_group'),
        ],
        true,
      ],
      is_scheduled: [table => [`UPDATE ${table} SET vt = now() + interval '20 s' WHERE msg_id = 2`], false],
    }
    const queues = Object.keys(cases)
    const { db, pgbus } = await setup(t, { workers: [{ queues }] })
    await addProcess(db, 'worker')
    for (const [queue, [statements]] of Object.entries(cases)) {
      await pgbus.enqueueMany(Array.from({ length: 2 }, () => ({ job: 'note', args: {}, queue })))
      await wait(db, `pgbus_${queue}`)
      for (const statement of statements(`pgmq.q_pgbus_${queue}`)) await db.query(statement)
    }
    const { signals } = await pgbus.health()
    for (const [queue, [, isWork]] of Object.entries(cases))
      t.equal(signals[0]?.queues?.includes(`pgbus_${queue}`), !isWork, queue)
  })

  t.test('when its processes beat or not, then their rows tell', async t => {
    const { db, pgbus, codes } = await setup(t)
    await pgbus.enqueue('note', {})
    await addProcess(db, 'worker', { queues: ['default'] }, 299)
    t.strictSame(await codes(), [])
    await addProcess(db, 'worker', {}, 10, 91)
    await addProcess(db, 'scheduler', { event_loop_lag_ms: 4_000 })
    await addProcess(db, 'supervisor', { queues: 'none', event_loop_lag_ms: 'much' }, 301)
    await db.query("UPDATE pgbus_processes SET metadata = NULL WHERE kind = 'supervisor'")
    const { status, signals, summary } = await pgbus.health()
    t.equal(status, 'STALLED')
    t.strictSame(
      signals.map(({ code }) => code),
      ['WORKER_STALLED', 'PROCESS_STALE', 'EVENT_LOOP_LAG'],
    )
    t.match(summary, { workers: 2, stalledWorkers: 1, staleProcesses: 1 })
  })

  t.test('when the clock of this process is wrong, then that of the database counts', async t => {
    const { db, pgbus, codes } = await setup(t)
    await addProcess(db, 'worker')
    await pgbus.enqueue('note', {})
    const { now } = Date
    t.teardown(() => {
      Date.now = now
    })
    Date.now = () => now() + 3_600_000
    t.strictSame(await codes(), [])
    t.ok(Math.abs((await pgbus.health()).checkedAt.getTime() - now()) < 600_000)
  })

  t.test('when a queue is paused, then it is degraded until the pause is over', async t => {
    const { db, pgbus, codes } = await setup(t, { priority: { levels: 2 } })
    await addProcess(db, 'worker')
    await pgbus.enqueue('note', {}, { queue: 'mail', priority: 1 })
    await wait(db, 'pgbus_mail_p1')
    await pgbus.queues.pause('mail')
    t.strictSame(await codes(), ['PAUSED_BACKLOG'])
    await db.query(
      "UPDATE pgbus_queue_states SET circuit_breaker_resume_at = (now() AT TIME ZONE 'UTC') - interval '1 s'",
    )
    t.strictSame(await codes(), ['NEVER_CLAIMED'])
  })

  t.test('when queues are nobody’s, then that is told of ours only', async t => {
    const { db, pgbus, codes } = await setup(t)
    await pgbus.enqueue('note', {}, { queue: 'other' })
    await db.query("SELECT pgmq.create('theirs'), pgmq.create('pgbus2_x')")
    await db.query("SELECT pgmq.send('theirs', '{}'), pgmq.send('pgbus2_x', '{}')")
    t.match(await pgbus.health(), {
      status: 'DEGRADED',
      signals: [{ code: 'UNDRAINED_BACKLOG', queues: ['pgbus_other'] }],
      summary: { queues: 1, totalVisible: 1 },
    })
    await addProcess(db, 'worker', { queues: ['oth*'] })
    t.strictSame(await codes(), [])
    await db.query("SELECT pgmq.bind_topic('orders.*', 'pgbus_other')")
    t.strictSame(await codes(), ['UNDRAINED_BACKLOG'], 'a pattern does not find what events feed')
    await addProcess(db, 'consumer')
    t.strictSame(await codes(), [])
  })

  t.test('when a consumer handles events, then their queue is no backlog until it ends', async t => {
    defineHandler({ name: 'Watcher', on: 'health.*' }, () => undefined)
    const { db, pgbus, codes } = await setup(t)
    const consumer = pgbus.consumer({ topics: ['health.*'] })
    await consumer.start()
    await pgbus.publish('health.changed', {})
    await waitFor(async () => (await pgbus.health({ unreadGrace: 0 })).summary.totalDepth === 0)
    t.strictSame(await codes(), [])
    await consumer.stop()
    await pgbus.publish('health.changed', {})
    await wait(db, 'pgbus_watcher')
    t.strictSame(await codes(), ['NO_WORKER'])
    await addProcess(db, 'consumer', { queues: ['watcher'] })
    t.strictSame(await codes(), [], 'it has handled one just now')
    await db.query("UPDATE pgmq.a_pgbus_watcher SET archived_at = archived_at - interval '2 minutes'")
    t.strictSame(await codes(), ['NEVER_CLAIMED'])
  })

  t.test('when jobs are delayed or dead, then they do not wait', async t => {
    const { db, pgbus, codes } = await setup(t)
    await addProcess(db, 'worker')
    await pgbus.enqueue('note', {}, { delay: '1h' })
    t.strictSame(await codes(), [])
    await pgbus.queues.ensurePhysical('pgbus_default_dlq', 'dlq')
    t.strictSame(await codes(), [])
    await db.query("SELECT pgmq.send('pgbus_default_dlq', '{}')")
    await wait(db, 'pgbus_default_dlq')
    t.strictSame(await codes(), ['DLQ_NOT_EMPTY'])
  })

  t.test('when another client keeps streams in queues, then their rows wait for nobody', async t => {
    const { db, pgbus, codes } = await setup(t, { workers: [{ queues: ['*'] }] })
    await addProcess(db, 'worker')
    for (const name of ['news', 'old_news']) {
      await pgbus.enqueue('note', {}, { queue: name })
      await wait(db, `pgbus_${name}`)
    }
    await db.query('CREATE INDEX a_pgbus_old_news_msg_id_idx ON pgmq.a_pgbus_old_news (msg_id)')
    await db.query('CREATE INDEX a_pgbus_news_msg_id_idx ON pgmq.a_pgbus_news (msg_id)')
    t.strictSame(await codes(), [], 'known by their index alone')
    await db.query(
      `CREATE TABLE pgbus_stream_queues (queue_name varchar NOT NULL UNIQUE); INSERT INTO pgbus_stream_queues VALUES ('pgbus_news')`,
    )
    const { signals, summary } = await pgbus.health()
    t.strictSame(signals, [
      { code: 'UNREGISTERED_STREAMS', severity: 'degraded', count: 1, queues: ['pgbus_old_news'] },
    ])
    t.match(summary, { queues: 2, totalVisible: 0, totalDepth: 0 })
    await db.query(`INSERT INTO pgbus_stream_queues VALUES ('pgbus_old_news')`)
    t.strictSame(await codes(), [])
  })

  t.test('when a table is locked or gone, then the others are looked at', async t => {
    const { db, pgbus } = await setup(t)
    await addProcess(db, 'worker')
    for (const queue of ['default', 'locked', 'dropped']) await pgbus.enqueue('note', {}, { queue })
    await wait(db, 'pgbus_default')
    await db.query('DROP TABLE pgmq.q_pgbus_dropped')
    const held = await pgbus.connector.connect({
      target: 'base',
      applicationName: 'test',
      statementTimeout: 0,
    })
    await held.query('BEGIN; LOCK TABLE pgmq.q_pgbus_locked')
    const { signals, summary } = await pgbus.health()
    await held.end()
    t.match(signals, [
      { code: 'NEVER_CLAIMED', queues: ['pgbus_default'] },
      { code: 'QUEUE_LOCKED', queues: ['pgbus_locked'] },
    ])
    t.equal(summary.queues, 2)
  })

  t.test(
    'when a queue holds very much, then it is looked at to a limit, and a standstill is seen',
    async t => {
      const { db, pgbus, codes } = await setup(t)
      await addProcess(db, 'worker')
      await pgbus.queues.ensure('default')
      await db.query(
        `INSERT INTO pgmq.q_pgbus_default (vt, message, read_ct) SELECT now() + (i % 2) * interval '1 h', '{}', 1 - i % 2 FROM generate_series(1, 21000) i`,
      )
      t.match((await pgbus.health()).summary, { totalVisible: 10_000, totalDepth: 10_000 })
      t.strictSame(await codes(), [])
      await wait(db, 'pgbus_default')
      t.strictSame(await codes(), ['NEVER_CLAIMED'], 'behind those that were claimed, others may be')
      await db.query(
        `UPDATE pgmq.q_pgbus_default SET vt = now() + interval '2 h', last_read_at = now() - interval '1 h' WHERE msg_id = 2`,
      )
      t.strictSame(await codes(), [], 'one that runs is found among the oldest')
    },
  )

  t.test('when transactions are open, then the oldest is told', async t => {
    const { pgbus } = await setup(t, {}, shared)
    t.equal((await pgbus.health()).summary.oldestTransactionAge, null)
    const held = await pgbus.connector.connect({
      target: 'base',
      applicationName: 'test',
      statementTimeout: 0,
    })
    await held.query('BEGIN; SELECT 1')
    t.type((await pgbus.health()).summary.oldestTransactionAge, 'number')
    await held.end()
  })

  t.test('when statistics may not be read, then the rest is, and a warning is logged', async t => {
    const db = await createDatabase(t)
    const role = `role_${db.name}`
    await db.query(`CREATE ROLE ${role} LOGIN PASSWORD 'x'`)
    await db.query(`GRANT USAGE ON SCHEMA pgmq TO ${role}`)
    await db.query(`GRANT SELECT ON ALL TABLES IN SCHEMA pgmq, public TO ${role}`)
    await db.query('REVOKE SELECT ON pg_stat_activity FROM PUBLIC')
    const url = new URL(db.url)
    url.username = role
    url.password = 'x'
    const warnings: string[] = []
    const logger = {
      debug: () => undefined,
      info: () => undefined,
      error: () => undefined,
      warn: (_: object, message: string) => void warnings.push(message),
      child: () => logger,
    }
    const pgbus = createTestPgbus(t, { url: url.toString() }, { log: { logger } as never })
    const { status, reasons, signals } = await pgbus.health()
    t.equal(status, 'DEGRADED')
    t.match(signals, [{ code: 'STATS_UNAVAILABLE' }])
    t.match(reasons[0], /permission denied for view pg_stat_activity$/)
    t.match(warnings, ['statistics of the database could not be read'])
    await pgbus.close()
    await db.vacated()
    await db.query(`DROP OWNED BY ${role}`)
    await db.query(`DROP ROLE ${role}`)
  })
})

t.test('given that the verdict cannot be made', async t => {
  t.test('when the database was not migrated, then it says what to do', async t => {
    const pgbus = createTestPgbus(t, await createEmptyDatabase(t))
    await t.rejects(pgbus.health(), { code: 'PGBUS_ERR_SCHEMA_NOT_READY', message: /run "pgbus migrate"$/ })
  })

  t.test(
    'when the server does not answer, then a limited time passes, and later it is asked anew',
    async t => {
      const db = await createDatabase(t)
      const proxy = await startPgProxy(t, db.url)
      const pgbus = createTestPgbus(t, proxy, { health: { timeout: 2_000 } })
      t.equal((await pgbus.health()).status, 'OK')
      proxy.blackhole(true)
      await t.rejects(pgbus.health(), { code: 'PGBUS_ERR_HEALTH_TIMEOUT' }, 'on the connection that it has')
      await t.rejects(pgbus.health(), { code: 'PGBUS_ERR_HEALTH_TIMEOUT' }, 'on a new one')
      proxy.blackhole(false)
      t.equal((await pgbus.health()).status, 'OK')
      proxy.cut()
      t.equal((await pgbus.health()).status, 'OK', 'a connection that died meanwhile is replaced')
    },
  )

  t.test('when a statement takes too long, then the server ends it too', async t => {
    const { db, pgbus } = await setup(t, { health: { timeout: 300 } })
    await db.query(`DROP FUNCTION pgbus_queue_health;
CREATE FUNCTION pgbus_queue_health(text, float8, int) RETURNS SETOF text LANGUAGE sql AS 'SELECT pg_sleep(60)::text'`)
    await t.rejects(pgbus.health(), { code: 'PGBUS_ERR_HEALTH_TIMEOUT' })
    await pgbus.close()
    await db.vacated()
  })

  t.test('when nothing listens there, then the driver’s error is thrown', async t => {
    const pgbus = createTestPgbus(t, { url: 'postgres://127.0.0.1:1/x' })
    await t.rejects(pgbus.health(), { code: 'ECONNREFUSED' })
  })

  t.test('when the grace is none, or the instance is closed, then that is said', async t => {
    const { pgbus } = await setup(t, {}, shared)
    await t.rejects(pgbus.health({ unreadGrace: 'soon' }), {
      name: 'TypeError',
      message: 'unreadGrace must be',
    })
    const asked = pgbus.health()
    await pgbus.close()
    await t.rejects(asked, { code: 'PGBUS_ERR_CLOSED' }, 'while it was asked')
    await t.rejects(pgbus.health(), { code: 'PGBUS_ERR_CLOSED' })
  })
})

t.test('given a process whose pooled connections are all in use', async t => {
  const { pgbus } = await setup(t, { pool: { size: 1, timeout: 100 } }, shared)

  t.test('when it asks how the cluster is, then it has an answer', async t => {
    await pgbus.db.transaction(async () => {
      const verdicts = await Promise.all([pgbus.health(), pgbus.health(), pgbus.health()])
      t.strictSame(
        verdicts.map(({ status }) => status),
        ['OK', 'OK', 'OK'],
      )
    })
    t.equal((await pgbus.health()).status, 'OK')
  })
})
