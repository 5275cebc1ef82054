import t from 'tap'
import { forgetProcess, Heartbeat } from '../../lib/jobs/heartbeat.ts'
import { waitFor } from '../support/wait-for.ts'
import { setup } from './support.ts'

t.test('given a process that beats', async t => {
  const bench = await setup(t)
  const { db, pgbus, lines } = bench
  const rows = () =>
    db.query<{ id: string; kind: string; pid: number; metadata: object; last_heartbeat_at: Date }>(
      'SELECT * FROM pgbus_processes',
    )
  let beats = 0
  const heartbeat = new Heartbeat({ db: pgbus.db, log: pgbus.log, interval: 20 })
  t.teardown(() => heartbeat.stop())

  t.test('when it starts, then it has a row that is touched', async t => {
    await heartbeat.start('supervisor', () => ({ beats: ++beats }))
    const [first] = await rows()
    t.match(first, { kind: 'supervisor', pid: process.pid, metadata: { pid: process.pid } })
    await waitFor(async () => (await rows())[0]!.last_heartbeat_at > first!.last_heartbeat_at)
    t.equal((await rows())[0]?.id, first?.id)
    t.ok(beats > 1)
  })

  t.test('when somebody removes the row, then it comes back', async t => {
    await db.query('DELETE FROM pgbus_processes')
    await waitFor(async () => (await rows()).length === 1)
    t.equal((await rows()).length, 1)
  })

  t.test('when the row cannot be written, then that is said once, and it goes on', async t => {
    await db.query('ALTER TABLE pgbus_processes RENAME TO elsewhere')
    const before = beats
    await waitFor(() => beats > before + 3)
    await db.query('ALTER TABLE elsewhere RENAME TO pgbus_processes')
    await waitFor(() => lines.some(line => /written again/.test(line.message)))
    t.equal(lines.filter(line => line.level === 'warn').length, 1)
  })

  t.test('when its loop and its event loop stand still, then the row tells how long', async t => {
    const loop = new Heartbeat({ db: pgbus.db, log: pgbus.log, interval: 300, loopAge: () => 5_000 })
    t.teardown(() => loop.stop())
    await loop.start('worker', {})
    const [row] = await db.query<{ age: number }>(
      `SELECT extract(epoch FROM last_heartbeat_at) - (metadata->>'loop_tick_at')::float8 AS age
         FROM pgbus_processes WHERE kind = 'worker'`,
    )
    t.ok(row!.age > 4.9 && row!.age < 5.1, `${row!.age} s before the beat`)
    const lags = async () =>
      (
        await db.query<{ lag: number | null }>(
          `SELECT (metadata->>'event_loop_lag_ms')::float8 AS lag FROM pgbus_processes WHERE kind = 'worker'`,
        )
      )[0]?.lag
    await waitFor(async () => {
      // Twice, because what blocks from the beginning of a beat on is not seen in it.
      for (const until = performance.now() + 400; performance.now() < until; );
      await new Promise(resolve => setTimeout(resolve, 100))
      for (const until = performance.now() + 400; performance.now() < until; );
      return ((await lags()) ?? 0) > 200
    })
  })

  t.test('when it stops, then the row is gone and stays gone', async t => {
    await heartbeat.stop()
    t.same(await rows(), [])
    await heartbeat.stop()
  })

  t.test('when a process dies without a word, then another can remove its row', async t => {
    await db.query(
      "INSERT INTO pgbus_processes (kind, hostname, pid, created_at, updated_at) SELECT 'worker', hostname, pid, now(), now() FROM (VALUES ($1, 1), ($1, 2), ('other', 1)) AS v (hostname, pid)",
      [(await import('node:os')).hostname()],
    )
    await forgetProcess(pgbus.db, ['worker'], 1)
    t.same((await rows()).map(row => row.pid).sort(), [1, 2])
  })
})
