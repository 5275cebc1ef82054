import net, { type AddressInfo } from 'node:net'
import t from 'tap'
import { PgbusStream, type PgbusStreamOptions, parseId } from '../../lib/client/pgbus-stream.ts'
import type { TestContext } from '../support/database.ts'
import { createSseServer, type Exchange } from '../support/sse-server.ts'
import { waitFor } from '../support/wait-for.ts'

interface Seen {
  type: string
  detail: Record<string, unknown>
}

const types = [
  'open',
  'connected',
  'message',
  'event',
  'json',
  'typing',
  'replay-start',
  'replay-end',
  'gap-detected',
  'close',
]

/** A stream that is closed at teardown, and everything that it dispatched. */
function follow(t: TestContext, url: string, options: PgbusStreamOptions = {}) {
  const stream = new PgbusStream(url, options)
  t.teardown(() => stream.close())
  const seen: Seen[] = []
  for (const type of types) {
    stream.addEventListener(`pgbus:${type}`, event => {
      seen.push({ type, detail: (event as CustomEvent<Record<string, unknown>>).detail })
    })
  }
  stream.addEventListener('message', event => {
    const { data, lastEventId } = event as MessageEvent
    seen.push({ type: 'dom message', detail: { data, lastEventId } })
  })
  const of = (type: string) => seen.filter(entry => entry.type === type).map(entry => entry.detail)
  return {
    stream,
    seen,
    of,
    ids: () => of('message').map(detail => detail.msgId),
    /** Detail of the event of this type with this number, from 0. */
    nth: (type: string, index: number) =>
      waitFor(() => of(type)[index], { interval: 5, message: `pgbus:${type} ${index}` }),
  }
}

async function setup(
  t: TestContext,
  answer: (exchange: Exchange, index: number) => void,
  options?: PgbusStreamOptions,
) {
  const server = await createSseServer(t, answer)
  const client = follow(t, `${server.url}/streams/token`, options)
  client.stream.connect()
  return { server, ...client }
}

t.test('given a stream', async t => {
  t.test('when it opens, then state and events tell it in order', async t => {
    const server = await createSseServer(t, exchange => exchange.open({ id: '9f86d081884c7d65' }))
    const changes: string[] = []
    const client = follow(t, `${server.url}/streams/token`, {
      onChange: () => changes.push(`${client.stream.state} ${client.stream.connectionId}`),
    })
    t.equal(client.stream.state, 'closed')
    client.stream.connect()
    t.equal(client.stream.state, 'connecting')
    t.strictSame(await client.nth('connected', 0), { connectionId: '9f86d081884c7d65' })
    t.strictSame(client.seen[0], { type: 'open', detail: { lastEventId: null, connectionId: null } })
    t.equal(client.stream.connectionId, '9f86d081884c7d65')
    t.strictSame(changes, ['connecting null', 'open null', 'open 9f86d081884c7d65'])
    const exchange = await server.request(0)
    t.equal(exchange.headers.accept, 'text/event-stream')
    t.equal(exchange.since, null)
    t.equal(exchange.lastEventId, null)
  })

  t.test('when it starts with an id, then the id is in the header and in the query', async t => {
    const { server } = await setup(t, exchange => exchange.open(), { lastEventId: 41 })
    const exchange = await server.request(0)
    t.equal(exchange.since, '41')
    t.equal(exchange.lastEventId, '41')
    t.equal(exchange.path, '/streams/token')
  })

  t.test('when it starts with id 0, then that is an id too', async t => {
    const { server } = await setup(t, exchange => exchange.open(), { lastEventId: 0 })
    t.equal((await server.request(0)).since, '0')
  })

  t.test(
    'when the URL has a query of its own, then only its since is replaced, once an id is known',
    async t => {
      const server = await createSseServer(t, exchange => exchange.open().durable(9, 'a').end())
      const client = follow(t, `${server.url}/s/a%2Fb+c?x=1&since=5#top`)
      client.stream.connect()
      t.equal((await server.request(0)).since, '5')
      const second = await server.request(1)
      t.equal(second.since, '9')
      t.equal(second.path, '/s/a%2Fb+c')
    },
  )

  t.test('when frames come, then each kind is told in its own way', async t => {
    const { stream, seen, nth } = await setup(t, exchange => {
      exchange.open().control('replay-start', { fromId: 4 }).durable(5, 'one\ntwo')
      exchange.control('replay-end', { toId: 5, count: 1 }).ephemeral('gone')
      exchange.durable(6, 'is typing', 'typing').ephemeral('{"n":[1]}', 'json').durable(7, '{broken', 'json')
    })
    await nth('json', 1)
    t.strictSame(seen.slice(2), [
      { type: 'replay-start', detail: { fromId: 4 } },
      { type: 'dom message', detail: { data: 'one\ntwo', lastEventId: '5' } },
      { type: 'message', detail: { msgId: 5, data: 'one\ntwo' } },
      { type: 'replay-end', detail: { toId: 5, count: 1 } },
      { type: 'dom message', detail: { data: 'gone', lastEventId: '' } },
      { type: 'message', detail: { msgId: null, data: 'gone' } },
      { type: 'event', detail: { event: 'typing', data: 'is typing', msgId: 6 } },
      { type: 'typing', detail: { data: 'is typing', msgId: 6 } },
      { type: 'event', detail: { event: 'json', data: '{"n":[1]}', msgId: null, json: { n: [1] } } },
      { type: 'json', detail: { data: '{"n":[1]}', msgId: null, json: { n: [1] } } },
      { type: 'event', detail: { event: 'json', data: '{broken', msgId: 7 } },
      { type: 'json', detail: { data: '{broken', msgId: 7 } },
    ])
    t.equal(stream.lastEventId, 7)
  })

  t.test('when control frames are unknown or malformed, then they are ignored', async t => {
    const { stream, seen, nth } = await setup(t, exchange => {
      exchange
        .open()
        .control('new-thing', {})
        .control('connected', { connectionId: 7 })
        .control('gap-detected', null)
      exchange.write('event: pgbus:shutdown\ndata: {\n\n').control('shutdown', 'x').durable(1, 'a')
    })
    await nth('message', 0)
    t.strictSame(
      seen.map(entry => entry.type),
      ['open', 'connected', 'dom message', 'message'],
    )
    t.equal(stream.connectionId, '00000000000000aa')
  })

  t.test(
    'when a frame has an id that is none of ours, then it counts as ephemeral and leaves the cursor',
    async t => {
      const { stream, ids, nth } = await setup(t, exchange => {
        exchange
          .open()
          .durable(3, 'a')
          .durable(-4, 'b')
          .durable('x', 'c')
          .durable('9'.repeat(16), 'd')
          .durable('', 'e')
      })
      await nth('message', 4)
      t.strictSame(ids(), [3, null, null, null, null])
      t.equal(stream.lastEventId, 3)
      t.equal(parseId('9007199254740991'), 9007199254740991)
      t.equal(parseId('9007199254740992'), null)
    },
  )

  t.test('when events are dispatched elsewhere, then they bubble from there', async t => {
    const target = new EventTarget()
    const events: Event[] = []
    for (const type of ['message', 'pgbus:message'])
      target.addEventListener(type, event => events.push(event))
    await setup(t, exchange => exchange.open().durable(1, 'a'), { target })
    await waitFor(() => events.length === 2)
    t.strictSame(
      events.map(({ type, bubbles, composed }) => ({ type, bubbles, composed })),
      [
        { type: 'message', bubbles: false, composed: false },
        { type: 'pgbus:message', bubbles: true, composed: true },
      ],
    )
  })

  t.test('when arguments are wrong, then a TypeError says so', async t => {
    t.throws(() => new PgbusStream('/relative'), TypeError)
    for (const lastEventId of [-1, 1.5, Number.NaN, 2 ** 53]) {
      t.throws(
        () => new PgbusStream('http://localhost', { lastEventId }),
        /lastEventId should be null or an id/,
      )
    }
  })
})

t.test('given a connection that ends', async t => {
  t.test('when the body ends, then it comes back with its cursor and sees every id once', async t => {
    const { server, ids, nth } = await setup(t, (exchange, index) => {
      if (index === 0) exchange.open({ id: 'aa' }).durable(5, 'a').durable(6, 'b').ephemeral('x').end()
      else exchange.open({ id: 'bb' }).durable(6, 'b').durable(7, 'c')
    })
    await nth('message', 3)
    t.strictSame(ids(), [5, 6, null, 7])
    const second = await server.request(1)
    t.equal(second.since, '6')
    t.equal(second.lastEventId, '6')
    const close = await nth('close', 0)
    t.match(close, { code: 'network', reason: 'the response ended', willReconnect: true })
    t.ok(
      (close.retryIn as number) >= 50 && (close.retryIn as number) <= 100,
      'within the retry of the server',
    )
    t.strictSame(await nth('connected', 1), { connectionId: 'bb' })
  })

  t.test(
    'when it comes back, then the connection id of before is gone until the new one is known',
    async t => {
      const states: [string, string | null][] = []
      const server = await createSseServer(t, (exchange, index) => {
        if (index === 0) exchange.open({ id: 'aa' }).end()
      })
      const { stream, nth } = follow(t, server.url)
      for (const type of ['open', 'connected', 'close']) {
        stream.addEventListener(`pgbus:${type}`, () => states.push([type, stream.connectionId]))
      }
      stream.connect()
      await nth('close', 0)
      t.strictSame(states, [
        ['open', null],
        ['connected', 'aa'],
        ['close', null],
      ])
      const second = await server.request(1)
      t.equal(stream.connectionId, null)
      second.open({ id: 'bb' })
      await nth('connected', 1)
      t.strictSame(states.slice(3), [
        ['open', null],
        ['connected', 'bb'],
      ])
    },
  )

  t.test('when a typed event comes after the reconnect, then it arrives', async t => {
    const { of, nth } = await setup(t, (exchange, index) => {
      exchange.open().ephemeral(`round ${index}`, 'typing')
      if (index < 2) exchange.end()
    })
    await nth('typing', 2)
    t.strictSame(
      of('typing').map(detail => detail.data),
      ['round 0', 'round 1', 'round 2'],
    )
  })

  t.test('when the socket breaks inside a frame, then the frame is not half delivered', async t => {
    const { ids, of, nth } = await setup(t, (exchange, index) => {
      if (index > 0) return void exchange.open().durable(2, 'whole')
      exchange.open().durable(1, 'a').write('id: 2\ndata: hal')
      setTimeout(() => exchange.cut(), 50)
    })
    await nth('message', 1)
    t.strictSame(ids(), [1, 2])
    t.equal(of('message')[1]?.data, 'whole')
    t.match(await nth('close', 0), { code: 'network', willReconnect: true })
  })

  t.test('when nobody listens, then it keeps trying, and connects once somebody does', async t => {
    const probe = net.createServer().listen(0, '127.0.0.1')
    await new Promise(resolve => probe.once('listening', resolve))
    const { port } = probe.address() as AddressInfo
    await new Promise(resolve => probe.close(resolve))
    const { stream, nth } = follow(t, `http://127.0.0.1:${port}/`)
    stream.connect()
    t.match(await nth('close', 0), { code: 'network', willReconnect: true })
    t.equal(stream.state, 'waiting')
    await createSseServer(t, exchange => exchange.open().ephemeral('a'), port)
    t.match(await nth('message', 0), { data: 'a', msgId: null })
  })
})

t.test('given a server that refuses', async t => {
  for (const status of [400, 401, 403, 404, 405, 410]) {
    t.test(`when it answers ${status}, then the client stops for good`, async t => {
      const { server, stream, nth } = await setup(t, exchange => exchange.answer(status, {}, 'pgbus: no'))
      t.match(await nth('close', 0), { code: status, willReconnect: false, retryIn: null })
      t.equal(stream.state, 'closed')
      await new Promise(resolve => setTimeout(resolve, 150))
      t.equal(server.requests.length, 1)
    })
  }

  t.test('when the content type is wrong, then the client stops for good and says why', async t => {
    const { stream, nth } = await setup(t, exchange =>
      exchange.answer(200, { 'content-type': 'text/html' }, '<p>login</p>'),
    )
    t.match(await nth('close', 0), { code: 200, reason: /text\/html/, willReconnect: false, retryIn: null })
    t.equal(stream.state, 'closed')
  })

  t.test('when the content type has parameters, then it is right', async t => {
    const { nth } = await setup(t, exchange => {
      exchange.answer(200, { 'content-type': 'Text/Event-Stream; charset=utf-8' }, 'data: a\n\n')
    })
    t.match(await nth('message', 0), { data: 'a' })
  })

  t.test(
    'when it answers 503 with Retry-After, then the client waits at least that long and comes back',
    async t => {
      const { server, nth } = await setup(t, (exchange, index) => {
        if (index === 0) exchange.open({ retry: 100 }).durable(5, 'a').end()
        else if (index === 1) exchange.answer(503, { 'retry-after': '1' }, 'pgbus: shutting down')
        else exchange.open()
      })
      const close = await nth('close', 1)
      t.match(close, { code: 503, willReconnect: true })
      t.ok((close.retryIn as number) >= 1_000, 'not before')
      const third = await server.request(2)
      t.ok(third.at - (server.requests[1]?.at ?? 0) >= 990, 'not before, measured at the server')
      t.equal(third.since, '5', 'with its cursor')
      await nth('connected', 1)
    },
  )

  for (const status of [408, 425, 429, 500, 502]) {
    t.test(`when it answers ${status} after a while, then the client comes back`, async t => {
      const { nth } = await setup(t, (exchange, index) => {
        if (index === 0) exchange.open({ retry: 100 }).end()
        else if (index === 1) exchange.answer(status)
        else exchange.open()
      })
      t.match(await nth('close', 1), { code: status, willReconnect: true })
      await nth('connected', 1)
    })
  }

  t.test('when it was final and connect() is called again, then it starts anew', async t => {
    const { stream, nth } = await setup(t, (exchange, index) =>
      index === 0 ? exchange.answer(404) : exchange.open(),
    )
    await nth('close', 0)
    stream.connect()
    await nth('connected', 0)
    t.equal(stream.state, 'open')
  })
})

t.test('given a shutdown frame', async t => {
  t.test(
    'when the server leaves the response open, then the client leaves, and returns within its retry',
    async t => {
      const { server, stream, ids, nth } = await setup(t, (exchange, index) => {
        if (index === 0)
          exchange.open({ retry: 20_000 }).durable(5, 'a').shutdown('worker_restart', 200).durable(6, 'late')
        else exchange.open().durable(6, 'b')
      })
      const close = await nth('close', 0)
      t.match(close, { code: 'shutdown', reason: 'worker_restart', willReconnect: true })
      t.ok((close.retryIn as number) <= 200)
      t.equal(stream.connectionId, null)
      await (await server.request(0)).closed
      t.equal((await server.request(1)).since, '5', 'the frame is no new cursor')
      await nth('message', 1)
      t.strictSame(ids(), [5, 6])
    },
  )

  t.test('when the response ends right after it, then there is one close and one request', async t => {
    const { server, of, nth } = await setup(t, (exchange, index) => {
      if (index === 0) exchange.open().shutdown('idle').end()
      else exchange.open()
    })
    await nth('connected', 1)
    t.equal(of('close').length, 1)
    t.equal(server.requests.length, 2)
  })
})

t.test('given a silent connection', async t => {
  t.test('when nothing comes for three heartbeats, then it is given up and opened anew', async t => {
    const { server, of, nth } = await setup(t, (exchange, index) => {
      if (index === 0) exchange.open({ heartbeat: 60 }).durable(5, 'a')
      else exchange.open()
    })
    const start = performance.now()
    t.match(await nth('close', 0), {
      code: 'timeout',
      reason: 'nothing arrived for 180 ms',
      willReconnect: true,
    })
    t.ok(performance.now() - start >= 150, 'not early')
    await (await server.request(0)).closed
    t.equal((await server.request(1)).since, '5')
    t.equal(of('close').length, 1)
  })

  t.test('when heartbeats come, then it is kept', async t => {
    const { of, nth, server } = await setup(t, exchange => {
      exchange.open({ heartbeat: 300 })
      const timer = setInterval(() => exchange.write(': heartbeat\n\n'), 50)
      setTimeout(() => exchange.durable(1, 'end'), 1_200)
      void exchange.closed.then(() => clearInterval(timer))
    })
    await nth('message', 0)
    t.equal(of('close').length, 0)
    t.equal(server.requests.length, 1)
  })

  t.test('when the server names an endless heartbeat, then the watchdog does not spin', async t => {
    const { stream, nth, of } = await setup(t, exchange => exchange.open({ heartbeat: 1e15 }).durable(1, 'a'))
    await nth('message', 0)
    const before = process.cpuUsage()
    await new Promise(resolve => setTimeout(resolve, 300))
    t.ok(process.cpuUsage(before).user < 200_000, 'less than 200 ms of 300')
    t.equal(stream.state, 'open')
    t.equal(of('close').length, 0)
  })

  t.test('when the next one never answers, then that is given up too', async t => {
    const { server, nth } = await setup(t, (exchange, index) => {
      if (index === 0) exchange.open({ heartbeat: 50 }).end()
      else if (index > 1) exchange.open()
    })
    t.match(await nth('close', 1), { code: 'timeout', willReconnect: true })
    await server.request(2)
  })
})

t.test('given a stream that is closed', async t => {
  t.test('when it was connecting, then the request is aborted and nothing is told', async t => {
    const { server, stream, seen } = await setup(t, () => undefined)
    const exchange = await server.request(0)
    stream.close()
    t.equal(stream.state, 'closed')
    await exchange.closed
    await new Promise(resolve => setTimeout(resolve, 50))
    t.strictSame(seen, [])
  })

  t.test('when it was closed before the request left, then nothing is told', async t => {
    const { stream, seen } = await setup(t, exchange => exchange.open())
    stream.close()
    await new Promise(resolve => setTimeout(resolve, 100))
    t.strictSame(seen, [])
  })

  t.test('when it was open, then the connection goes and no frame is told any more', async t => {
    const { server, stream, seen, nth } = await setup(t, exchange => exchange.open())
    await nth('connected', 0)
    stream.close()
    const exchange = await server.request(0)
    exchange.durable(1, 'late')
    await exchange.closed
    stream.close()
    t.strictSame(
      seen.map(entry => entry.type),
      ['open', 'connected'],
    )
    t.equal(stream.connectionId, null)
  })

  t.test('when it was waiting, then it does not come back', async t => {
    const { server, stream, nth } = await setup(t, exchange => exchange.open().end())
    await nth('close', 0)
    stream.close()
    await new Promise(resolve => setTimeout(resolve, 250))
    t.equal(server.requests.length, 1)
  })

  t.test(
    'when a listener closes it, then the frames behind it in the same chunk are not delivered',
    async t => {
      const server = await createSseServer(t, exchange => exchange.open().durable(1, 'a').durable(2, 'b'))
      const { stream, ids, nth } = follow(t, server.url)
      stream.addEventListener('pgbus:message', () => stream.close())
      stream.connect()
      await nth('message', 0)
      await (await server.request(0)).closed
      t.strictSame(ids(), [1])
      t.equal(stream.lastEventId, 1)
    },
  )

  t.test('when a listener of pgbus:close closes it, then it does not come back', async t => {
    const server = await createSseServer(t, exchange => exchange.open().end())
    const { stream, nth } = follow(t, server.url)
    stream.addEventListener('pgbus:close', () => stream.close())
    stream.connect()
    await nth('close', 0)
    await new Promise(resolve => setTimeout(resolve, 250))
    t.equal(server.requests.length, 1)
    t.equal(stream.state, 'closed')
  })

  t.test(
    'when it is opened again at once, then the old connection does nothing and the new one has the cursor',
    async t => {
      const { server, stream, ids, of, nth } = await setup(t, (exchange, index) => {
        if (index === 0) exchange.open({ id: 'aa' }).durable(1, 'a')
        else exchange.open({ id: 'bb' }).durable(2, 'b')
      })
      await nth('message', 0)
      stream.close()
      stream.connect()
      stream.connect()
      await nth('message', 1)
      await (await server.request(0)).closed
      t.equal((await server.request(1)).since, '1')
      t.strictSame(ids(), [1, 2])
      t.equal(stream.connectionId, 'bb')
      t.equal(of('close').length, 0)
      t.equal(server.requests.length, 2)
    },
  )

  t.test('when it is opened and closed forty times, then no connection is left', async t => {
    const { server, stream } = await setup(t, exchange => exchange.open())
    for (let round = 0; round < 40; round += 1) {
      stream.close()
      stream.connect()
      const known = server.requests.length
      if (round % 4 === 0) await waitFor(() => server.requests.length > known, { interval: 1 })
    }
    stream.close()
    t.ok(server.requests.length >= 10)
    await waitFor(() => server.requests.every(exchange => exchange.isClosed))
  })
})

t.test('given a gap', async t => {
  t.test('when ids have expired, then it is told and the cursor stays', async t => {
    const detail = { lastSeenId: 3, archiveOldestId: 90, reason: 'expired' }
    const { stream, of, nth } = await setup(
      t,
      exchange => exchange.open().control('gap-detected', detail).durable(90, 'a'),
      {
        lastEventId: 3,
      },
    )
    await nth('message', 0)
    t.strictSame(of('gap-detected'), [detail])
    t.equal(stream.lastEventId, 90)
  })

  t.test('when ids started again, then lower ones are no duplicates and become the cursor', async t => {
    const { server, ids, nth } = await setup(
      t,
      (exchange, index) => {
        exchange.open()
        if (index > 0) return
        exchange.control('gap-detected', { lastSeenId: 1_000, archiveOldestId: 1, reason: 'reset' })
        exchange.durable(1, 'a').durable(2, 'b').end()
      },
      { lastEventId: 1_000 },
    )
    await nth('message', 1)
    t.strictSame(ids(), [1, 2])
    t.equal((await server.request(1)).since, '2')
  })
})
