import { request } from 'node:http'
import http2 from 'node:http2'
import Fastify, { type FastifyRequest } from 'fastify'
import t from 'tap'
import { createPgbus } from '../../../lib/pgbus.ts'
import { signName } from '../../../lib/streams/token.ts'
import { pgbusStreams } from '../../../plugins/fastify/index.ts'
import { createDatabase, type TestContext } from '../../support/database.ts'
import { createTestPgbus } from '../../support/instance.ts'
import { openSse } from '../../support/sse-client.ts'
import { waitFor } from '../../support/wait-for.ts'
import { dataOf, idsOf, startApp } from './setup.ts'

t.setTimeout(120_000)

const db = await createDatabase(t)
const textType = 'text/plain; charset=utf-8'

interface Answer {
  status: number
  headers: NodeJS.Dict<string | string[]>
  body: string
}

/** Sends a path as it is, which `fetch` would tidy up first. */
function send(
  origin: string,
  path: string,
  options: { method?: string; headers?: Record<string, string> } = {},
) {
  const { hostname, port } = new URL(origin)
  return new Promise<Answer>((resolve, reject) => {
    const sent = request({ hostname, port, path, agent: false, ...options }, response => {
      let body = ''
      response.setEncoding('utf8').on('data', chunk => {
        body += chunk
      })
      response.on('end', () => resolve({ status: response.statusCode ?? 0, headers: response.headers, body }))
    })
    sent.on('error', reject).end()
  })
}

t.test('given a request that is not answered with a stream', async t => {
  const { origin, pgbus } = await startApp(t, { db })
  const good = pgbus.stream('room:42').url()

  const paths: [string, string, number, string][] = [
    ['no token', '/pgbus/streams/', 404, 'pgbus: missing signed stream name'],
    ['no token and no slash', '/pgbus/streams', 404, 'pgbus: missing signed stream name'],
    ['a blank token', '/pgbus/streams/%20', 404, 'pgbus: missing signed stream name'],
    ['a token that is none', '/pgbus/streams/x', 404, 'pgbus: invalid signed stream name'],
    ['a tampered token', `${good}0`, 404, 'pgbus: invalid signed stream name'],
    ['a token with more behind it', `${good}/more`, 404, 'pgbus: invalid signed stream name'],
    ['a cursor with a sign', `${good}?since=+1`, 400, 'pgbus: invalid cursor: since should be a message id'],
    ['a negative cursor', `${good}?since=-1`, 400, 'pgbus: invalid cursor: since should be a message id'],
    [
      'a cursor with decimals',
      `${good}?since=1.0`,
      400,
      'pgbus: invalid cursor: since should be a message id',
    ],
    [
      'a cursor that is too large',
      `${good}?since=9223372036854775808`,
      400,
      'pgbus: invalid cursor: since should be a message id',
    ],
  ]
  for (const [what, path, status, body] of paths) {
    t.test(`when it has ${what}, then the answer is ${status}`, async t => {
      const answer = await send(origin, path)
      t.match(answer, { status, body })
      t.match(answer.headers, { 'content-type': textType, 'cache-control': 'no-store' })
    })
  }

  t.test('when the browser sends a cursor that is none, then the answer is 400', async t => {
    t.match(await send(origin, good, { headers: { 'last-event-id': 'abc' } }), {
      status: 400,
      body: 'pgbus: invalid cursor: Last-Event-ID should be a message id',
    })
  })

  for (const method of ['HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
    t.test(`when its method is ${method}, then the answer is 405`, async t => {
      const headers = method === 'POST' ? { 'content-type': 'application/json', 'content-length': '0' } : {}
      for (const path of [good, '/pgbus/streams', '/pgbus/streams/x']) {
        const answer = await send(origin, path, { method, headers })
        t.equal(answer.status, 405)
        t.equal(answer.headers.allow, 'GET')
        t.equal(answer.body, method === 'HEAD' ? '' : 'pgbus: method not allowed')
      }
    })
  }

  t.test('when all of them were refused, then nothing was opened for them', async () => {
    await db.vacated()
  })
})

t.test('given a token in other forms', async t => {
  const { origin, pgbus } = await startApp(t, { db })
  const open = async (t: TestContext, path: string) => {
    const client = await openSse(`${origin}${path}`)
    t.teardown(() => client.close())
    return client
  }

  t.test('when it is percent-encoded once, then it is decoded once', async t => {
    const token = pgbus.stream('room:42').token()
    const encoded = [...token].map(char => `%${char.charCodeAt(0).toString(16).padStart(2, '0')}`).join('')
    t.equal((await open(t, `/pgbus/streams/${encoded}`)).status, 200)
  })

  t.test('when it holds slashes and plus signs, as Rails writes them, then they are part of it', async t => {
    const { createHmac } = await import('node:crypto')
    // Two characters whose base64 has "+" and "/".
    const data = Buffer.from(JSON.stringify('>>>???~~~ûûû')).toString('base64')
    t.match(data, /[+].*[/]|[/].*[+]/)
    const hmac = createHmac('sha256', 'a-secret-for-the-tests').update(data).digest('hex')
    t.equal((await open(t, `/pgbus/streams/${data}--${hmac}`)).status, 200)
  })

  t.test('when it has expired, then the answer is the one for every bad token', async t => {
    const token = signName('room:42', ['a-secret-for-the-tests'], { expiresIn: '1s' }, Date.now() - 2_000)
    t.match(await send(origin, `/pgbus/streams/${token}`), { status: 404, body: /invalid signed/ })
  })
})

t.test('given an open stream', async t => {
  const {
    follow,
    pgbus,
    origin,
    db: own,
  } = await startApp(t, {
    db,
    prepare: app => {
      app.post('/echo', async request => {
        const exclude = request.pgbusConnectionId
        await pgbus.stream('echo').broadcast(exclude ? 'mine' : 'for all', { exclude })
        return exclude ?? 'none'
      })
    },
  })

  t.test('when its head and first frames come, then they are as documented', async t => {
    const client = await follow('head')
    t.equal(client.status, 200)
    t.match(client.headers, {
      'content-type': 'text/event-stream',
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
      connection: 'keep-alive',
      'transfer-encoding': 'chunked',
    })
    await client.waitForEvent('pgbus:replay-end')
    t.match(
      client.raw(),
      /^retry: 2000\n\n: pgbus stream open since_id=0 stream=head\n\nevent: pgbus:connected\ndata: \{"connectionId":"[0-9a-f]{16}","heartbeat":15000\}\n\nevent: pgbus:replay-start\ndata: \{"fromId":0\}\n\nevent: pgbus:replay-end\ndata: \{"toId":0,"count":0\}\n\n$/,
    )
    client.close()
  })

  t.test('when it is used, then the connections of the process are named', async t => {
    const client = await follow('names')
    await client.waitForEvent('pgbus:replay-end')
    const names = (await own.census()).map(row => row.application_name)
    t.ok(names.includes('pgbus-listen'), String(names))
    t.ok(names.includes(`pgbus_streams_${process.pid}`), String(names))
    client.close()
    await waitFor(async () => (await pgbus.streams.streamer()).size === 0)
  })

  t.test('when a page names its connection, then it does not hear its own echo', async t => {
    const one = await follow('echo')
    const two = await follow('echo')
    for (const client of [one, two]) await client.waitForEvent('pgbus:replay-end')
    const connected = await one.waitForEvent('pgbus:connected')
    const { connectionId } = JSON.parse(connected.data) as { connectionId: string }
    const post = (id: string) =>
      fetch(`${origin}/echo`, { method: 'POST', headers: { 'x-pgbus-connection': id } })
    t.equal(await (await post(connectionId)).text(), connectionId)
    t.equal(await (await post('no id')).text(), 'none')
    await pgbus.stream('echo').broadcast('end')
    await one.waitForFrame(frame => frame.data === 'end')
    await two.waitForFrame(frame => frame.data === 'end')
    t.strictSame(dataOf(one), ['for all', 'end'])
    t.strictSame(dataOf(two), ['mine', 'for all', 'end'])
    one.close()
    two.close()
  })

  t.test('when an ephemeral comes, then it has no id and does not move the cursor', async t => {
    const client = await follow('ephemeral')
    await client.waitForEvent('pgbus:replay-end')
    await pgbus.stream('ephemeral').broadcast('x', { durable: false, event: 'typing' })
    const frame = await client.waitForEvent('typing')
    t.strictSame([frame.id, frame.data], [null, 'x'])
    t.strictSame(idsOf(client), [])
    client.close()
  })
})

t.test('given HTTP/2', async t => {
  const reported: string[] = []
  const asked: string[] = []
  const pgbus = createTestPgbus(t, db, { errorReporters: [error => void reported.push(error.message)] })
  let release = () => {}
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const app = Fastify({ http2: true })
  t.teardown(() => app.close())
  await app.register(pgbusStreams, {
    pgbus,
    authorize: async (_request, stream) => {
      asked.push(stream)
      if (stream === 'slow') await held
      return true
    },
  })
  const session = http2.connect(await app.listen({ port: 0, host: '127.0.0.1' }))
  t.teardown(() => session.destroy())
  const follow = (stream: string) => {
    const sent = session.request({ ':path': pgbus.stream(stream).url() })
    const client = { sent, text: '', headers: {} as NodeJS.Dict<unknown> }
    sent.on('error', () => undefined).on('response', headers => Object.assign(client.headers, headers))
    sent.setEncoding('utf8').on('data', chunk => {
      client.text += chunk
    })
    return client
  }

  t.test('when streams share a session, then each has its frames, and no header of HTTP/1', async t => {
    const clients = [follow('a'), follow('b')]
    await waitFor(() => clients.every(({ text }) => text.includes('pgbus:replay-end')))
    await pgbus.stream('b').broadcast('for b')
    await waitFor(() => clients[1]?.text.endsWith('data: for b\n\n'))
    t.notMatch(clients[0]?.text, 'for b')
    t.match(clients[0]?.headers, { ':status': 200, 'content-type': 'text/event-stream' })
    t.notOk(Object.keys(clients[0]?.headers ?? {}).some(name => /connection|keep-alive/.test(name)))
    clients[0]?.sent.close(http2.constants.NGHTTP2_CANCEL)
    const streamer = await pgbus.streams.streamer()
    await waitFor(() => streamer.size === 1)
    t.equal(streamer.disconnect(), 1)
    await waitFor(() => clients[1]?.text.includes('"reason":"revoked"') && clients[1].sent.closed)
  })

  t.test('when a request is cancelled before it is authorised, then nothing is opened', async t => {
    const { sent } = follow('slow')
    await waitFor(() => asked.includes('slow'))
    sent.close(http2.constants.NGHTTP2_CANCEL)
    await waitFor(() => sent.closed)
    // One session keeps its order: who is answered after the cancellation shows that it was seen.
    const opened = async (stream: string) => {
      const client = follow(stream)
      await waitFor(() => client.text.includes('pgbus:replay-end'))
    }
    await opened('after the cancellation')
    release()
    await opened('after the release')
    t.equal((await pgbus.streams.streamer()).size, 2)
    t.strictSame(reported, [])
  })
})

t.test('given an authorize function', async t => {
  const seen: unknown[] = []
  const errors: string[] = []
  const answers: Record<string, () => unknown> = {
    yes: () => true,
    async: async () => ({ userId: 7 }),
    no: () => false,
    none: () => undefined,
    'no, later': async () => null,
    401: () => {
      throw Object.assign(new Error('who?'), { statusCode: 401 })
    },
    429: async () => {
      throw Object.assign(new Error('too often'), { statusCode: 429 })
    },
    404: () => {
      throw Object.assign(new Error('not here'), { statusCode: 404 })
    },
    broken: () => {
      throw new Error('the session store is down')
    },
  }
  const pgbus = createTestPgbus(t, db, {
    errorReporters: [(error, { action }) => void errors.push(`${action}: ${error.message}`)],
  })
  const app = Fastify()
  t.teardown(() => app.close())
  app.decorateRequest('user', '')
  app.addHook('onRequest', async (request, reply) => {
    Object.assign(request, { user: String(request.headers['x-user'] ?? '') })
    reply.header('x-of-the-application', 'yes')
  })
  await app.register(pgbusStreams, {
    pgbus,
    authorize: (request: FastifyRequest, stream, { subject }) => {
      seen.push([(request as FastifyRequest & { user: string }).user, stream, subject])
      return answers[stream]?.()
    },
  })
  const origin = await app.listen({ port: 0, host: '127.0.0.1' })
  const statuses: [string, number][] = [
    ['yes', 200],
    ['async', 200],
    ['no', 403],
    ['none', 403],
    ['no, later', 403],
    ['401', 401],
    ['429', 429],
    ['404', 500],
    ['broken', 500],
  ]
  for (const [stream, status] of statuses) {
    t.test(`when it answers "${stream}", then the status is ${status}`, async t => {
      const client = await openSse(`${origin}${pgbus.stream(stream).url({ subject: 's' })}`, {
        headers: { 'x-user': 'ann' },
      })
      t.equal(client.status, status)
      t.strictSame(seen.at(-1), ['ann', stream, 's'])
      t.equal(client.headers['x-of-the-application'], 'yes')
      if (status !== 200) {
        await client.ended
        t.equal(client.raw(), status === 500 ? 'pgbus: internal error' : 'pgbus: forbidden')
      }
      client.close()
    })
  }

  t.test('when it fails, then the error is reported, and when it refuses, then not', async t => {
    t.strictSame(errors, ['stream_connect: not here', 'stream_connect: the session store is down'])
  })

  t.test('when it gives a context, then connections can be ended by it', async t => {
    const client = await openSse(`${origin}${pgbus.stream('async').url()}`)
    await client.waitForEvent('pgbus:replay-end')
    const streamer = await pgbus.streams.streamer()
    const of = (id: number) => (context: unknown) =>
      (context as { userId?: number } | undefined)?.userId === id
    t.equal(streamer.disconnect({ match: of(8) }), 0)
    t.equal(streamer.disconnect({ match: of(7) }), 1)
    await client.waitForEvent('pgbus:shutdown')
  })

  t.test('when it takes long and the client is gone, then nothing is opened', async t => {
    let release = () => {}
    answers.slow = () =>
      new Promise(resolve => {
        release = () => resolve(true)
      })
    const { port, hostname } = new URL(origin)
    const closed = new Promise(resolve => {
      app.server.once('connection', socket => socket.once('close', resolve))
    })
    const sent = request({ port, hostname, path: pgbus.stream('slow').url(), agent: false })
    sent.on('error', () => undefined).end()
    await waitFor(() => (seen.at(-1) as string[])[1] === 'slow')
    sent.destroy()
    await closed
    release()
    // Whatever the answer set off has happened when a request that came later is served.
    const later = await openSse(`${origin}${pgbus.stream('yes').url()}`)
    await later.waitForEvent('pgbus:replay-end')
    t.equal((await pgbus.streams.streamer()).size, 1)
    later.close()
  })
})

t.test('given an application that compresses its answers', async t => {
  const compress = (await import('@fastify/compress')).default
  const { follow, pgbus } = await startApp(t, {
    db,
    prepare: async app => void (await app.register(compress, { global: true, threshold: 0 })),
  })

  t.test('when a stream is followed, then its bytes come as they are, and at once', async t => {
    const client = await follow('compressed', { headers: { 'accept-encoding': 'gzip, br' } })
    await client.waitForEvent('pgbus:replay-end')
    await pgbus.stream('compressed').broadcast('x')
    await client.waitForFrame(frame => frame.data === 'x')
    t.notHas(client.headers, 'content-encoding')
    t.match(client.headers['cache-control'], 'no-transform')
    client.close()
  })
})

t.test('given a limit of connections', async t => {
  const { follow, pgbus } = await startApp(t, { db, streams: { maxConnections: 2 } })

  t.test('when it is reached, then the next is told when to come back', async t => {
    const clients = await Promise.all([follow('a'), follow('b'), follow('c')])
    t.strictSame(clients.map(client => client.status).sort(), [200, 200, 503])
    const refused = clients.find(client => client.status === 503)!
    t.equal(refused.headers['retry-after'], '2')
    await refused.ended
    t.equal(refused.raw(), 'pgbus: streamer over capacity')
    for (const client of clients) client.close()
    await waitFor(async () => (await pgbus.streams.streamer()).size === 0)
    t.equal((await follow('d')).status, 200)
  })
})

t.test('given an application that is closing', async t => {
  t.test('when another request comes, then it is told to come back', async t => {
    const pgbus = createTestPgbus(t, db)
    const app = Fastify({ return503OnClosing: false })
    t.teardown(() => app.close())
    await app.register(pgbusStreams, { pgbus })
    let late: Answer | undefined
    // Runs when the streams have ended and the listener is still open.
    app.addHook('preClose', async () => {
      late = await send(origin, pgbus.stream('a').url())
    })
    const origin = await app.listen({ port: 0, host: '127.0.0.1' })
    const client = await openSse(`${origin}${pgbus.stream('a').url()}`)
    await client.waitForEvent('pgbus:replay-end')
    await app.close()
    await client.waitForEvent('pgbus:shutdown')
    await client.ended
    t.match(late, { status: 503, body: 'pgbus: shutting down', headers: { 'retry-after': '1' } })
    t.equal((await pgbus.streams.streamer()).size, 0, 'the instance can serve another application')
  })

  t.test('when the instance is closed first, then requests are told to come back', async t => {
    const { origin, pgbus, follow } = await startApp(t, { db })
    const path = pgbus.stream('a').url()
    const client = await follow('a')
    await client.waitForEvent('pgbus:replay-end')
    await pgbus.close()
    await client.ended
    t.match(client.frames.at(-1), { event: 'pgbus:shutdown' })
    const answer = await send(origin, path)
    t.match(answer, { status: 503, body: 'pgbus: shutting down' })
    t.equal(answer.headers['retry-after'], '1')
  })
})

t.test('given a page', async t => {
  const { app, pgbus, origin } = await startApp(t, {
    db,
    prepare: app => {
      app.get('/page', async (request, reply) => {
        const marks = await request.streamMark('orders', ['room', 42])
        await pgbus.stream('orders').broadcast('after the mark')
        const again = await request.streamMark('orders')
        const tags = [
          await reply.streamSourceTag('orders', { script: true, nonce: 'n"1' }),
          await reply.streamSourceTag(['room', 42], {
            script: true,
            attributes: { class: 'a&b', hidden: true, id: null },
          }),
          await reply.streamSourceTag('orders', { since: 7 }),
        ]
        return { marks, again, tags }
      })
    },
  })
  const before = (await pgbus.stream('orders').broadcast('before'))!

  t.test(
    'when it marks streams and renders tags, then they go on from the marks, with one script',
    async t => {
      const { marks, again, tags } = (await (await fetch(`${origin}/page`)).json()) as {
        marks: number[]
        again: number[]
        tags: string[]
      }
      t.strictSame([marks, again], [[before, 0], [before]])
      const orders = pgbus.stream('orders').url()
      t.strictSame(tags, [
        `<script type="module" nonce="n&quot;1" src="/pgbus/streams/client/index.js"></script><pgbus-stream-source src="${orders}" since-id="${before}"></pgbus-stream-source>`,
        `<pgbus-stream-source src="${pgbus.stream('room:42').url()}" since-id="0" class="a&amp;b" hidden></pgbus-stream-source>`,
        `<pgbus-stream-source src="${orders}" since-id="7"></pgbus-stream-source>`,
      ])
    },
  )

  t.test('when it follows its own tag, then it gets what came after the mark', async t => {
    const html = (await (await fetch(`${origin}/page`)).json()) as { tags: string[]; marks: number[] }
    const src = /src="([^"]+)" since-id/.exec(html.tags[0]!)![1]!
    const client = await openSse(`${origin}${src}?since=${html.marks[0]}`)
    await client.waitForEvent('pgbus:replay-end')
    t.strictSame(dataOf(client), ['after the mark'])
    client.close()
  })

  t.test('when an attribute is not allowed, then it is a TypeError', async t => {
    for (const name of ['src', 'SINCE-ID', 'a b', 'x"', ''])
      await t.rejects(pgbus.stream('a').sourceTag({ attributes: { [name]: 'x' } }), { name: 'TypeError' })
    await t.rejects(pgbus.stream('a').sourceTag({ since: -1 }), { name: 'TypeError' })
  })

  t.test('when it is not rendered by Fastify, then the tag starts at the watermark', async t => {
    const watermark = await app.streams.stream('orders').watermark()
    t.match(await pgbus.stream('orders').sourceTag(), `since-id="${watermark}"></pgbus-stream-source>`)
  })
})

t.test('given where the endpoint is', async t => {
  t.test('when it has a prefix and stands in a scope with one, then URLs have both', async t => {
    const pgbus = createTestPgbus(t, db)
    const app = Fastify()
    t.teardown(() => app.close())
    await app.register(
      async scope => void (await scope.register(pgbusStreams, { pgbus, prefix: '/live/' })),
      { prefix: '/api' },
    )
    const origin = await app.listen({ port: 0, host: '127.0.0.1' })
    const url = pgbus.stream('a').url()
    t.match(url, /^\/api\/live\/[\w-]+$/)
    const client = await openSse(origin + url)
    t.equal(client.status, 200)
    client.close()
    t.equal((await fetch(`${origin}/api/live/client/index.js`)).status, 200)
  })

  t.test('when browsers see another path, then URLs have that one, with or without a slash', async t => {
    for (const path of ['/public/events', '/public/events/']) {
      const { pgbus } = await startApp(t, { db, streams: { path } })
      t.match(pgbus.stream('a').url(), /^\/public\/events\/[\w-]+$/)
      t.match(
        await pgbus.stream('a').sourceTag({ since: 0, script: true }),
        'src="/public/events/client/index.js"',
      )
    }
  })

  t.test('when the prefix is no path, then registering fails', async t => {
    const pgbus = createTestPgbus(t, db)
    for (const prefix of ['', '/', 'streams', '/a/:b', '/a/*', '/a//b', '/a b']) {
      const app = Fastify()
      t.teardown(() => app.close())
      await t.rejects(
        async () => void (await app.register(pgbusStreams, { pgbus, prefix })),
        { name: 'TypeError' },
        prefix,
      )
    }
  })
})

t.test('given the browser client', async t => {
  const { origin } = await startApp(t, { db })
  const index = `${origin}/pgbus/streams/client/index.js`

  t.test('when it is fetched, then it is a script that may be kept and must be asked about', async t => {
    const response = await fetch(index)
    const text = await response.text()
    t.equal(response.status, 200)
    t.match(text, /pgbus-stream/)
    t.match(Object.fromEntries(response.headers), {
      'content-type': 'text/javascript; charset=utf-8',
      'cache-control': 'public, no-cache',
      'x-content-type-options': 'nosniff',
      etag: /^"[0-9a-f]{32}"$/,
    })
    const etag = response.headers.get('etag')!
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`]) {
      const again = await send(origin, '/pgbus/streams/client/index.js', {
        headers: { 'if-none-match': known },
      })
      t.match(again, { status: 304, body: '' })
    }
    t.equal((await fetch(index, { headers: { 'if-none-match': '"other"' } })).status, 200)
  })

  t.test('when its modules import each other, then each is there', async t => {
    const pages = [new URL(index)]
    const found = new Set<string>()
    for (const page of pages) {
      if (found.has(page.href)) continue
      found.add(page.href)
      const response = await fetch(page)
      t.equal(response.status, 200, page.pathname)
      for (const [, specifier] of (await response.text()).matchAll(/from '(\.[^']+)'/g))
        pages.push(new URL(specifier!, page))
    }
    t.ok(found.size >= 4)
  })

  t.test('when something else is asked for, then it is not there', async t => {
    for (const path of [
      '../index.js',
      '..%2findex.js',
      '%2e%2e/index.js',
      '../../../package.json',
      'index.d.ts',
      'index.js.map',
      'nothing.js',
      '',
    ]) {
      const answer = await send(origin, `/pgbus/streams/client/${path}`)
      t.equal(answer.status, 404, path)
      t.notMatch(answer.body, /import|export/)
    }
  })
})

t.test('given how it is registered', async t => {
  const bare = (t: TestContext, options: { logger?: object } = {}) => {
    const app = Fastify(options as object)
    t.teardown(() => app.close())
    return app
  }

  t.test('when it is registered twice, then the second time fails and says so', async t => {
    const pgbus = createTestPgbus(t, db)
    const app = bare(t)
    await app.register(pgbusStreams, { pgbus })
    await t.rejects(async () => void (await app.register(pgbusStreams, { pgbus, prefix: '/other' })), {
      code: 'PGBUS_ERR_CONFIG',
      message: /already registered/,
    })
  })

  t.test('when the application has a decorator of that name, then it says that and nothing else', async t => {
    const pgbus = createTestPgbus(t, db)
    const app = bare(t)
    app.decorate('streams', { getter: () => pgbus.streams })
    await t.rejects(async () => void (await app.register(pgbusStreams, { pgbus })), {
      code: 'PGBUS_ERR_CONFIG',
      message: /already has a decorator "streams"/,
    })
  })

  t.test('when there is no secret, then it fails at once, not at the first request', async t => {
    const pgbus = createPgbus({ databaseUrl: db.url, log: { level: 'silent' } })
    t.teardown(() => pgbus.close())
    await t.rejects(async () => void (await bare(t).register(pgbusStreams, { pgbus })), {
      code: 'PGBUS_ERR_MISSING_SECRET',
    })
    t.throws(() => pgbus.stream('a').token(), { code: 'PGBUS_ERR_MISSING_SECRET' })
  })

  t.test('when there is no instance, then it fails with what is needed', async t => {
    await t.rejects(async () => void (await bare(t).register(pgbusStreams, {} as never)), {
      name: 'TypeError',
      message: /needs \{ pgbus \}/,
    })
  })

  t.test('when streams are off, then there is no endpoint', async t => {
    const { origin, pgbus } = await startApp(t, { db, streams: { enabled: false } })
    t.equal((await send(origin, pgbus.stream('a').url())).status, 404)
    t.type(await pgbus.stream('a').broadcast('x'), 'number')
  })

  t.test('when the application has the package for events already, then that one is used', async t => {
    const { default: sse } = await import('@fastify/sse')
    const { follow } = await startApp(t, {
      db,
      prepare: async app => void (await app.register(sse.fastifySSE)),
    })
    const client = await follow('a')
    t.equal(client.status, 200)
    client.close()
  })

  t.test('when requests are logged, then tokens are not', async t => {
    const lines: string[] = []
    const logger = { level: 'trace', stream: { write: (line: string) => void lines.push(line) } }
    const { follow, pgbus, origin } = await startApp(t, { db, fastify: { logger } })
    const client = await follow('secret room')
    await client.waitForEvent('pgbus:replay-end')
    client.close()
    const token = pgbus.stream('secret room').token()
    await send(origin, `/pgbus/streams/${token}?since=x`)
    await send(origin, `/pgbus/streams/${token}`, { method: 'POST' })
    await waitFor(() => lines.filter(line => line.includes('incoming request')).length >= 3)
    t.match(lines.join(''), '"url":"/pgbus/streams/…"')
    t.notMatch(lines.join(''), token)
  })
})
