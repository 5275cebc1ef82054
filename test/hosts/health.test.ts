import { type AddressInfo, createServer } from 'node:net'
import t from 'tap'
import { createDatabase, type TestContext } from '../support/database.ts'
import { freePort } from '../support/free-port.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { spawnJobs } from './job-host.ts'

const readyz = async (port: string) => {
  const response = await fetch(`http://127.0.0.1:${port}/readyz`)
  return { code: response.status, ...((await response.json()) as object) }
}

const probe = async (t: TestContext, port: string) =>
  (await spawnNode(t, compiled('bin/pgbus-health.ts'), ['--port', port], {}).exited).code

t.test('given a host with a health port', async t => {
  t.test('when it lives from boot to drain, then each state is seen from outside', async t => {
    const db = await createDatabase(t)
    const port = String(await freePort())
    const host = spawnJobs(t, db, { workers: 'default: 1; mail: 1', env: { PGBUS_HEALTH_PORT: port } })
    await host.waitForOutput(/health: \/livez and \/readyz on 127\.0\.0\.1:/)
    const [first] = await host.booted(2)
    await waitFor(async () => (await readyz(port)).code === 200)
    t.strictSame(await readyz(port), { code: 200, status: 'OK', expected: 2, live: 2 })
    t.equal(await probe(t, port), 0)

    process.kill(first!.pid, 'SIGKILL')
    await waitFor(async () => (await readyz(port)).code === 503)
    t.match(await readyz(port), { code: 503, status: 'DEGRADED', expected: 2 })
    t.equal(await probe(t, port), 1)
    await host.booted(3)
    await waitFor(async () => (await readyz(port)).code === 200, { timeout: 30_000 })

    // A child that is stopped keeps the host from ending before it was asked.
    const [, second] = host.ready()
    process.kill(second!.pid, 'SIGSTOP')
    host.signal('SIGTERM')
    await waitFor(async () => (await readyz(port)).code === 503)
    t.match(await readyz(port), { code: 503, status: 'DRAINING' })
    t.equal((await fetch(`http://127.0.0.1:${port}/livez`)).status, 200)
    process.kill(second!.pid, 'SIGCONT')
    t.strictSame(await host.exited, { code: 0, signal: null })
    t.equal(await probe(t, port), 1)
  })

  t.test('when the database is away, then it is alive, booting, and not ready', async t => {
    const port = String(await freePort())
    const host = spawnNode(t, compiled('bin/pgbus.ts'), ['start', '--health-port', port], {
      env: { PGBUS_DATABASE_URL: 'postgres://127.0.0.1:1/x', PGBUS_HEALTH_PORT: '1' },
    })
    await host.waitForOutput(/trying again for/)
    t.strictSame(await readyz(port), { code: 503, status: 'BOOTING', expected: 0, live: 0 })
    t.equal((await fetch(`http://127.0.0.1:${port}/livez`)).status, 200)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when its port is taken, then it does not start, naming address and key', async t => {
    const db = await createDatabase(t)
    const other = createServer()
    await new Promise<void>(resolve => other.listen(0, '127.0.0.1', resolve))
    t.teardown(() => other.close())
    const port = String((other.address() as AddressInfo).port)
    const host = spawnJobs(t, db, { env: { PGBUS_HEALTH_PORT: port } })
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.match(host.output(), new RegExp(`pgbus: cannot listen on 127\\.0\\.0\\.1:${port} \\(health\\.port`))
    t.notMatch(host.output(), /is ready/)
    t.strictSame(host.survivors(), [])
  })

  t.test('when the flag is no port, then it says so', async t => {
    const host = spawnNode(t, compiled('bin/pgbus.ts'), ['start', '--health-port', '70000'], {
      env: { PGBUS_DATABASE_URL: 'postgres://127.0.0.1:1/x' },
    })
    t.strictSame(await host.exited, { code: 1, signal: null })
    t.match(host.output(), /health\.port.*70000/)
  })
})
