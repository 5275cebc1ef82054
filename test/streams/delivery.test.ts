import http from 'node:http'
import type { Socket } from 'node:net'
import pg from 'pg'
import t from 'tap'
import { PgbusStream } from '../../lib/client/pgbus-stream.ts'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { dataOf, idsOf, startApp } from '../plugins/fastify/setup.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import type { SseClient } from '../support/sse-client.ts'
import { waitFor } from '../support/wait-for.ts'
import { recordingLog } from './fakes.ts'

t.setTimeout(180_000)

const db = await createDatabase(t)
let streamNumber = 0

async function setup(t: TestContext, streams: PgbusConfig['streams'] = {}) {
  streamNumber += 1
  const name = `stream ${streamNumber}`
  const started = await startApp(t, { db, streams })
  return { ...started, name, stream: started.pgbus.stream(name) }
}

const connected = async (client: SseClient) => {
  await client.waitForEvent('pgbus:replay-end')
  return client
}

t.test('given a page that was rendered before its socket was open', async t => {
  t.test(
    'when messages come before, during and between connections, then each arrives once, in order',
    async t => {
      const { stream, name, pgbus, follow } = await setup(t)
      await stream.broadcast('before the page')
      const since = await stream.watermark()
      const broadcast = async (...texts: string[]) => {
        for (const text of texts) await stream.broadcast(text)
      }

      await broadcast('1', '2', '3')
      const first = await connected(await follow(name, { since }))
      t.strictSame(dataOf(first), ['1', '2', '3'])
      t.match(JSON.parse((await first.waitForEvent('pgbus:replay-start')).data), { fromId: since })
      const lastReplayed = idsOf(first).at(-1)!
      t.strictSame(JSON.parse((await first.waitForEvent('pgbus:replay-end')).data), {
        toId: lastReplayed,
        count: 3,
      })

      await broadcast('4', '5')
      await first.waitForFrame(frame => frame.data === '5')
      first.close()
      await broadcast('6', '7', '8', '9')
      const lastEventId = String(idsOf(first).at(-1))
      const second = await connected(await follow(name, { since, headers: { 'last-event-id': lastEventId } }))
      t.strictSame([...dataOf(first), ...dataOf(second)], ['1', '2', '3', '4', '5', '6', '7', '8', '9'])
      t.match(JSON.parse((await second.waitForEvent('pgbus:replay-end')).data), { count: 4 })

      second.close()
      const third = await connected(await follow(name, { since: await stream.watermark() }))
      t.strictSame(dataOf(third), [], 'nothing is new')
      third.close()
      await waitFor(async () => (await pgbus.streams.streamer()).size === 0)
    },
  )

  t.test('when the browser client follows it, then it tells its states and misses nothing', async t => {
    const { stream, app, pgbus, origin } = await setup(t)
    const seen: string[] = []
    const since = await stream.watermark()
    await stream.broadcast('1')
    const client = new PgbusStream(`${origin}${stream.url()}`, { lastEventId: since })
    t.teardown(() => client.close())
    for (const type of ['open', 'connected', 'replay-start', 'replay-end', 'message', 'close']) {
      client.addEventListener(`pgbus:${type}`, event => {
        const { detail } = event as CustomEvent<{ data?: string; code?: string; count?: number }>
        seen.push(
          [type, detail.data ?? detail.code ?? detail.count].filter(value => value !== undefined).join(' '),
        )
      })
    }
    client.connect()
    await waitFor(() => seen.includes('replay-end 1'))
    await stream.broadcast('2')
    await waitFor(() => seen.includes('message 2'))
    // As a restart of the worker does, but the server stays.
    await pgbus.streams.drain()
    await stream.broadcast('3')
    const replays = () => seen.filter(what => what.startsWith('replay-end')).length
    await waitFor(() => seen.includes('message 3') && replays() === 2)
    // Whether the third comes as replay or live depends on who is faster, and a client may come back too early.
    t.strictSame(
      seen.filter(what => what.startsWith('message')),
      ['message 1', 'message 2', 'message 3'],
    )
    const states = seen
      .filter(what => !what.startsWith('message') && what !== 'close 503')
      .map(what => what.replace(/ \d+$/, ''))
    const cycle = ['open', 'connected', 'replay-start', 'replay-end']
    t.strictSame(states, [...cycle, 'close shutdown', ...cycle])
    t.equal(app.server.listening, true)
  })

  t.test('when nothing was ever broadcast, then everything arrives from the start', async t => {
    const { stream, name, follow } = await setup(t)
    t.equal(await stream.watermark(), 0)
    const client = await connected(await follow(name))
    await stream.broadcast('first ever')
    await client.waitForFrame(frame => frame.data === 'first ever')
    client.close()
  })

  t.test('when more than a page is waiting, then all of it arrives', async t => {
    const { name, follow } = await setup(t)
    await db.query(
      `SELECT pgbus_stream_append($1, jsonb_build_object('html', n::text, 'stream', $1::text)) FROM generate_series(1, 1203) n`,
      [name],
    )
    const client = await connected(await follow(name))
    t.strictSame(
      dataOf(client),
      Array.from({ length: 1_203 }, (_, n) => String(n + 1)),
    )
    t.match(JSON.parse((await client.waitForEvent('pgbus:replay-end')).data), { count: 1_203 })
    client.close()
  })

  t.test('when more than a page comes in one transaction, then all of it arrives live', async t => {
    const { name, follow } = await setup(t)
    const client = await connected(await follow(name))
    await db.query(
      `INSERT INTO pgbus_stream_pending (stream, message)
       SELECT $1, jsonb_build_object('html', n::text) FROM generate_series(1, 1001) n`,
      [name],
    )
    await client.waitForFrame(frame => frame.data === '1001')
    t.equal(dataOf(client).length, 1_001)
    client.close()
  })
})

t.test('given payloads of every shape', async t => {
  const payloads = [
    'plain',
    '',
    'a\nb',
    'a\r\nb\rc',
    'trailing\n',
    '\n',
    '  blanks  ',
    '<pre>\n  x\n\n\ty\n</pre>',
    'id: 5\nevent: x\n\n: y',
    'ünï ✓ 😀 \u2028',
    '✓'.repeat(2_700),
    'x'.repeat(7_999),
    'x'.repeat(8_001),
    'x'.repeat(1_000_000),
  ]
  const asRead = (text: string) => text.replace(/\r\n|\r/g, '\n')

  t.test('when they are broadcast, durable and ephemeral, then they arrive as they were', async t => {
    // An ephemeral does not survive the connection that carries it: no machine is slow enough here to give it up.
    const patience = { ackTimeout: '1m', listenHealthCheck: '1m' } as const
    const { stream, name, follow } = await setup(t, { maxBufferedBytes: 0, ...patience })
    const client = await connected(await follow(name))
    for (const payload of payloads) {
      await stream.broadcast(payload, { event: 'durable', durable: true })
      await stream.broadcast(payload, { event: 'ephemeral', durable: false })
    }
    const received = (event: string) =>
      client.frames.filter(frame => frame.event === event).map(frame => frame.data)
    const count = () => received('durable').length + received('ephemeral').length
    await waitFor(() => count() === 2 * payloads.length, { timeout: 60_000 })
    t.ok(
      received('durable').every((data, index) => data === asRead(payloads[index]!)),
      'durable ones are equal, in order',
    )
    // Those that were too long came through the table, so the two ways do not keep one order.
    t.strictSame(received('ephemeral').sort(), payloads.map(asRead).sort())
    client.close()
  })

  t.test('when an ephemeral has one byte too many, then it is stored and a line is logged', async t => {
    const { log, lines } = recordingLog()
    const { pgbus } = await startApp(t, { db, log, streams: { defaultMode: 'ephemeral' } })
    const name = 'ephemeral limit'
    const stream = pgbus.stream(name)
    const overhead = Buffer.byteLength(JSON.stringify({ html: '', stream: name }))
    // Three bytes each, filled up with one-byte characters.
    const payload = (bytes: number) => {
      const rest = bytes - overhead
      return '✓'.repeat(Math.floor(rest / 3)) + 'x'.repeat(rest % 3)
    }
    t.equal(await stream.broadcast(payload(7_999)), null)
    t.equal(await stream.watermark(), 0, 'nothing was stored')
    const id = await stream.broadcast(payload(8_000))
    t.type(id, 'number')
    t.equal(await stream.watermark(), id)
    t.type(await stream.broadcast(payload(8_001)), 'number')
    t.strictSame(
      lines.filter(line => line.startsWith('warn')),
      ['warn: ephemeral broadcast on "ephemeral limit" is 8000 bytes (limit 7999); sent durably'],
      'once in a minute',
    )
  })
})

t.test('given a transaction of the caller', async t => {
  async function client(t: TestContext) {
    const own = new pg.Client({ connectionString: db.url, application_name: 'test' })
    await own.connect()
    t.teardown(() => own.end())
    return own
  }

  t.test('when it commits, then its broadcasts arrive; when it rolls back, then none', async t => {
    const { stream, name, follow } = await setup(t)
    const subscriber = await connected(await follow(name))
    const tx = await client(t)
    for (const [text, end] of [
      ['1', 'COMMIT'],
      ['lost', 'ROLLBACK'],
      ['2', 'COMMIT'],
    ] as const) {
      await tx.query('BEGIN')
      t.equal(await stream.broadcast(text, { tx }), null)
      t.equal(await stream.broadcast(text, { tx, event: 'note', durable: false }), null)
      t.equal(await stream.broadcast(text, { tx, event: 'note', durable: false }), null)
      await tx.query(end)
    }
    await stream.broadcast('end')
    await subscriber.waitForFrame(frame => frame.data === 'end')
    const of = (event: string) =>
      subscriber.frames.filter(frame => frame.event === event).map(({ data }) => data)
    t.strictSame(of('turbo-stream'), ['1', '2', 'end'])
    t.strictSame(of('note'), ['1', '1', '2', '2'], 'equal ephemerals of one transaction are not merged')
    subscriber.close()
  })

  t.test('when it is open, then nobody sees the broadcast and nobody waits for it', async t => {
    const { stream } = await setup(t)
    const tx = await client(t)
    await tx.query('BEGIN')
    await stream.broadcast('held', { tx })
    const id = await stream.broadcast('not held')
    t.strictSame(
      (await stream.readAfter(0)).map(({ data }) => data),
      ['not held'],
    )
    await tx.query('COMMIT')
    t.match(await stream.readAfter(id!), [{ data: 'held', event: 'turbo-stream' }])
  })

  t.test('when a savepoint is rolled back, then what it broadcast is gone', async t => {
    const { stream } = await setup(t)
    const tx = await client(t)
    await tx.query('BEGIN')
    await stream.broadcast('kept', { tx })
    await tx.query('SAVEPOINT a')
    await stream.broadcast({ gone: true }, { tx })
    await tx.query('ROLLBACK TO a')
    await tx.query('COMMIT')
    t.match(await stream.readAfter(0), [{ data: 'kept' }])
    t.equal((await stream.readAfter(0)).length, 1)
  })
})

t.test('given a client whose cursor cannot be continued', async t => {
  const gapOf = async (client: SseClient) =>
    JSON.parse((await client.waitForEvent('pgbus:gap-detected')).data) as object

  t.test('when messages above it were removed, then it is told, and goes on from its cursor', async t => {
    const { stream, name, follow } = await setup(t)
    const ids: number[] = []
    for (const text of ['1', '2', '3']) ids.push((await stream.broadcast(text))!)
    await db.query('DELETE FROM pgbus_stream_messages WHERE stream = $1 AND id <= $2', [name, ids[1]])
    await db.query('INSERT INTO pgbus_stream_marks VALUES ($1, $2)', [name, ids[1]])
    const late = await connected(await follow(name, { since: ids[0]! }))
    t.strictSame(await gapOf(late), {
      lastSeenId: ids[0],
      archiveOldestId: ids[1]! + 1,
      reason: 'expired',
    })
    t.strictSame(dataOf(late), ['3'])
    const events = late.frames.map(({ event }) => event)
    t.ok(events.indexOf('pgbus:gap-detected') < events.indexOf('pgbus:replay-start'))
    for (const since of [0, ids[1]!]) {
      const client = await connected(await follow(name, { since }))
      t.strictSame(dataOf(client), ['3'])
      t.notOk(
        client.frames.some(({ event }) => event === 'pgbus:gap-detected'),
        `none from ${since}`,
      )
      client.close()
    }
    late.close()
  })

  t.test('when it is above every id there is, then it starts again from 0', async t => {
    const { stream, name, follow } = await setup(t)
    await stream.broadcast('1')
    const client = await connected(await follow(name, { since: 4_000_000_000 }))
    t.strictSame(await gapOf(client), {
      lastSeenId: 4_000_000_000,
      archiveOldestId: null,
      reason: 'reset',
    })
    t.strictSame(dataOf(client), ['1'])
    await stream.broadcast('2')
    await client.waitForFrame(frame => frame.data === '2')
    client.close()
  })
})

t.test('given a client that does not read', async t => {
  /** Sends the request and reads nothing until told. */
  function openDeaf(url: string): Promise<{ socket: Socket; response: http.IncomingMessage }> {
    return new Promise((resolve, reject) => {
      const request = http.get(url, { agent: false }, response => {
        response.pause()
        resolve({ socket: response.socket, response })
      })
      request.on('error', reject)
      request.on('socket', socket => socket.on('error', () => undefined))
    })
  }

  const large = 'x'.repeat(60_000)

  t.test('when much is broadcast, then others get it at once and memory is bounded', async t => {
    const { stream, name, pgbus, origin, follow } = await setup(t, {
      maxBufferedBytes: 200_000,
      writeDeadline: '1m',
    })
    const deaf = await openDeaf(`${origin}${stream.url()}?since=0`)
    const fast = await connected(await follow(name))
    const streamer = await pgbus.streams.streamer()
    await waitFor(() => streamer.stats().connections.live === 2)
    for (let n = 0; n < 200; n += 1) await stream.broadcast(large)
    await waitFor(() => idsOf(fast).length === 200)
    await waitFor(() => streamer.stats().connections.lagging === 1)
    t.ok(streamer.stats().bufferedBytes < 600_000, `${streamer.stats().bufferedBytes} bytes are unsent`)

    // It reads again: what it missed comes from the table, without a new connection.
    let text = ''
    deaf.response.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1')
    })
    deaf.response.resume()
    const received = () => [...text.matchAll(/^id: (\d+)$/gm)].map(([, id]) => Number(id))
    await waitFor(() => received().length === 200 && streamer.stats().connections.live === 2)
    t.strictSame(received(), idsOf(fast))
    await stream.broadcast('live again')
    await waitFor(() => text.includes('live again'))
    fast.close()
    deaf.socket.destroy()
    await waitFor(() => streamer.size === 0)
  })

  t.test('when ephemerals cannot be kept for it, then it is closed rather than cheated', async t => {
    const { stream, name, pgbus, origin, follow } = await setup(t, {
      maxBufferedBytes: 500_000,
      writeDeadline: '1m',
    })
    const deaf = await openDeaf(`${origin}${stream.url()}`)
    const fast = await connected(await follow(name))
    const streamer = await pgbus.streams.streamer()
    await waitFor(() => streamer.stats().connections.live === 2)
    await waitFor(async () => {
      for (let n = 0; n < 100; n += 1) await stream.broadcast(large.slice(0, 7_000), { durable: false })
      return streamer.stats().closed.slow === 1
    })
    t.equal(streamer.size, 1)
    t.ok(dataOf(fast).length >= 100)
    await waitFor(() => deaf.socket.destroyed || (deaf.response.resume() && deaf.response.closed))
    fast.close()
  })

  t.test('when it takes nothing for the deadline, then its connection is cut', async t => {
    const { stream, pgbus, origin } = await setup(t, { maxBufferedBytes: 100_000, writeDeadline: '1s' })
    const deaf = await openDeaf(`${origin}${stream.url()}`)
    const streamer = await pgbus.streams.streamer()
    for (let n = 0; n < 150; n += 1) await stream.broadcast(large)
    await waitFor(() => streamer.stats().closed.stalled === 1)
    t.equal(streamer.size, 0)
    deaf.socket.destroy()
  })

  t.test('when it reads slowly but steadily, then it is left alone', async t => {
    const { stream, pgbus, origin } = await setup(t, { maxBufferedBytes: 8_000_000, writeDeadline: '3s' })
    const slow = await openDeaf(`${origin}${stream.url()}`)
    let bytes = 0
    const reading = setInterval(() => {
      bytes += (slow.response.read(16_384) as Buffer | null)?.length ?? 0
    }, 20)
    t.teardown(() => clearInterval(reading))
    const streamer = await pgbus.streams.streamer()
    await waitFor(() => streamer.stats().connections.live === 1)
    for (let n = 0; n < 100; n += 1) await stream.broadcast(large)
    await waitFor(() => bytes > 4_000_000, { timeout: 30_000 })
    t.strictSame(streamer.stats().closed, {})
    slow.socket.destroy()
  })
})

t.test('given connections that end', async t => {
  const channels = (session: { pgbus: { streams: { streamer(): Promise<{ stats(): object }> } } }) =>
    session.pgbus.streams.streamer().then(streamer => streamer.stats())

  t.test('when they die at any moment, then no room, channel or counter is left', async t => {
    const started = await setup(t)
    const { stream, name, follow } = started
    for (let n = 0; n < 30; n += 1) await stream.broadcast('x'.repeat(20_000))
    const clients = await Promise.all(Array.from({ length: 12 }, () => follow(name)))
    // Some during their replay, some later.
    for (const client of clients.slice(0, 6)) client.close()
    await Promise.all(clients.slice(6).map(connected))
    for (const client of clients.slice(6)) client.close()
    await waitFor(async () => {
      const stats = await channels(started)
      return JSON.stringify(stats).includes('"rooms":0') && JSON.stringify(stats).includes('"channels":0')
    })
    t.match(await channels(started), {
      connections: { joining: 0, live: 0, lagging: 0 },
      byStream: {},
      closed: { client: 12 },
      bufferedBytes: 0,
    })
  })

  t.test('when the server drains, then each is told and what was stored before has been sent', async t => {
    const { stream, name, pgbus, app, follow } = await setup(t)
    const clients = await Promise.all([follow(name), follow(name), follow('another')])
    await Promise.all(clients.map(connected))
    await stream.broadcast('the last one')
    const closing = app.close()
    for (const client of clients) {
      const frame = await client.waitForEvent('pgbus:shutdown')
      t.strictSame(JSON.parse(frame.data), { reason: 'worker_restart' })
      t.equal(frame.id, null)
      t.ok(Number(frame.retry) >= 500 && Number(frame.retry) <= 4_000, `retry ${frame.retry}`)
      await client.ended
    }
    await closing
    t.strictSame(clients.map(dataOf), [['the last one'], ['the last one'], []])
    await pgbus.close()
    await db.vacated()
  })

  t.test('when they are disconnected by the application, then each is told why', async t => {
    const { name, pgbus, follow } = await setup(t)
    const client = await connected(await follow(name))
    const other = await connected(await follow('another'))
    const streamer = await pgbus.streams.streamer()
    t.equal(streamer.disconnect({ stream: name }), 1)
    t.strictSame(JSON.parse((await client.waitForEvent('pgbus:shutdown')).data), { reason: 'revoked' })
    await client.ended
    t.equal(streamer.size, 1)
    other.close()
  })

  t.test('when nothing happens, then heartbeats come, and at last the connection ends as idle', async t => {
    const { name, follow } = await setup(t, { heartbeatInterval: '100ms', idleTimeout: '1s' })
    const client = await connected(await follow(name))
    await client.waitForEvent('pgbus:shutdown')
    t.ok(client.comments.filter(comment => /^heartbeat \d+$/.test(comment)).length >= 3)
    t.strictSame(JSON.parse(client.frames.at(-1)!.data), { reason: 'idle' })
    await client.ended
  })

  t.test('when they are old, then they end although they are busy', async t => {
    const { stream, name, follow } = await setup(t, { maxAge: '1s', writeDeadline: '1s' })
    const client = await connected(await follow(name))
    const busy = setInterval(() => void stream.broadcast('x'), 50)
    await client.waitForEvent('pgbus:shutdown')
    clearInterval(busy)
    t.strictSame(JSON.parse(client.frames.at(-1)!.data), { reason: 'max_age' })
  })
})

t.test('given sessions that the server ends', async t => {
  t.test('when a live connection loses LISTEN and pool, then it stays open and misses nothing', async t => {
    const { stream, name, follow, pgbus } = await setup(t)
    const client = await connected(await follow(name))
    for (let n = 1; n <= 5; n += 1) {
      await db.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'pgbus%'`,
      )
      // Stored by somebody else while nobody listens.
      await db.query('SELECT pgbus_stream_append($1, $2::jsonb)', [name, JSON.stringify({ html: `${n}` })])
      await client.waitForFrame(frame => frame.data === `${n}`)
    }
    await stream.broadcast('end')
    await client.waitForFrame(frame => frame.data === 'end')
    t.strictSame(dataOf(client), ['1', '2', '3', '4', '5', 'end'])
    t.strictSame((await pgbus.streams.streamer()).stats().closed, {})
    client.close()
  })
})

t.test('given what other clients of the database write', async t => {
  t.test('when it is no envelope, then its JSON is delivered; of another stream, then not', async t => {
    const { name, stream, follow } = await setup(t)
    const client = await connected(await follow(name))
    const append = (message: unknown) =>
      db.query('SELECT pgbus_stream_append($1, $2::jsonb)', [name, JSON.stringify(message)])
    await append({ some: 'thing' })
    await append({ html: 'for somebody else', stream: 'another' })
    await append({ html: 'for everybody' })
    await db.query('SELECT pg_notify(pgbus_stream_channel($1), $2)', [name, 'no JSON'])
    await db.query('SELECT pg_notify(pgbus_stream_channel($1), $2)', [
      name,
      JSON.stringify({ html: 'ephemeral for somebody else', stream: 'another' }),
    ])
    await stream.broadcast('end')
    await client.waitForFrame(frame => frame.data === 'end')
    t.strictSame(dataOf(client), ['{"some": "thing"}', 'for everybody', 'end'])
    client.close()
  })

  t.test('when the tables are missing, then the error says what to run', async t => {
    const { pgbus } = await startApp(t, {
      db: await (await import('../support/database.ts')).createEmptyDatabase(t),
    })
    await t.rejects(pgbus.stream('a').broadcast('x'), {
      code: 'PGBUS_ERR_SCHEMA_NOT_READY',
      message: /pgbus migrate/,
    })
  })
})
