import t from 'tap'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { gone, spawnJobs } from './job-host.ts'

t.test('given a host with all roles', async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const host = spawnJobs(t, db, { roles: 'workers,dispatcher' })
  const processes = () =>
    db.query<{ kind: string; pid: number }>('SELECT kind, pid FROM pgbus_processes ORDER BY kind')
  const kinds = async () => (await processes()).map(({ kind }) => kind)
  let dispatcher = 0

  t.test('when it is ready, then one process more looks after the tables', async t => {
    const children = await host.booted(2)
    await host.waitForOutput(/"msg":"ready: 2 children"/)
    dispatcher = children.find(({ slot }) => slot === 'maintenance')?.pid ?? 0
    t.same(await kinds(), ['dispatcher', 'supervisor', 'worker'])
    t.match(await processes(), [{ kind: 'dispatcher', pid: dispatcher }])
  })

  t.test('when that one is killed, then its row goes, another comes, and jobs go on', async t => {
    process.kill(dispatcher, 'SIGKILL')
    await waitFor(async () => !(await processes()).some(({ pid }) => pid === dispatcher))
    await pgbus.enqueue('note', { n: 1 })
    await host.booted(3)
    t.same(await kinds(), ['dispatcher', 'supervisor', 'worker'])
    await waitFor(async () => (await pgbus.queues.metrics('default'))[0]?.length === 0)
  })

  t.test('when the host stops, then nothing is left', async t => {
    const pids = host.survivors()
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
    await gone(pids)
    t.same(await processes(), [])
  })
})

t.test('given a host for maintenance only', async t => {
  const db = await createDatabase(t)

  t.test('when it is ready, then it reads no queue and listens to nothing', async t => {
    const host = spawnJobs(t, db, { roles: 'dispatcher' })
    await host.booted(1)
    t.match(host.output(), /boot: roles=dispatcher"/)
    t.notMatch(host.output(), /boot: worker=/)
    t.same(
      (await db.census()).filter(row => row.application_name === 'pgbus-listen'),
      [],
    )
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })
})
