import { existsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { createDatabase, startServer, type TestDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, type SpawnedProcess, spawnNode } from '../support/spawn.ts'
import { openSse, type SseClient } from '../support/sse-client.ts'
import { waitFor } from '../support/wait-for.ts'
import { addressOf, booted, bootTimeout, fixture, spawnWeb } from './web-host.ts'

const secret = 'a-secret-for-the-tests'

const environment = (db: { url: string }) => ({
  PGBUS_STREAMS_ENABLED: 'true',
  PGBUS_DATABASE_URL: db.url,
  PGBUS_STREAMS_SECRET: secret,
})

/** The endpoint of a stream, as a page that was rendered before anything was broadcast has it. */
async function endpoint(url: string, stream: string): Promise<string> {
  const tag = await (await fetch(`${url}/tag/${stream}`, { headers: { connection: 'close' } })).text()
  const src = / src="([^"]+)"/.exec(tag)?.[1]?.replaceAll('&amp;', '&')
  if (src === undefined) throw new Error(`no src in ${tag}`)
  const full = new URL(src, url)
  full.searchParams.set('since', '0')
  return full.href
}

/** Open pages, which the workers take in turn. */
async function follow(t: Test, url: string, stream: string, n: number): Promise<SseClient[]> {
  const src = await endpoint(url, stream)
  const clients = await Promise.all(Array.from({ length: n }, () => openSse(src)))
  t.teardown(() => {
    for (const client of clients) client.close()
  })
  for (const client of clients) t.equal(client.status, 200)
  return clients
}

const hubSocket = ({ pid }: SpawnedProcess) =>
  join(process.env.TMPDIR ?? tmpdir(), `pgbus-streams-hub-${pid}.sock`)

const listeners = async (db: TestDatabase) =>
  (await db.census()).filter(({ application_name }) => application_name === 'pgbus-listen')

/** What a page applied of numbered broadcasts. */
const numbers = (client: SseClient) =>
  client.frames.filter(({ id, event }) => id !== null && event === 'number').map(({ data }) => Number(data))

t.test('given two workers that share a hub', async t => {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db)
  const host = spawnWeb(t, { app: 'streams', args: ['-w', '2', '-p', '0'], env: environment(db) })
  const url = await booted(host, 2)
  const socket = hubSocket(host)
  t.ok(existsSync(socket))

  const clients = await follow(t, url, 'room', 6)

  t.test('when something is broadcast, then every page gets it over one LISTEN connection', async t => {
    await pgbus.stream('room').broadcast(1, { event: 'number' })
    await Promise.all(clients.map(client => client.waitForEvent('number')))
    await pgbus.stream('room', { durable: false }).broadcast('now', { event: 'tick' })
    await Promise.all(clients.map(client => client.waitForEvent('tick')))
    t.equal((await listeners(db)).length, 1)
    t.equal(host.output().match(/listening through the hub at/g)?.length, 2)
  })

  t.test('when the host gets TERM, then pages get the shutdown frame and nothing is left', async t => {
    host.signal('SIGTERM')
    await Promise.all(clients.map(client => client.ended))
    t.same(await host.exited, { code: 0, signal: null })
    for (const client of clients) t.match(client.frames.at(-1), { event: 'pgbus:shutdown', id: null })
    t.notOk(existsSync(socket))
    t.same(host.survivors(), [])
    t.notMatch(host.output(), /"lvl":"ERROR"/)
  })
})

t.test('given durable broadcasts one after the other', async t => {
  const total = 200

  t.test(
    'when the LISTEN connection is cut and later the hub ends, then no page misses or repeats one',
    async t => {
      const db = await createDatabase(t)
      const pgbus = createTestPgbus(t, db)
      const host: SpawnedProcess = spawnNode(t, compiled('test/fixtures/web/hub-host.ts'), [], {
        ipc: true,
        env: {
          ...environment(db),
          PGBUS_WEB_APP: fixture('streams'),
          PGBUS_WEB_WORKERS: '2',
          PGBUS_WEB_PORT: '0',
        },
      })
      await host.waitForOutput(/booted 2 workers in/, bootTimeout)
      const url = await addressOf(host)
      const clients = await follow(t, url, 'numbers', 8)
      const stream = pgbus.stream('numbers')

      for (let n = 1; n <= total; n += 1) {
        await stream.broadcast(n, { event: 'number' })
        if (n === 60) {
          const found = await listeners(db)
          t.equal(found.length, 1)
          await db.query('SELECT pg_terminate_backend($1)', [found[0]?.pid])
        }
        if (n === 130) host.child.send('close hub')
      }
      await waitFor(() => clients.every(client => numbers(client).at(-1) === total))
      const expected = Array.from({ length: total }, (_, at) => at + 1)
      for (const client of clients) t.same(numbers(client), expected)
      await host.waitForOutput(/switching to a local listener/)
      await waitFor(async () => (await listeners(db)).length === 2, {
        message: 'one LISTEN connection per worker',
      })

      host.signal('SIGTERM')
      t.same(await host.exited, { code: 0, signal: null })
    },
  )
})

t.test('given workers that listen for themselves, when pages are open, then there is no hub', async t => {
  const db = await createDatabase(t)
  const env = { ...environment(db), PGBUS_STREAMS_LISTEN_SCOPE: 'process' }
  const host = spawnWeb(t, { app: 'streams', args: ['-w', '2', '-p', '0'], env })
  const url = await booted(host, 2)
  await follow(t, url, 'room', 4)
  await waitFor(async () => (await listeners(db)).length === 2, {
    message: 'one LISTEN connection per worker',
  })
  t.notOk(existsSync(hubSocket(host)))
  host.signal('SIGTERM')
  t.same(await host.exited, { code: 0, signal: null })
})

t.test(
  'given streams without a secret, when the host starts in development, then its workers share one',
  async t => {
    const db = await createDatabase(t)
    const env = { ...environment(db), PGBUS_STREAMS_SECRET: undefined, NODE_ENV: 'development' }
    const host = spawnWeb(t, { app: 'streams', args: ['-w', '2', '-p', '0'], env })
    const url = await booted(host, 2)
    await follow(t, url, 'room', 4)
    t.match(host.output(), /one was made up for this run/)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
  },
)

t.test(
  'given a database that is down, when the host starts, then it serves, and streams when it is back',
  async t => {
    const server = await startServer(t)
    await server.stop()
    const host = spawnWeb(t, { app: 'streams', args: ['-w', '2', '-p', '0'], env: environment(server) })
    const url = await booted(host, 2)
    t.equal((await fetch(url)).status, 200)
    await server.start()
    const pgbus = createTestPgbus(t, server)
    const clients = await follow(t, url, 'room', 4)
    await pgbus.stream('room').broadcast(1, { event: 'number' })
    await Promise.all(clients.map(client => client.waitForEvent('number')))
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
  },
)
