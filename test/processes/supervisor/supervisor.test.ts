import { tmpdir } from 'node:os'
import t from 'tap'
import { loadConfig } from '../../../lib/config/load.ts'
import type { PgbusConfig } from '../../../lib/config/options.ts'
import { startSupervisor } from '../../../lib/processes/supervisor/supervisor.ts'
import { createDatabase, createEmptyDatabase } from '../../support/database.ts'
import { isAlive } from '../../support/spawn.ts'
import { waitFor } from '../../support/wait-for.ts'

const load = (url: string, overrides: PgbusConfig = {}) =>
  loadConfig({
    file: false,
    cwd: tmpdir(),
    env: {},
    overrides: { databaseUrl: url, roles: 'workers', log: { level: 'silent' }, ...overrides },
  })

t.test('given a supervisor in this process', async t => {
  t.test('when it lives through a child’s death, then its status tells', async t => {
    const db = await createDatabase(t)
    const workers = [{ queues: ['default'], processes: 2 }]
    const supervisor = await startSupervisor({ loaded: await load(db.url, { workers }) })
    t.equal(supervisor.status, 'BOOTING')
    t.equal(supervisor.expected, 2)
    await waitFor(() => supervisor.status === 'OK', { timeout: 30_000 })
    t.match(supervisor.children(), [
      { slot: 'worker:0.0', ready: true, queues: ['default'], streak: 0 },
      { slot: 'worker:0.1', ready: true, queues: ['default'], streak: 0 },
    ])

    const [first] = supervisor.children()
    process.kill(first!.pid!, 'SIGKILL')
    await waitFor(() => supervisor.status === 'DEGRADED')
    t.match(supervisor.children()[0], { pid: null, ready: false, uptimeMs: null, streak: 1 })
    await waitFor(() => supervisor.status === 'OK', { timeout: 30_000 })

    const pids = supervisor.children().map(({ pid }) => pid!)
    const listenersBefore = process.listenerCount('SIGTERM')
    const stopped = supervisor.stop()
    t.equal(supervisor.status, 'DRAINING')
    t.equal(await stopped, 0)
    t.equal(await supervisor.stop(), 0)
    t.equal(await supervisor.done, 0)
    for (const pid of pids) t.equal(await isAlive(pid), false)
    t.equal(process.listenerCount('SIGTERM'), listenersBefore, 'signals are the business of the caller')
  })

  t.test('when the schema is missing, then it rejects and leaves nothing', async t => {
    const db = await createEmptyDatabase(t)
    await t.rejects(startSupervisor({ loaded: await load(db.url) }), { code: 'PGBUS_ERR_SCHEMA_NOT_READY' })
  })

  t.test('when no database is configured, then it says what to set', async t => {
    const loaded = await loadConfig({ file: false, cwd: tmpdir(), env: {} })
    await t.rejects(startSupervisor({ loaded }), { code: 'PGBUS_ERR_CONFIG' })
  })
})
