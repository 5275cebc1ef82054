import t from 'tap'
import { type Deferred, deferred } from '../../lib/core/deferred.ts'
import type { MaintenanceTask, TaskContext } from '../../lib/maintenance/task.ts'
import { openSession } from '../pgmq/setup.ts'
import { startServer } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { adminPid, rig } from './setup.ts'

function task(name: string, run: (context: TaskContext) => Promise<unknown>, every = 30): MaintenanceTask {
  return {
    name,
    lock: 900,
    every,
    run: async context => {
      await run(context)
      return 'done'
    },
  }
}

t.test('given a dispatcher', async t => {
  t.test('when no task is due, then no connection is open, and one only while a task runs', async t => {
    const own = await rig(t)
    const held: Deferred[] = []
    const maintenance = own.maintenance([
      task('one', async ({ query }) => {
        t.equal(
          (await query<{ s: string }>("SELECT current_setting('statement_timeout') AS s")).rows[0]?.s,
          '0',
        )
        const release = deferred()
        held.push(release)
        await release.promise
      }),
    ])
    await maintenance.start()
    for (const run of [1, 2]) {
      await waitFor(() => held.length === run)
      t.not(await adminPid(own.test), undefined)
      held.at(-1)?.resolve()
    }
    await maintenance.stop()
    await waitFor(async () => (await adminPid(own.test)) === undefined)
  })

  t.test(
    'when it lives, then its row tells so and when its loop went round; then the row is gone',
    async t => {
      const own = await rig(t)
      const maintenance = own.maintenance([])
      await maintenance.start()
      t.match(
        await own.test.query(
          `SELECT kind, abs((metadata ->> 'loop_tick_at')::float8 - extract(epoch FROM now())) < 60 AS ticks FROM pgbus_processes`,
        ),
        [{ kind: 'dispatcher', ticks: true }],
      )
      await maintenance.stop()
      t.strictSame(await own.test.query('SELECT 1 FROM pgbus_processes'), [])
      await maintenance.stop()
    },
  )

  t.test('when a task fails again and again, then the others run and it is reported once', async t => {
    const own = await rig(t)
    const runs = { bad: 0, good: 0 }
    const maintenance = own.maintenance(
      [
        task('bad', async ({ query }) => {
          runs.bad += 1
          if (runs.bad <= 3) await query('SELECT no_such_function()')
        }),
        task('good', async () => {
          runs.good += 1
        }),
      ],
      1,
    )
    await maintenance.start()
    await waitFor(() => runs.bad >= 4 && runs.good >= 4)
    await waitFor(() => own.lines.some(line => line.msg.includes('works again')))
    await maintenance.stop()
    t.match(own.reports, [{ message: /no_such_function/, task: 'bad' }])
    t.equal(own.reports.length, 1)
  })

  t.test('when a task throws something of its own, then that is a failure like any other', async t => {
    const own = await rig(t)
    const maintenance = own.maintenance([
      task('renamed', async context => (context as unknown as { gone(): void }).gone()),
    ])
    await maintenance.start()
    await waitFor(() => own.reports.length === 1)
    t.match(own.reports, [{ message: /gone is not a function/, task: 'renamed' }])
  })

  t.test('when its connection is ended meanwhile, then that is no report, and the rest goes on', async t => {
    const own = await rig(t)
    const runs = { cut: 0, after: 0 }
    const maintenance = own.maintenance(
      [
        task('cut', async ({ query }) => {
          runs.cut += 1
          if (runs.cut === 1) await query('SELECT pg_terminate_backend(pg_backend_pid())')
        }),
        task('after', async ({ query }) => {
          await query('SELECT 1')
          runs.after += 1
        }),
      ],
      1,
    )
    await maintenance.start()
    await waitFor(() => runs.cut >= 2 && runs.after >= 1)
    t.strictSame(own.reports, [])
    t.ok(own.lines.some(line => line.level === 30 && line.msg.includes('the connection was lost')))
  })

  t.test('when another process holds a lock, then the task is left to it', async t => {
    const own = await rig(t)
    const session = await openSession(t, own.test.url)
    await session.query('SELECT pg_advisory_lock(1885823602, 900)')
    const results: unknown[] = []
    const maintenance = own.maintenance([
      task('shared', async ({ locked }) => void results.push(await locked(async () => 'mine'))),
    ])
    await maintenance.start()
    await waitFor(() => results.length >= 2)
    t.strictSame([...new Set(results)], [undefined])
    await session.query('SELECT pg_advisory_unlock(1885823602, 900)')
    await waitFor(() => results.includes('mine'))
    t.strictSame(own.reports, [])
  })

  t.test('when it is told to stop during a long statement, then that is cancelled', async t => {
    const own = await rig(t, { drainTimeout: 100 })
    let started = false
    const after = { ran: false }
    const maintenance = own.maintenance([
      task('long', async ({ query }) => {
        started = true
        await query('SELECT pg_sleep(600)')
      }),
      task('next', async () => {
        after.ran = true
      }),
    ])
    await maintenance.start()
    await waitFor(() => started)
    await maintenance.stop()
    t.notOk(after.ran)
    t.strictSame(own.reports, [])
    await waitFor(async () => (await adminPid(own.test)) === undefined)
  })
})

t.test('given a database that goes away', async t => {
  const server = await startServer(t)
  const own = await rig(
    t,
    {},
    {
      url: server.url,
      name: '',
      query: server.query,
      census: async () => [],
      vacated: async () => undefined,
    },
  )
  let runs = 0
  let connects = 0
  const connect = own.pgbus.connector.connect.bind(own.pgbus.connector)
  own.pgbus.connector.connect = options => {
    if (options.applicationName === 'pgbus-admin') connects += 1
    return connect(options)
  }
  const maintenance = own.maintenance(
    ['one', 'two', 'three'].map(name =>
      task(name, async () => {
        runs += 1
      }),
    ),
    20,
  )

  t.test('when it is away, then one report tells of it, and it is tried less and less often', async t => {
    await maintenance.start()
    await waitFor(() => runs >= 3)
    await server.stop()
    const before = connects
    await waitFor(() => connects >= before + 5)
    t.ok(own.reports.length <= 1, `reports: ${JSON.stringify(own.reports)}`)
  })

  t.test('when it is back, then everything runs again, and one line says so', async t => {
    await server.start()
    const before = runs
    await waitFor(() => runs > before + 3, { timeout: 30_000 })
    t.equal(own.lines.filter(line => line.msg.includes('reachable again')).length, 1)
    await maintenance.stop()
  })
})
