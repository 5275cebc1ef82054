import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { type JobHostOptions, spawnJobs } from './job-host.ts'

interface Start {
  n: number
  pid: number
  attempt: number
  done: boolean
}

interface Letter {
  n: number
  read_ct: number
  dead: Record<string, unknown>
}

const clean = { code: 0, signal: null, survivors: [] }

/** A host whose leases outlast every test: what comes back sooner was given back. */
const setup = async (t: TestContext, options: JobHostOptions = {}) => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const host = spawnJobs(t, db, {
    ...options,
    env: { PGBUS_VISIBILITY_TIMEOUT: '10m', ...options.env },
  })
  await host.booted(1)
  const starts = (n: number) =>
    db.query<Start>(
      'SELECT n, pid, attempt, ended_at IS NOT NULL AS done FROM ledger WHERE n = $1 ORDER BY id',
      [n],
    )
  const letters = () =>
    db
      .query<Letter>(
        `SELECT (message #>> '{arguments,0,n}')::int AS n, read_ct, headers -> 'pgbus_dead_letter' AS dead
           FROM pgmq.q_pgbus_default_dlq ORDER BY msg_id`,
      )
      // No dead letter yet: no such queue.
      .catch((): Letter[] => [])
  const done = async (ns: number[]) =>
    (
      await db.query<{ n: number }>('SELECT DISTINCT n FROM ledger WHERE ended_at IS NOT NULL ORDER BY n')
    ).filter(({ n }) => ns.includes(n)).length === ns.length
  const stop = async () => {
    host.signal('SIGTERM')
    return { ...(await host.exited), survivors: host.survivors() }
  }
  return { db, pgbus, host, starts, letters, done, stop }
}

t.test('given a job that kills its process whenever it runs', async t => {
  t.test('when others ran beside it, then it alone is a dead letter, and they are not charged', async t => {
    const { pgbus, starts, letters, done, stop, host } = await setup(t)
    await pgbus.enqueueMany([
      { job: 'note', args: { n: 1, ms: 2_000 } },
      { job: 'note', args: { n: 2, ms: 2_000 } },
      { job: 'deadly', args: { n: 13, ms: 300 } },
      { job: 'note', args: { n: 3, ms: 2_000 } },
    ])
    await waitFor(async () => (await letters()).length > 0 && (await done([1, 2, 3])), {
      timeout: 60_000,
      message: 'a dead letter and three done jobs',
    })
    t.match(await letters(), [
      {
        n: 13,
        dead: {
          reason: 'process_died',
          signal: 'SIGKILL',
          exit_code: null,
          error_class: 'ProcessDiedError',
          error_message: /killed by SIGKILL/,
        },
      },
    ])
    t.equal((await letters()).length, 1)
    t.equal((await starts(13)).length, 2, 'once beside others, once alone')
    for (const n of [1, 2, 3]) {
      const all = await starts(n)
      t.ok(all.length <= 2, `job ${n} was interrupted once at most`)
      t.ok(
        all.every(({ attempt }) => attempt === 1),
        'no attempt was charged',
      )
    }
    t.match(host.output(), /4 jobs were running when worker:0\.0 died; each runs alone the next time/)
    t.strictSame(await stop(), clean)
  })

  t.test('when it exits with a code, then the dead letter has the code', async t => {
    const { pgbus, letters, stop } = await setup(t)
    await pgbus.enqueue('deadly', { n: 13, how: 'exit' })
    await waitFor(async () => (await letters()).length > 0, { timeout: 60_000 })
    t.match((await letters())[0], {
      dead: { reason: 'process_died', signal: null, exit_code: 3, read_ct: 1 },
    })
    t.strictSame(await stop(), clean)
  })
})

t.test('given a job whose process died once', async t => {
  t.test('when it runs again and succeeds, then it is done, at its first attempt', async t => {
    const { db, pgbus, starts, letters, done, stop } = await setup(t)
    await pgbus.enqueueMany([
      { job: 'deadly', args: { n: 1, times: 1 } },
      ...[2, 3, 4, 5, 6, 7].map(n => ({ job: 'note', args: { n, ms: 100 } })),
    ])
    await waitFor(() => done([1, 2, 3, 4, 5, 6, 7]), { timeout: 60_000, message: 'seven jobs' })
    t.match(await starts(1), [
      { attempt: 1, done: false },
      { attempt: 1, done: true },
    ])
    // It shared its second process with nobody while it ran.
    const [overlap] = await db.query<{ n: number }>(
      `SELECT count(*)::int AS n FROM ledger a JOIN ledger b
          ON a.n = 1 AND a.ended_at IS NOT NULL AND b.n <> 1 AND b.pid = a.pid
         AND b.started_at < a.ended_at AND b.ended_at > a.started_at`,
    )
    t.equal(overlap?.n, 0)
    t.strictSame(await letters(), [])
    t.strictSame(await db.query('SELECT * FROM pgbus_failed_events'), [])
    t.strictSame(await stop(), clean)
  })
})
