import { PassThrough } from 'node:stream'
import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { deferred } from '../../lib/core/deferred.ts'
import { Filters } from '../../lib/streams/filters.ts'
import { PresenceTracker } from '../../lib/streams/presence-tracker.ts'
import { Streamer } from '../../lib/streams/streamer.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { FakeSource, MemoryStore, recordingLog } from './fakes.ts'

/** A client that reads everything, until it is told to stall. */
class Client extends PassThrough {
  text = ''

  constructor() {
    super({ highWaterMark: 1_024 })
    this.on('data', (chunk: Buffer) => {
      this.text += chunk.toString()
    })
  }

  get ids(): number[] {
    return [...this.text.matchAll(/^id: (\d+)$/gm)].map(match => Number(match[1]))
  }
}

function setup(t: TestContext, streams: PgbusConfig['streams'] = {}) {
  const { config } = { config: resolveConfig({ streams, databaseUrl: 'postgres://nobody' }) }
  const store = new MemoryStore()
  const source = new FakeSource()
  const { log, lines } = recordingLog()
  const reports: string[] = []
  const filters = new Filters(log)
  const streamer = new Streamer({
    config: config.streams,
    store,
    filters,
    presence: new PresenceTracker({
      db: () => {
        throw new Error('presence is not asked for')
      },
      config: config.streams.presence,
      broadcast: async () => undefined,
      log,
      touchInterval: 1_000,
    }),
    source,
    log,
    report: (error, { action }) => void reports.push(`${action}: ${(error as Error).message}`),
  })
  t.teardown(() => streamer.drain())
  const connect = (stream = 'a', cursor = 0, context?: unknown) => {
    const client = new Client()
    const connection = streamer.connect({ stream, cursor, sink: client, context })
    return { client, connection }
  }
  const broadcast = async (html: string, stream = 'a', more: object = {}) => {
    const id = await store.append(stream, JSON.stringify({ html, stream, ...more }))
    source.wake(store.channel(stream))
    return id
  }
  const isLive = ({ connection }: ReturnType<typeof connect>) =>
    waitFor(() => connection.state === 'live', { interval: 1 })
  return { store, source, filters, lines, reports, streamer, connect, broadcast, isLive }
}

t.test('given a live connection', async t => {
  t.test('when many wakes come in one turn, then one read answers them', async t => {
    const { store, source, connect, isLive } = setup(t)
    const one = connect()
    await isLive(one)
    await store.append('a', '{"html":"x"}')
    const before = store.reads
    for (let n = 0; n < 100; n += 1) source.wake(store.channel('a'))
    await waitFor(() => one.client.ids.length === 1)
    t.equal(store.reads - before, 1)
  })

  t.test('when wakes come during a read, then one more read answers them', async t => {
    const { store, source, connect, isLive } = setup(t)
    const one = connect()
    await isLive(one)
    const gate = deferred()
    store.gate = gate.promise
    const before = store.reads
    source.wake(store.channel('a'))
    await waitFor(() => store.reads === before + 1)
    for (let n = 0; n < 100; n += 1) source.wake(store.channel('a'))
    gate.resolve()
    await store.append('a', '{"html":"x"}')
    await waitFor(() => one.client.ids.length === 1)
    t.ok(store.reads - before <= 2, `${store.reads - before} reads`)
  })

  t.test('when reading fails, then it is reported once, and nothing is lost once it works again', async t => {
    const { store, reports, connect, broadcast, isLive } = setup(t)
    const one = connect()
    await isLive(one)
    store.failure = new Error('the database is away')
    await broadcast('1')
    await broadcast('2')
    await waitFor(() => store.reads >= 5)
    t.strictSame(reports, ['stream_room_read: the database is away'])
    t.equal(one.connection.state, 'live')
    store.failure = undefined
    await waitFor(() => one.client.ids.length === 2)
    t.strictSame(one.client.ids, [1, 2])
  })

  t.test('when a wake is for nobody here, then nothing is read', async t => {
    const { store, source, connect, isLive } = setup(t)
    await isLive(connect())
    const before = store.reads
    source.wake(store.channel('b'))
    source.wake('another channel', 'x')
    await new Promise(resolve => setTimeout(resolve, 20))
    t.equal(store.reads, before)
  })

  t.test('when the database is replaced by an older copy, then it is told and starts again', async t => {
    const { store, source, connect, broadcast, isLive, streamer } = setup(t)
    const one = connect()
    await isLive(one)
    for (const text of ['1', '2', '3']) await broadcast(text)
    await waitFor(() => one.client.ids.length === 3)
    store.rows.splice(1)
    store.last = 1
    source.wake(store.channel('a'))
    await waitFor(() => one.client.text.includes('"reason":"reset"'))
    t.match(one.client.text, '{"lastSeenId":3,"archiveOldestId":null,"reason":"reset"}')
    await broadcast('2 again')
    await waitFor(() => one.client.text.includes('2 again'))
    t.strictSame(one.client.ids, [1, 2, 3, 1, 2])
    t.equal(streamer.stats().gaps, 1)
  })
})

t.test('given a connection that joins', async t => {
  t.test('when LISTEN takes its time, then nothing is read, and ephemerals are kept for it', async t => {
    const { store, source, connect, isLive } = setup(t)
    const gate = deferred()
    source.gate = gate.promise
    const one = connect()
    t.ok(source.references.has(store.channel('a')))
    for (const html of ['e1', 'e2']) source.wake(store.channel('a'), JSON.stringify({ html, event: 'note' }))
    source.wake(store.channel('a'), JSON.stringify({ html: 'foreign', stream: 'b' }))
    source.wake(store.channel('a'), 'no JSON')
    await new Promise(resolve => setTimeout(resolve, 20))
    t.equal(store.reads, 0)
    t.equal(one.connection.state, 'joining')
    gate.resolve()
    await isLive(one)
    await waitFor(() => one.client.text.endsWith('event: note\ndata: e1\n\nevent: note\ndata: e2\n\n'))
    t.ok(one.client.text.indexOf('pgbus:replay-end') < one.client.text.indexOf('data: e1'))
    t.notMatch(one.client.text, 'foreign')
  })

  t.test('when it goes before LISTEN answered, then the channel is given back', async t => {
    const { source, connect, streamer } = setup(t)
    const gate = deferred()
    source.gate = gate.promise
    const one = connect()
    const other = connect()
    one.client.destroy()
    await waitFor(() => one.connection.isClosed)
    t.equal(source.references.size, 1)
    other.client.destroy()
    await waitFor(() => source.references.size === 0)
    gate.resolve()
    await new Promise(resolve => setTimeout(resolve, 20))
    t.match(streamer.stats(), { rooms: 0, closed: { client: 2 }, connections: { joining: 0 } })
    one.connection.close('idle')
    t.match(streamer.stats().closed, { client: 2 }, 'a second close counts nothing')
  })

  t.test('when many join a long history, then live ones still get their reads', async t => {
    const { store, connect, broadcast, isLive } = setup(t, { pool: { size: 3 } })
    const live = connect('live')
    await isLive(live)
    for (let n = 0; n < 600; n += 1) await store.append('a', '{"html":"x"}')
    const gate = deferred()
    const original = store.readAfter.bind(store)
    let atOnce = 0
    store.readAfter = async (stream, id, limit) => {
      if (stream === 'a') {
        atOnce += 1
        await gate.promise
      }
      return original(stream, id, limit)
    }
    const joining = Array.from({ length: 10 }, () => connect())
    await waitFor(() => atOnce > 0)
    await broadcast('x', 'live')
    await waitFor(() => live.client.ids.length === 1)
    t.equal(atOnce, 2, 'one connection of the pool is left')
    gate.resolve()
    for (const each of joining) await isLive(each)
    t.ok(joining.every(({ client }) => client.ids.length === 600))
  })
})

t.test('given a streamer that drains', async t => {
  t.test('when the history of a connection cannot be read, then it is reported and sent away', async t => {
    const { store, connect, streamer, reports } = setup(t, { writeDeadline: '1s' })
    store.failure = new Error('away')
    const one = connect()
    await waitFor(() => store.reads > 0)
    t.strictSame(reports, [], 'it is tried again for a while')
    await streamer.drain()
    t.match(one.client.text, /event: pgbus:shutdown\ndata: \{"reason":"(error|worker_restart)"\}\n\n$/)
    t.match(streamer.stats().connections, { joining: 0 })
  })

  t.test('when a connection comes meanwhile, then it is sent away by a frame', async t => {
    const { connect, streamer, source, isLive } = setup(t)
    const one = connect()
    await isLive(one)
    const drained = streamer.drain({ reason: 'error' })
    const late = connect()
    t.equal(streamer.drain(), drained)
    t.match(await drained, { closed: 1, destroyed: 0 })
    await late.connection.finished
    for (const { client } of [one, late]) {
      t.match(client.text, /retry: \d+\nevent: pgbus:shutdown\ndata: \{"reason":"error"\}\n\n$/)
      t.equal(client.writableEnded, true)
    }
    t.equal(source.isClosed, true)
    t.match(streamer.stats(), { rooms: 0, connections: { joining: 0, live: 0, lagging: 0 } })
  })

  t.test(
    'when a wake is still under way, then what was stored is sent first, then what was held',
    async t => {
      const { store, connect, streamer, isLive } = setup(t)
      const one = connect()
      await isLive(one)
      await store.append('a', '{"html":"stored"}')
      await streamer.drain()
      t.match(one.client.text, /data: stored\n\nretry: \d+\nevent: pgbus:shutdown/)
    },
  )

  t.test('when the database is away, then it ends all the same', async t => {
    const { store, connect, streamer, isLive, broadcast } = setup(t, { writeDeadline: '1s' })
    const one = connect()
    await isLive(one)
    store.failure = new Error('away')
    await broadcast('lost to this connection, not to its successor')
    await streamer.drain()
    t.match(one.client.text, 'pgbus:shutdown')
  })

  t.test('when a client takes nothing, then it is cut after the deadline', async t => {
    const { broadcast, connect, isLive, streamer } = setup(t, { writeDeadline: '1s' })
    const one = connect()
    await isLive(one)
    one.client.pause()
    for (let n = 0; n < 10; n += 1) await broadcast('x'.repeat(1_000))
    t.strictSame(await streamer.drain(), { closed: 1, destroyed: 1 })
    t.equal(one.client.destroyed, true)
  })
})

t.test('given a limit of unsent bytes that is smaller than any buffer', async t => {
  t.test('when a client stops and reads again, then it catches up', async t => {
    const { broadcast, connect, isLive, streamer } = setup(t, { maxBufferedBytes: 300 })
    const one = connect()
    await isLive(one)
    one.client.pause()
    // A stream that is paused still takes what fits into its buffer.
    await waitFor(async () => {
      await broadcast('x'.repeat(200))
      return one.connection.state === 'lagging'
    })
    const last = await broadcast('the last one')
    t.equal(streamer.stats().connections.lagging, 1)
    one.client.resume()
    await waitFor(() => one.client.ids.at(-1) === last)
    t.strictSame(
      one.client.ids,
      Array.from({ length: last }, (_, n) => n + 1),
    )
    await isLive(one)
    t.equal(
      one.client.text.match(/pgbus:replay-start/g)?.length,
      one.client.text.match(/pgbus:replay-end/g)?.length,
    )
  })
})

t.test('given broadcasts that are not for everybody', async t => {
  t.test('when they carry a label, then its filter decides by the context of each connection', async t => {
    const { filters, connect, broadcast, isLive } = setup(t)
    filters.register('admins', context => (context as { admin?: boolean } | undefined)?.admin === true)
    const admin = connect('a', 0, { admin: true })
    const guest = connect('a', 0, { admin: false })
    const anybody = connect('a')
    await Promise.all([admin, guest, anybody].map(isLive))
    const secret = await broadcast('for admins', 'a', { visible_to: 'admins' })
    const last = await broadcast('for all')
    await waitFor(() => [admin, guest, anybody].every(({ client }) => client.ids.includes(last)))
    t.strictSame(admin.client.ids, [secret, last])
    t.strictSame(guest.client.ids, [last])
    t.strictSame(anybody.client.ids, [last])
    t.equal(guest.connection.scan, last)
  })

  t.test('when the label is unknown, the filter throws or answers later, then nobody gets it', async t => {
    const { filters, lines, source, store, connect, broadcast, isLive } = setup(t)
    filters.register('throws', () => {
      throw new Error('out of order')
    })
    filters.register('later', (async () => true) as never)
    const one = connect()
    await isLive(one)
    for (const label of ['nobody knows', 'throws', 'later', '__proto__', 7, true, {}]) {
      await broadcast('x', 'a', { visible_to: label })
      source.wake(store.channel('a'), JSON.stringify({ html: 'secret', stream: 'a', visible_to: label }))
    }
    const last = await broadcast('end')
    await waitFor(() => one.client.ids.includes(last))
    t.strictSame(one.client.ids, [last])
    t.notMatch(one.client.text, 'secret')
    t.equal(lines.filter(line => line === 'warn: unknown filter "nobody knows": not delivered').length, 1)
    t.equal(lines.filter(line => line === 'error: filter "throws" threw: not delivered').length, 1)
    t.ok(lines.includes('error: filter "later": filters must be synchronous, not delivered'))
  })

  t.test('when a page of history is hidden, then what comes after it still arrives', async t => {
    const { filters, connect, broadcast, store } = setup(t)
    filters.register('nobody', () => false)
    for (let n = 0; n < 1_001; n += 1) await broadcast('hidden', 'a', { visible_to: 'nobody' })
    const last = await broadcast('shown')
    const { client } = connect()
    await waitFor(() => client.text.includes('pgbus:replay-end'))
    t.strictSame(client.ids, [last])
    t.match(client.text, `{"toId":${last},"count":1}`)
    const reads = store.reads
    await broadcast('next')
    await waitFor(() => client.ids.length === 2)
    t.ok(store.reads <= reads + 2, 'hidden rows are not read again')
  })

  t.test(
    'when a connection is excluded, then only it does not get them, whatever the filter says',
    async t => {
      const { filters, source, store, connect, broadcast, isLive } = setup(t)
      const asked: string[] = []
      filters.register('all', (_context, { stream, connectionId }) => {
        asked.push(`${stream} ${connectionId}`)
        return true
      })
      const one = connect()
      const two = connect()
      await Promise.all([one, two].map(isLive))
      const exclude = one.connection.id
      const hidden = await broadcast('x', 'a', { exclude, visible_to: 'all' })
      source.wake(store.channel('a'), JSON.stringify({ html: 'typing', stream: 'a', exclude }))
      const last = await broadcast('end')
      await waitFor(() => [one, two].every(({ client }) => client.ids.includes(last)))
      t.strictSame(one.client.ids, [last])
      t.strictSame(two.client.ids, [hidden, last])
      t.notMatch(one.client.text, 'typing')
      t.match(two.client.text, 'typing')
      t.strictSame(asked, [`a ${two.connection.id}`])
    },
  )
})
