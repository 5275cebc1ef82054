import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { ClosedError } from '../../lib/core/errors.ts'
import type { Database, Statement } from '../../lib/db/database.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { Lease, Leases } from '../../lib/jobs/lease.ts'
import { type Outcome, Outcomes } from '../../lib/jobs/outcome.ts'
import { startServer } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { claimOne, drained, setup } from './support.ts'

t.test('given a job whose end cannot be written', async t => {
  const bench = await setup(t, { visibilityTimeout: '3s' })
  const { db, pgbus, lines } = bench
  let runs = 0
  defineJob({ name: 'unwritten' }, () => {
    runs += 1
  })

  t.test(
    'when its connection is terminated again and again, then it is archived in the end, run once',
    async t => {
      await pgbus.queues.ensure('default')
      const holder = new pg.Client({ connectionString: db.url })
      await holder.connect()
      t.teardown(() => holder.end())
      await holder.query('BEGIN')
      await holder.query('LOCK TABLE pgmq.a_pgbus_default IN ACCESS EXCLUSIVE MODE')
      const worker = await bench.work()
      await pgbus.enqueue('unwritten', null)
      const terminated = new Set<number>()
      const claimed = await waitFor(async () => {
        const rows = await db.query<{ vt: Date }>('SELECT vt FROM pgmq.q_pgbus_default WHERE read_ct = 1')
        return rows[0]
      })
      await waitFor(async () => {
        const ended = await db.query<{ pid: number }>(
          `SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
          WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%a_pgbus_default%'`,
        )
        for (const { pid } of ended) terminated.add(pid)
        return terminated.size >= 10
      })
      const renewed = await waitFor(async () => {
        const [row] = await db.query<{ vt: Date; read_ct: number }>(
          'SELECT vt, read_ct FROM pgmq.q_pgbus_default',
        )
        return row && row.vt > claimed.vt ? row : undefined
      })
      t.equal(renewed.read_ct, 1, 'its lease was renewed meanwhile, and nobody else has claimed it')
      await holder.query('ROLLBACK')
      await drained(bench)
      t.equal(runs, 1)
      t.equal(await bench.archived(), 1)
      t.same(await bench.failures(), [])
      await waitFor(() => worker.stats().inFlight === 0)
      t.equal(lines.filter(line => /cannot be recorded/.test(line.message)).length, 1, 'said once')
      await worker.stop()
    },
  )

  t.test(
    'when the database refuses the record of a failure, then the job is retried all the same',
    async t => {
      const attempts: number[] = []
      defineJob({ name: 'unrecorded', retry: () => '1s' }, (_args, { job }) => {
        attempts.push(job.attempt)
        if (job.attempt === 1) throw new Error('first')
      })
      await db.query("ALTER TABLE pgbus_failed_events ADD CHECK (error_message <> 'first')")
      await bench.work()
      await pgbus.enqueue('unrecorded', null)
      await drained(bench)
      t.same(attempts, [1, 2])
      t.ok(lines.some(line => line.fields.action === 'record_failed_event'))
    },
  )
})

t.test('given an end whose reply is lost', async t => {
  const bench = await setup(t, { visibilityTimeout: '1m' })
  const { pgbus, db } = bench
  await pgbus.queues.ensure('default')
  const reports: unknown[] = []

  /** Outcomes whose first statement that matches is executed, but not answered. */
  const write = async (sql: RegExp, outcome: Outcome, meanwhile: () => Promise<unknown> = async () => {}) => {
    await pgbus.enqueue('unanswered', null)
    const delivery = await claimOne(pgbus, 60_000)
    let lost = 0
    const silent = {
      query: async (statement: Statement) => {
        const result = await pgbus.db.query(statement)
        if (lost > 0 || !sql.test(statement.text)) return result
        lost += 1
        await meanwhile()
        throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
      },
    } as unknown as Database
    const { queues, config, log } = pgbus
    const outcomes = new Outcomes({
      db: silent,
      queues,
      config,
      log,
      report: error => void reports.push(error),
      onRelease: async () => undefined,
    })
    const lease = new Lease(delivery)
    const written = await outcomes.write(lease, outcome)
    t.equal(lost, 1)
    return written
  }
  const record = { errorClass: 'Error', errorMessage: 'no', backtrace: null }

  t.test('when it is an archive, then the repeat finds it done', async t => {
    t.equal(await write(/pgmq\."a_/, { kind: 'archive' }), 'written')
    t.equal(await bench.archived(), 1)
  })

  t.test('when it is a deletion, then the repeat does not take it for lost', async t => {
    t.equal(await write(/DELETE/, { kind: 'delete' }), 'written')
    t.same(await bench.rows(), [])
  })

  t.test('when it is a burial, then it counts as written, and is one', async t => {
    t.equal(await write(/_dlq/, { kind: 'bury', record, failedAt: new Date() }), 'written')
    t.equal((await bench.rows('pgbus_default_dlq')).length, 1)
  })

  t.test('when it is a retry that somebody claimed meanwhile, then it counts as written', async t => {
    const meanwhile = () => claimOne(pgbus, 60_000)
    t.equal(await write(/UPDATE/, { kind: 'retry', delayMs: 0, record }, meanwhile), 'written')
    t.match(await bench.rows(), [{ read_ct: 2, hidden: true }])
    await pgbus.queues.purge('default')
  })

  t.test('when it is a release, then it is not sent again: the message may run elsewhere', async t => {
    const meanwhile = () => claimOne(pgbus, 60_000)
    t.equal(await write(/UPDATE/, { kind: 'release' }, meanwhile), 'written')
    t.match(await bench.rows(), [{ read_ct: 1, hidden: true }], 'still claimed by the other')
    await db.query('DELETE FROM pgmq.q_pgbus_default')
  })
  t.same(reports, [])
})

t.test('given a retry while the lease is being renewed', async t => {
  const bench = await setup(t, { visibilityTimeout: '2s' })
  const { pgbus } = bench

  t.test('when the renewal is slow, then it does not put off the next attempt', async t => {
    let renewing = false
    const slow = deferred()
    const late = {
      query: async (statement: Statement) => {
        if (/'extended'/.test(statement.text)) {
          renewing = true
          await slow.promise
        }
        return pgbus.db.query(statement)
      },
    } as unknown as Database
    const { queues, config, log, report } = pgbus
    await pgbus.enqueue('slowly-renewed', null)
    const delivery = await claimOne(pgbus, 2_000)
    const leases = new Leases({ db: late, visibilityTimeout: 2_000, log })
    t.teardown(() => leases.close())
    const lease = leases.add(delivery)
    const outcomes = new Outcomes({ db: late, queues, config, log, report, onRelease: async () => undefined })
    await waitFor(() => renewing)
    const record = { errorClass: 'Error', errorMessage: 'no', backtrace: null }
    const written = outcomes.write(lease, { kind: 'retry', delayMs: 0, record })
    setImmediate(() => slow.resolve())
    t.equal(await written, 'written')
    t.match(await bench.rows(), [{ read_ct: 1, hidden: false }])
  })
})

t.test('given an instance that is closed under its writer', async t => {
  const bench = await setup(t)

  t.test('when an end is to be written, then it is given up without a report', async t => {
    const { pgbus, lines } = bench
    await pgbus.enqueue('closed-under', null)
    const delivery = await claimOne(pgbus, 60_000)
    const { db, queues, config, log, report } = pgbus
    const outcomes = new Outcomes({ db, queues, config, log, report, onRelease: async () => undefined })
    await pgbus.close()
    await t.rejects(db.query('SELECT 1'), ClosedError)
    t.equal(await outcomes.write(new Lease(delivery), { kind: 'archive' }), 'unrecorded')
    t.same(
      lines.filter(line => line.level === 'error'),
      [],
    )
  })
})

t.test('given many jobs that end together', async t => {
  const bench = await setup(t)

  t.test('when a statement is in flight, then the others share the next', async t => {
    const gate = deferred()
    defineJob({ name: 'together' }, () => gate.promise)
    await bench.pgbus.enqueueMany(Array.from({ length: 40 }, () => ({ job: 'together', args: null })))
    const worker = await bench.work({ concurrency: 40 })
    await waitFor(() => worker.stats().inFlight === 40)
    gate.resolve()
    await drained(bench)
    const rows = await bench.db.query<{ xmin: string }>(
      'SELECT DISTINCT xmin::text FROM pgmq.a_pgbus_default',
    )
    t.equal(await bench.archived(), 40)
    t.ok(rows.length <= 2, `${rows.length} statements`)
  })
})

t.test('given a server that goes away for a while', async t => {
  const server = await startServer(t)
  const pgbus = createTestPgbus(t, server, { pollingInterval: '20ms' })
  const reports: string[] = []
  const watched = createTestPgbus(t, server, {
    pollingInterval: '20ms',
    errorReporters: [(_error, { action }) => void reports.push(action)],
  })
  const worker = watched.createWorker({ name: null, queues: ['default'], concurrency: 5, processes: 1 })
  t.teardown(() => worker.stop({ timeout: 0, immediate: true }))

  t.test(
    'when it is back, then jobs end and start by themselves, and the outage was reported once',
    async t => {
      const gate = deferred()
      const ran: unknown[] = []
      defineJob({ name: 'outage' }, async args => {
        ran.push(args)
        if (args === 'during') await gate.promise
      })
      await worker.start()
      await pgbus.enqueue('outage', 'during')
      await waitFor(() => ran.length === 1)
      await server.stop()
      gate.resolve()
      await waitFor(() => reports.length > 0)
      await new Promise(resolve => setTimeout(resolve, 1_000))
      await server.start()
      await pgbus.enqueue('outage', 'after')
      await waitFor(() => ran.length === 2, { timeout: 20_000 })
      await waitFor(async () => (await server.query('SELECT FROM pgmq.q_pgbus_default')).length === 0, {
        timeout: 20_000,
      })
      t.same(ran, ['during', 'after'], 'the first did not run again')
      t.same(reports, ['fetch_messages'])
      await worker.stop()
    },
  )
})
