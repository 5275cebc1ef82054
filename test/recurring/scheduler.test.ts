import pg from 'pg'
import { pino } from 'pino'
import t from 'tap'
import type { RecurringTask } from '../../lib/config/recurring-tasks.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { oldExecutions } from '../../lib/maintenance/recurring-executions.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import { Scheduler } from '../../lib/recurring/scheduler.ts'
import { rig, runOnce } from '../maintenance/setup.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'

const setup = async (t: TestContext, tasks: Record<string, RecurringTask> | null = null) => {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db, { recurring: { tasks } })
  const clock = { now: Date.parse('2026-03-01T00:00:00Z') }
  const reports: string[] = []
  const scheduler = (own: Pgbus = pgbus) =>
    new Scheduler({
      recurring: own.recurring,
      interval: 1_000,
      log: pino({ level: 'silent' }),
      report: error => void reports.push((error as Error).message),
      now: () => clock.now,
    })
  /** Lets a task be older than the injected clock. */
  const age = () => db.query(`UPDATE pgbus_recurring_tasks SET updated_at = '2020-01-01'`)
  const runs = async () =>
    (
      await db.query<{ at: string }>(
        `SELECT to_char(run_at, 'MM-DD HH24:MI') AS at FROM pgbus_recurring_executions ORDER BY run_at`,
      )
    ).map(({ at }) => at)
  const jobs = async (queue = 'pgbus_default') =>
    Number((await db.query<{ n: string }>(`SELECT count(*) AS n FROM pgmq."q_${queue}"`))[0]?.n)
  /** Moves the clock from one instant to another in steps, with all schedulers looking at each. */
  const play = async (from: string, to: string, step: number, schedulers: Scheduler[]) => {
    for (clock.now = Date.parse(from); clock.now <= Date.parse(to); clock.now += step)
      await Promise.all(schedulers.map(one => one.tick()))
  }
  return { db, pgbus, clock, reports, scheduler, age, runs, jobs, play }
}

t.test('given two schedulers over a change of the clock', async t => {
  const { db, pgbus, scheduler, age, runs, jobs, play } = await setup(t)
  await pgbus.recurring.upsert('night', { job: 'night', schedule: '30 2 * * *', timeZone: 'Europe/Berlin' })
  await pgbus.recurring.upsert('hourly', { job: 'hourly', schedule: '0 * * * *', timeZone: 'Europe/Berlin' })
  await age()
  const of = (key: string) =>
    db.query<{ at: string }>(
      `SELECT to_char(run_at, 'MM-DD HH24:MI') AS at FROM pgbus_recurring_executions WHERE task_key = $1 ORDER BY run_at`,
      [key],
    )

  for (const [season, from, to, nights, hours] of [
    ['spring', '2026-03-28T23:59:50Z', '2026-03-29T03:10:00Z', ['03-29 01:00'], 4],
    ['autumn', '2026-10-24T23:59:50Z', '2026-10-25T03:10:00Z', ['10-25 00:30'], 4],
  ] as const) {
    t.test(`when it is ${season}, then each occurrence is enqueued once`, async t => {
      const pair = [scheduler(), scheduler(createTestPgbus(t, db))]
      for (const one of pair) await one.reload()
      await db.query('DELETE FROM pgbus_recurring_executions')
      const before = await jobs().catch(() => 0)
      await play(from, to, 5 * 60_000 - 7_000, pair)
      t.strictSame(
        (await of('night')).map(({ at }) => at).filter(at => nights.some(night => night === at)),
        [...nights],
      )
      t.equal((await of('hourly')).filter(({ at }) => at >= nights[0].slice(0, 5)).length, hours)
      t.equal((await jobs()) - before, (await runs()).length)
    })
  }
})

t.test('given occurrences that nobody noticed', async t => {
  for (const [catchUp, expected] of [
    ['none', []],
    ['last', ['03-01 00:50']],
    ['all', ['03-01 00:10', '03-01 00:20', '03-01 00:30', '03-01 00:40', '03-01 00:50']],
  ] as const) {
    t.test(`when catchUp is ${catchUp}, then so many run`, async t => {
      const { pgbus, clock, scheduler, age, runs } = await setup(t)
      await pgbus.recurring.upsert('k', {
        job: 'k',
        schedule: 'every 10 minutes',
        catchUp,
        catchUpWindow: '55m',
      })
      await age()
      clock.now = Date.parse('2026-03-01T00:58:00Z')
      const one = scheduler()
      await one.tick()
      await one.tick()
      t.strictSame(await runs(), [...expected])
    })
  }
})

t.test('given a task', async t => {
  const { db, pgbus, clock, reports, scheduler, age, runs, jobs } = await setup(t, {
    fixed: { job: 'fixed', schedule: '* * * * *', priority: 0, args: { kind: 'full' } },
  })
  const one = scheduler()
  await one.reload()
  await age()
  await one.reload()

  t.test('when the clock is just before and after a boundary, then it runs once', async t => {
    clock.now = Date.parse('2026-03-01T00:00:59.900Z')
    await one.tick()
    clock.now = Date.parse('2026-03-01T00:01:01.100Z')
    await one.tick()
    await scheduler().tick()
    t.strictSame(await runs(), ['03-01 00:00', '03-01 00:01'])
    const [message] = await db.query<{ message: unknown; headers: unknown }>(
      'SELECT message, headers FROM pgmq.q_pgbus_default ORDER BY msg_id DESC LIMIT 1',
    )
    t.match(message, {
      message: { job_class: 'fixed', priority: 0 },
      headers: { 'pgbus.recurring_key': 'fixed', 'pgbus.recurring_run_at': '2026-03-01T00:01:00.000Z' },
    })
  })

  t.test('when the clock goes back, then nothing runs twice', async t => {
    clock.now -= 90_000
    await one.tick()
    clock.now += 90_000
    await one.tick()
    t.equal((await runs()).length, 2)
  })

  t.test(
    'when it was disabled a moment ago, then it does not run, and enabled, not what is past',
    async t => {
      await pgbus.recurring.disable('fixed')
      clock.now += 60_000
      await one.tick()
      t.equal((await runs()).length, 2)
      await pgbus.recurring.enable('fixed')
      await one.reload()
      await one.tick()
      t.equal((await runs()).length, 2)
      await age()
      await one.reload()
    },
  )

  t.test('when the enqueue fails, then nothing is left of it, and the next look does it', async t => {
    clock.now += 60_000
    await db.query('ALTER TABLE pgmq.q_pgbus_default ADD CONSTRAINT no CHECK (false) NOT VALID')
    await one.tick()
    t.equal((await runs()).length, 2)
    t.equal(reports.length, 1)
    await db.query('ALTER TABLE pgmq.q_pgbus_default DROP CONSTRAINT no')
    await one.tick()
    t.equal((await runs()).length, 3)
  })

  t.test('when it is run by hand, then its job is enqueued, disabled or not', async t => {
    await pgbus.recurring.disable('fixed')
    const before = await jobs()
    await pgbus.recurring.runNow('fixed')
    t.equal(await jobs(), before + 1)
    await t.rejects(pgbus.recurring.runNow('other'), { message: 'there is no recurring task "other"' })
  })

  t.test('when the configuration is read again, then its tasks replace the old, and others stay', async t => {
    await pgbus.recurring.upsert('dynamic', { job: 'd', schedule: '@daily' })
    const next = createTestPgbus(t, db, { recurring: { tasks: { other: { job: 'o', schedule: '@daily' } } } })
    await db.query(`INSERT INTO pgbus_recurring_tasks (key, class_name, schedule, created_at, updated_at)
      VALUES ('foreign', 'F', '* * * * *', now(), now())`)
    await scheduler(next).reload()
    t.same(
      (await pgbus.recurring.list()).map(({ key }) => key),
      ['dynamic', 'other'],
    )
    await t.rejects(pgbus.recurring.upsert('foreign', { job: 'f', schedule: '@daily' }), {
      message: 'belongs to another program',
    })
  })

  t.test('when it is wrong, then the error names its key and what is wrong', async t => {
    await t.rejects(pgbus.recurring.upsert('x', { job: 'x', schedule: 'every 1.minute' }), {
      message: 'recurring task "x": cannot parse schedule "every 1.minute"',
    })
    await t.rejects(pgbus.recurring.upsert('x y', { job: 'x', schedule: '@daily' }), { name: 'TypeError' })
    t.throws(() => createTestPgbus(t, db, { recurring: { tasks: { y: { job: 'y', schedule: 'PT5M' } } } }), {
      message: /y: cannot parse schedule "PT5M"/,
    })
  })
})

t.test('given a task whose job is unique', async t => {
  const { db, pgbus, reports, scheduler, age, jobs, play } = await setup(t)

  t.test(
    'when its job has a lock that is held, then the occurrence is skipped, and the next runs',
    async t => {
      const rule = defineJob({ name: 'recurring_unique', unique: {} }, () => undefined)
      await pgbus.recurring.upsert('locked', {
        job: rule.name,
        schedule: '0 * * * *',
        queue: 'locked',
        catchUp: 'none',
      })
      await age()
      const one = scheduler()
      const { msgId } = await rule.enqueue(null, { pgbus, queue: 'locked' })
      await play('2026-06-01T05:59:59Z', '2026-06-01T06:00:01Z', 1_000, [one])
      t.equal(await jobs('pgbus_locked'), 1)
      await t.rejects(pgbus.recurring.runNow('locked'), { code: 'PGBUS_ERR_JOB_NOT_UNIQUE' })
      await pgbus.cancel('locked', msgId!)
      await one.tick()
      t.equal(await jobs('pgbus_locked'), 0, 'what was skipped is not made up for')
      await play('2026-06-01T06:59:59Z', '2026-06-01T07:00:01Z', 1_000, [one])
      t.equal(await jobs('pgbus_locked'), 1)
      t.same(reports, [])
      const rows = await db.query(
        `SELECT extract(hour FROM run_at)::int AS hour, msg_id IS NULL AS skipped FROM pgbus_recurring_executions
        WHERE task_key = 'locked' ORDER BY run_at`,
      )
      t.same(rows, [
        { hour: 6, skipped: true },
        { hour: 7, skipped: false },
      ])
      await pgbus.recurring.remove('locked')
    },
  )
})

t.test('given a scheduler that is killed between its statements', async t => {
  const { db, pgbus, runs, jobs } = await setup(t)
  await pgbus.queues.ensure('default')
  await pgbus.recurring.upsert('k', { job: 'k', schedule: '* * * * *', catchUp: 'last', catchUpWindow: '1d' })
  await db.query(`UPDATE pgbus_recurring_tasks SET updated_at = '2020-01-01'`)
  const host = () =>
    spawnNode(t, compiled('bin/pgbus.ts'), ['start', '--scheduler-only'], {
      env: { PGBUS_DATABASE_URL: db.url },
    })

  t.test('when another comes, then the occurrence runs once', async t => {
    // The queue cannot be written, so the scheduler stops after its first statement.
    const lock = new pg.Client({ connectionString: db.url })
    await lock.connect()
    lock.on('error', () => undefined)
    t.teardown(() => lock.end())
    await lock.query('SELECT pg_advisory_lock(42)')
    await db.query(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN new; END'`)
    await db.query(
      'CREATE TRIGGER wait BEFORE INSERT ON pgmq.q_pgbus_default FOR EACH ROW EXECUTE FUNCTION wait()',
    )
    const first = host()
    const waiting = await waitFor(async () => {
      const rows = await db.query<{ pid: number }>(
        `SELECT (p.metadata->>'pid')::int AS pid FROM pgbus_processes p, pg_stat_activity a
          WHERE p.kind = 'scheduler' AND a.wait_event_type = 'Lock' AND a.datname = current_database()`,
      )
      return rows[0]
    })
    first.signal('SIGKILL')
    process.kill(waiting.pid, 'SIGKILL')
    await lock.query('SELECT pg_advisory_unlock(42)')
    host()
    await waitFor(async () => (await runs()).length > 0)
    t.equal(await jobs(), (await runs()).length)
  })
})

t.test('given records of past runs', async t => {
  t.test('when they are old, then they go, except for the newest of each task', async t => {
    const own = await rig(t)
    await own.test.query(`INSERT INTO pgbus_recurring_executions (task_key, run_at)
      VALUES ('a', '2020-01-01'), ('a', '2020-01-02'), ('b', '2020-01-01'), ('c', '2020-01-01'), ('c', now())`)
    await runOnce(own, oldExecutions(7 * 86_400_000))
    t.same(
      (await own.test.query('SELECT task_key FROM pgbus_recurring_executions ORDER BY 1')).map(
        r => r.task_key,
      ),
      ['a', 'b', 'c'],
    )
  })
})
