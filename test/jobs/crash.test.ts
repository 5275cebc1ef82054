import t from 'tap'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { setup } from './support.ts'

t.test('given a process in the middle of twenty jobs', async t => {
  const bench = await setup(t)
  const { db, pgbus } = bench
  await db.query('CREATE TABLE ledger (job int, attempt int, event text)')
  const count = async (event: string) =>
    (await db.query<{ n: number }>('SELECT count(*)::int AS n FROM ledger WHERE event = $1', [event]))[0]
      ?.n ?? 0
  const start = (ms: number) => spawnNode(t, compiled('test/jobs/ledger-worker.ts'), [db.url, String(ms)])

  t.test(
    'when it is killed, then each job ends once, started at most once more, and none failed',
    async t => {
      const first = start(60_000)
      await first.waitForOutput(/working/)
      await pgbus.enqueueMany(Array.from({ length: 20 }, (_, args) => ({ job: 'ledger', args })))
      await waitFor(async () => (await count('start')) === 20)
      first.signal('SIGKILL')
      await first.exited
      const second = start(50)
      await waitFor(async () => (await count('end')) === 20, { timeout: 60_000 })
      second.signal('SIGTERM')
      t.same(await second.exited, { code: 0, signal: null }, 'ends by itself once stopped')
      const rows = await db.query(
        'SELECT job FROM ledger GROUP BY job HAVING count(*) FILTER (WHERE event = $1) <> 1 OR count(*) FILTER (WHERE event = $2) > 2',
        ['end', 'start'],
      )
      t.same(rows, [])
      t.equal(await bench.archived(), 20)
      t.same(await bench.rows(), [])
      t.same(await bench.failures(), [])
    },
  )
})
