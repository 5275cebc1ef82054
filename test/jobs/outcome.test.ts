import pg from 'pg'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { startServer } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

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
        return terminated.size >= 5
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
