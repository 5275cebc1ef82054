import t from 'tap'
import { openBlocker } from '../events/setup-processes.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a host that publishes the outbox', async t => {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db)
  await pgbus.queues.ensure('mail')
  const host = spawnJobs(t, db, {
    roles: 'outbox',
    env: { PGBUS_OUTBOX_ENABLED: '1', PGBUS_OUTBOX_POLL_INTERVAL: '10m' },
  })
  await host.booted(1)
  const sent = async () =>
    (
      await db.query<{ n: number }>("SELECT (message->>'n')::int AS n FROM pgmq.q_pgbus_mail ORDER BY msg_id")
    ).map(row => row.n)
  const waiting = async () => (await pgbus.outbox.entries.stats()).waiting

  t.test('when entries are written, then notifications bring them to their queue', async t => {
    await waitFor(() => /notifications are delivered/.test(host.output()))
    for (let n = 0; n < 5; n += 1) {
      await pgbus.outbox.publish('mail', { n })
      await waitFor(async () => (await sent()).length === n + 1)
    }
    t.match(await db.query("SELECT kind FROM pgbus_processes WHERE kind LIKE 'outbox%'"), [
      { kind: 'outbox_poller' },
    ])
    t.equal((await db.census()).filter(row => row.application_name === 'pgbus-listen').length, 1)
  })

  t.test(
    'when it is killed in the middle of publishing, then nothing is lost and nothing sent twice',
    async t => {
      const blocker = await openBlocker(t, db.url)
      const [child] = host.ready()
      await blocker.hold('pgmq.q_pgbus_mail')
      await pgbus.outbox.publish('mail', { n: 5 })
      await pgbus.outbox.publish('mail', { n: 6 })
      await blocker.reached()
      process.kill(child!.pid, 'SIGKILL')
      await blocker.drop()
      t.equal(await waiting(), 2)
      t.same(await sent(), [0, 1, 2, 3, 4])
      await waitFor(async () => (await waiting()) === 0, { timeout: 30_000 })
      t.same(await sent(), [0, 1, 2, 3, 4, 5, 6])
    },
  )

  t.test('when it is told to stop, then it ends by itself', async t => {
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
    t.same(await db.query("SELECT kind FROM pgbus_processes WHERE kind = 'outbox_poller'"), [])
  })
})
