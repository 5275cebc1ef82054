import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import t from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import { Connector } from '../../../lib/db/connector.ts'
import { createWakeSource } from '../../../lib/streams/hub/choose.ts'
import { createStreamsListener } from '../../../lib/streams/hub/local-source.ts'
import { MasterHub } from '../../../lib/streams/hub/master-hub.ts'
import type { WakeSource } from '../../../lib/streams/wake-source.ts'
import { recordLog, startPgProxy } from '../../db/support.ts'
import { createEmptyDatabase, type TestContext } from '../../support/database.ts'
import { waitFor } from '../../support/wait-for.ts'
import { socketPath } from './support.ts'

const db = await createEmptyDatabase(t)
await db.query('CREATE TABLE frames (id bigserial PRIMARY KEY, channel text NOT NULL)')

function parts(url: string, listenScope: 'master' | 'process' = 'master') {
  const config = resolveConfig({
    databaseUrl: url,
    streams: { listenScope, ackTimeout: 4_000, degradedPoll: 200 },
  })
  return { config, connector: new Connector(config), ...recordLog() }
}

async function startHub(t: TestContext, url = db.url, path = socketPath(t)) {
  const given = parts(url)
  const hub = new MasterHub({ path, listener: () => createStreamsListener(given), ...given })
  await hub.start()
  t.teardown(() => hub.close())
  return { hub, path, ...given }
}

/** A worker's wake source that reads its channel on every durable wake, as a room does. */
async function startReader(t: TestContext, hubSocket: string | null, channel: string, url = db.url) {
  const given = parts(url)
  const source = await createWakeSource({ hubSocket, ...given })
  t.teardown(() => source.close())
  const seen: number[] = []
  const ephemerals: string[] = []
  let cursor = 0
  let reading = Promise.resolve()
  const read = async () => {
    const rows = await db.query<{ id: string }>(
      'SELECT id FROM frames WHERE channel = $1 AND id > $2 ORDER BY id',
      [channel, cursor],
    )
    for (const { id } of rows) seen.push(Number(id))
    cursor = seen.at(-1) ?? cursor
  }
  source.onWake((_channel, payload) => {
    if (payload === null) reading = reading.then(read)
    else ephemerals.push(payload)
  })
  const state = await source.ensureListening(channel)
  reading = reading.then(read)
  return { source, seen, ephemerals, state, ...given }
}

const newChannel = () => `pgbus.s.${randomBytes(16).toString('hex')}`

async function broadcast(channel: string): Promise<number> {
  const [row] = await db.query<{ id: string }>(
    `WITH stored AS (INSERT INTO frames (channel) VALUES ($1) RETURNING id)
     SELECT id, pg_notify($1, '') FROM stored`,
    [channel],
  )
  return Number(row!.id)
}

const sessions = async () => (await db.census()).length
const ready = (source: WakeSource) => waitFor(() => source.healthy, { message: 'deliveries' })

t.test('given a hub and three workers', async t => {
  t.test('when they subscribe, then the host has one session and every worker hears everything', async t => {
    const { path, hub } = await startHub(t)
    await waitFor(() => hub.stats().healthy)
    const channel = newChannel()
    const readers = [
      await startReader(t, path, channel),
      await startReader(t, path, channel),
      await startReader(t, path, channel),
    ]
    for (const { source, state, lines } of readers) {
      t.equal(source.mode, 'hub')
      t.equal(state, 'active')
      t.same(lines, [`info listening through the hub at ${path}`])
    }
    await waitFor(async () => (await sessions()) === 1)
    const ids = [await broadcast(channel), await broadcast(channel)]
    await db.query(`SELECT pg_notify($1, 'now')`, [channel])
    for (const { seen, ephemerals } of readers) {
      await waitFor(() => seen.length === 2 && ephemerals.length === 1)
      t.same(seen, ids)
      t.same(ephemerals, ['now'])
    }
    t.equal(hub.stats().channels, 1)
    for (const { source } of readers) await source.close()
    await waitFor(() => hub.stats().workers.length === 0)
    t.equal(hub.stats().channels, 0)
  })

  t.test(
    'when the hub dies while broadcasts go on, then each falls back once and misses nothing',
    async t => {
      const { path, hub } = await startHub(t)
      await waitFor(() => hub.stats().healthy)
      const channel = newChannel()
      const readers = [await startReader(t, path, channel), await startReader(t, path, channel)]
      const ids: number[] = []
      for (let n = 0; n < 60; n += 1) {
        ids.push(await broadcast(channel))
        if (n === 20) void hub.close()
      }
      for (const { source, seen, lines } of readers) {
        await waitFor(() => seen.length === ids.length)
        t.same(seen, ids)
        t.equal(source.mode, 'local')
        await waitFor(() => lines.includes('info local listener active, 1 channels'))
        t.equal(
          lines.filter(line => /^warn hub lost: .*; switching to a local listener$/.test(line)).length,
          1,
        )
      }
      await waitFor(async () => (await sessions()) === 2, { message: 'one session per worker now' })
      const id = await broadcast(channel)
      for (const { seen } of readers) await waitFor(() => seen.at(-1) === id)
    },
  )

  t.test('when its session is terminated, then the workers stay with it and miss nothing', async t => {
    const { path, hub, lines } = await startHub(t)
    await waitFor(() => hub.stats().healthy)
    const channel = newChannel()
    const { source, seen } = await startReader(t, path, channel)
    await ready(source)
    const ids = [await broadcast(channel)]
    await db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND application_name = 'pgbus-listen'`,
    )
    await waitFor(() => lines.some(line => line.startsWith('warn LISTEN connection lost')))
    for (let n = 0; n < 5; n += 1) ids.push(await broadcast(channel))
    await waitFor(() => seen.length === ids.length)
    t.same(seen, ids)
    await ready(source)
    t.equal(source.mode, 'hub')
  })
})

t.test('given a database that is down', async t => {
  t.test('when a worker subscribes, then it is pending, stays with the hub, and is woken later', async t => {
    const proxy = await startPgProxy(db.url)
    t.teardown(() => proxy.close())
    proxy.onStatement = (_text, cut) => cut()
    const { path, hub } = await startHub(t, proxy.url)
    const channel = newChannel()
    const { source, state, seen } = await startReader(t, path, channel)
    t.equal(state, 'pending')
    t.equal(source.healthy, false)
    const id = await broadcast(channel)
    proxy.onStatement = undefined
    await waitFor(() => hub.stats().healthy)
    await ready(source)
    await waitFor(() => seen.length > 0)
    t.same(seen, [id])
    t.equal(source.mode, 'hub')
    t.equal(await source.ensureListening(channel), 'active')
  })

  t.test('when the hub dies meanwhile, then the local listener wakes the worker once it is back', async t => {
    const proxy = await startPgProxy(db.url)
    t.teardown(() => proxy.close())
    proxy.onStatement = (_text, cut) => cut()
    const { path, hub } = await startHub(t, proxy.url)
    const channel = newChannel()
    const { source, seen } = await startReader(t, path, channel, proxy.url)
    await hub.close()
    await waitFor(() => source.mode === 'local')
    t.equal(await source.ensureListening(newChannel()), 'pending')
    const id = await broadcast(channel)
    proxy.onStatement = undefined
    await ready(source)
    await waitFor(() => seen.length > 0)
    t.same(seen, [id])
  })
})

t.test('given a LISTEN connection that does not deliver', async t => {
  t.test('when something durable is stored, then workers see it by polling', async t => {
    const proxy = await startPgProxy(db.url)
    t.teardown(() => proxy.close())
    proxy.mode = 'deaf'
    const { path, lines } = await startHub(t, proxy.url)
    const channel = newChannel()
    const { source, seen } = await startReader(t, path, channel)
    await waitFor(() => lines.some(line => line.startsWith('error LISTEN does not deliver')))
    t.equal(source.healthy, false)
    const ids = [await broadcast(channel)]
    await waitFor(() => seen.length === 1)
    ids.push(await broadcast(channel))
    await waitFor(() => seen.length === 2)
    t.same(seen, ids)
  })
})

t.test('given a process that cannot use a hub', async t => {
  t.test('when there is none, then it listens itself, says why, and works', async t => {
    const path = socketPath(t)
    const file = socketPath(t)
    writeFileSync(file, '')
    for (const [hubSocket, scope, reason] of [
      [null, 'master', /no hub/],
      [path, 'process', /listenScope/],
      [path, 'master', /cannot connect to the hub/],
      [file, 'master', /cannot connect to the hub/],
      [`/tmp/${'x'.repeat(200)}`, 'master', /cannot connect to the hub/],
    ] as const) {
      const given = parts(db.url, scope)
      const source = await createWakeSource({ hubSocket, ...given })
      const wakes: (string | null)[] = []
      source.onWake((_channel, payload) => void wakes.push(payload))
      t.equal(source.mode, 'local')
      t.match(given.lines[0], /^info using a local listener: /)
      t.match(given.lines[0], reason)
      const channel = newChannel()
      await ready(source)
      t.equal(await source.ensureListening(channel), 'active')
      t.equal(source.channels, 1)
      await broadcast(channel)
      await db.query(`SELECT pg_notify($1, 'x')`, [channel])
      await waitFor(() => wakes.length === 2)
      t.same(wakes, [null, 'x'])
      source.release(channel)
      t.equal(source.channels, 0)
      await source.close()
    }
  })
})
