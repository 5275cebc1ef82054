import t from 'tap'
import { setupLedger } from '../events/setup-processes.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a host with consumers', async t => {
  const rig = await setupLedger(t)
  const { db, pgbus, count, publish, completed } = rig
  const host = spawnJobs(t, db, {
    jobs: 'test/fixtures/events/handlers.ts',
    roles: 'consumers',
    env: { PGBUS_CONSUMERS: '[{"topics":["once","exact"],"concurrency":3},{"topics":["plain.#"]}]' },
  })
  await host.booted(2)

  t.test('when it is ready, then its handlers are bound, and it tells of its consumers', async t => {
    t.same(
      (await pgbus.events.bindings()).map(({ pattern }) => pattern),
      ['exact', 'once', 'plain.*'],
    )
    t.match(host.output(), /boot: consumer topics=once,exact concurrency=3/)
    const rows = await db.query<{ queues: string[] }>(
      "SELECT metadata->'queues' AS queues FROM pgbus_processes WHERE kind = 'consumer'",
    )
    t.same(rows.map(row => row.queues.length).sort(), [1, 2])
    await publish('plain.a', 'p1')
    await waitFor(async () => (await count('p1', 'end')) === 1)
    t.equal((await db.census()).filter(row => row.application_name === 'pgbus-listen').length, 1)
  })

  t.test('when a consumer is killed in a handler, then its successor runs that once more', async t => {
    await publish('once', 'o1')
    await waitFor(async () => (await count('o1', 'start')) === 1)
    process.kill(host.ready().find(({ slot }) => slot === 'consumer:0')!.pid, 'SIGKILL')
    await rig.openGate('o1')
    await rig.handled('once')
    t.equal(await count('o1', 'start'), 2)
    t.equal(await count('o1', 'end'), 1)
    t.equal(await completed('o1'), true)
  })

  t.test('when it is told to stop, then its handlers finish', async t => {
    await publish('once', 'o2')
    await waitFor(async () => (await count('o2', 'start')) === 1)
    host.signal('SIGTERM')
    await host.waitForOutput(/consumer is draining/)
    await rig.openGate('o2')
    t.same(await host.exited, { code: 0, signal: null })
    t.equal(await completed('o2'), true)
  })
})
