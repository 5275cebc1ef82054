import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import t from 'tap'
import { pgbusHealth } from '../../plugins/fastify/index.ts'
import { ledgerTable } from '../fixtures/jobs/ledger.ts'
import { createDatabase, startServer } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

t.test('given a job host with one slot', async t => {
  const db = await createDatabase(t)
  await db.query(ledgerTable)
  const pgbus = createTestPgbus(t, db)
  const host = spawnJobs(t, db, { workers: 'default: 1' })
  await host.booted(1)
  const check = async (unreadGrace: number | string = '200ms') => {
    const { status, signals } = await pgbus.health({ unreadGrace })
    return [status, ...signals.map(({ code }) => code)]
  }
  const becomes = (...expected: string[]) =>
    waitFor(async () => (await check()).join() === expected.join(), { message: expected.join() })
  const enqueue = (n: number, ms = 0) => pgbus.enqueue('note', { n, ms })
  const started = (n: number) =>
    waitFor(async () => (await db.query('SELECT 1 FROM ledger WHERE n = $1', [n])).length > 0)

  t.test('when it is idle, then it is well, and its row tells of its loop', async t => {
    await waitFor(async () => (await pgbus.health()).summary.workers === 1)
    t.strictSame(await check(0), ['OK'])
    const rows = await db.query(
      `SELECT jsonb_typeof(metadata->'loop_tick_at') AS tick FROM pgbus_processes WHERE kind = 'worker'`,
    )
    t.strictSame(rows, [{ tick: 'number' }])
  })

  t.test('when a long job keeps others waiting, then it is well', async t => {
    const { msgId } = await enqueue(1, 600_000)
    await started(1)
    await enqueue(2)
    t.strictSame(await check(1), ['OK'])

    await pgbus.queues.pause('default')
    t.strictSame(await check(1), ['DEGRADED', 'PAUSED_BACKLOG'])
    await pgbus.queues.resume('default')
    await pgbus.cancel('default', msgId ?? 0)
    await started(2)
  })

  t.test('when all its processes are frozen, then it stands still until they go on', async t => {
    const pids = host.survivors()
    t.equal(pids.length, 2)
    for (const pid of pids) process.kill(pid, 'SIGSTOP')
    await enqueue(3)
    await becomes('STALLED', 'NEVER_CLAIMED')
    for (const pid of pids) process.kill(pid, 'SIGCONT')
    await started(3)
    await becomes('OK')
  })

  t.test('when it is killed, then it stands still, and later is known to be gone', async t => {
    for (const pid of host.survivors()) process.kill(pid, 'SIGKILL')
    await host.exited
    await enqueue(4)
    await becomes('STALLED', 'NEVER_CLAIMED')
    await db.query(`UPDATE pgbus_processes SET last_heartbeat_at = last_heartbeat_at - interval '301 s'`)
    t.strictSame(await check(), ['DEGRADED', 'PROCESS_STALE', 'NO_WORKER'])
    await db.query('DELETE FROM pgbus_processes')
    t.strictSame(await check(), ['DEGRADED', 'NO_WORKER'])
    // Its sessions are seen to be gone a moment later.
    await waitFor(async () =>
      (await db.census()).every(({ application_name: name }) => /^pgbus(-health)?$/.test(name)),
    )
  })
})

t.test('given a web application with probes', async t => {
  const server = await startServer(t)
  const reports: string[] = []
  const pgbus = createTestPgbus(t, server, {
    health: { cacheTtl: 0 },
    errorReporters: [(_error, { action }) => void reports.push(action)],
  })
  const app = Fastify()
  t.teardown(() => app.close())
  await app.register(pgbusHealth, { pgbus })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const port = String((app.server.address() as AddressInfo).port)
  const get = async (path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}/pgbus/health${path}`)
    return { code: response.status, body: await response.text() }
  }
  const probe = async () =>
    (
      await spawnNode(
        t,
        compiled('bin/pgbus-health.ts'),
        ['--port', port, '--path', '/pgbus/health/readyz', '--timeout', '20'],
        {},
      ).exited
    ).code

  t.test('when its database stops and starts again, then it lives, and is ready when that is', async t => {
    t.match(await get('/readyz'), { code: 200, body: '"status":"OK"' })
    t.equal(await probe(), 0)
    await server.stop()
    for (let probes = 0; probes < 3; probes += 1) {
      t.match(await get('/readyz'), { code: 503, body: '{"status":"ERROR","error":"' })
      t.strictSame(await get('/livez'), { code: 200, body: 'ok' })
    }
    t.equal(await probe(), 1)
    t.strictSame(reports, ['health_check'])
    await server.start()
    await waitFor(async () => (await get('/readyz')).code === 200)
    t.equal(await probe(), 0)
  })
})
