import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a job host with a job that would run for an hour', async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  // A lease of ten minutes: no renewal comes to the rescue.
  const host = spawnJobs(t, db, { workers: 'default: 1', env: { PGBUS_VISIBILITY_TIMEOUT: '10m' } })
  await host.booted(1)
  const { msgId } = await pgbus.enqueue('note', { n: 1, ms: 3_600_000 })
  await pgbus.enqueue('note', { n: 2 })
  await waitFor(async () => (await db.query('SELECT FROM ledger')).length === 1)

  t.test('when it is cancelled, then it ends at once, and the next one has its place', async t => {
    t.same(await pgbus.cancel('default', msgId!, { reason: 'obsolete' }), {
      status: 'cancelled',
      wasRunning: true,
    })
    await waitFor(async () => (await pgbus.jobs.list('default')).total === 0)
    t.match(await pgbus.jobs.get('default', msgId!), { state: 'cancelled', attempts: 1 })
    t.match(await db.query('SELECT n, ended_at IS NULL AS open FROM ledger ORDER BY n'), [
      { n: 1, open: true },
      { n: 2, open: false },
    ])
    t.match(
      host.lines().filter(({ msg }) => String(msg).startsWith('job cancelled')),
      [{ msg_id: msgId }],
    )
  })
})
