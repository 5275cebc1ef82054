import { createServer } from 'node:http'
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import type { PgbusConfig } from '../../../lib/config/options.ts'
import { createPgbus } from '../../../lib/pgbus.ts'
import { createStreamsHandler } from '../../../plugins/node/index.ts'
import { createDatabase, type TestContext } from '../../support/database.ts'
import { createTestPgbus } from '../../support/instance.ts'
import { openSse } from '../../support/sse-client.ts'
import { waitFor } from '../../support/wait-for.ts'
import { dataOf } from '../fastify/setup.ts'

const db = await createDatabase(t)

async function setup(t: TestContext, config: PgbusConfig['streams'] = {}, prefix?: string) {
  const reports: string[] = []
  const pgbus = createTestPgbus(t, db, {
    streams: config,
    errorReporters: [(error, { action }) => void reports.push(`${action}: ${error.message}`)],
  })
  const handle = createStreamsHandler({ pgbus, ...(prefix === undefined ? {} : { prefix }) })
  const server = createServer((request, response) => {
    if (!handle(request, response)) response.end('the application')
  })
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
  t.teardown(() => handle.close().then(() => new Promise(done => server.close(done))))
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return { pgbus, handle, origin, reports }
}

t.test('given a server of node:http', async t => {
  const { pgbus, origin } = await setup(t, {}, '/live/')

  t.test('when a path is below its prefix, then it answers, and else not', async t => {
    const stream = pgbus.stream('a/b ü')
    t.match(stream.url(), /^\/live\//)
    const client = await openSse(origin + stream.url())
    await client.waitForEvent('pgbus:replay-end')
    await stream.broadcast('hello')
    await client.waitForFrame(frame => frame.data === 'hello')
    t.strictSame(dataOf(client), ['hello'])
    client.close()
    for (const path of ['/', '/lives', '/livelier/x', '/other/live/x']) {
      t.equal(await (await fetch(origin + path)).text(), 'the application', path)
    }
    t.equal((await fetch(`${origin}/live`)).status, 404)
    const file = await fetch(`${origin}/live/client/index.js`)
    t.equal(file.headers.get('content-type'), 'text/javascript; charset=utf-8')
    const etag = file.headers.get('etag')!
    const again = await fetch(`${origin}/live/client/index.js`, { headers: { 'if-none-match': etag } })
    t.equal(again.status, 304)
  })

  t.test('when it is made without what it needs, then that is said', async t => {
    const bare = createPgbus({ databaseUrl: db.url, log: { level: 'silent' }, streams: { secret: null } })
    t.teardown(() => bare.close())
    t.throws(() => createStreamsHandler({ pgbus: bare }), { code: 'PGBUS_ERR_MISSING_SECRET' })
    t.throws(() => createStreamsHandler({} as never), { name: 'TypeError', message: 'needs { pgbus }' })
    t.throws(() => createStreamsHandler({ pgbus, prefix: 'x' }), {
      name: 'TypeError',
      message: 'prefix should be',
    })
  })
})

t.test('given a server of node:http2', async t => {
  const pgbus = createTestPgbus(t, db)
  const handle = createStreamsHandler({ pgbus })
  const server = http2.createServer((request, response) => void handle(request, response))
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.teardown(async () => {
    session.destroy()
    await handle.close()
    await new Promise(done => server.close(done))
  })

  t.test('when pages share a session, then each has its frames, without headers of HTTP/1', async t => {
    const sent = session.request({ ':path': pgbus.stream('h2').url() })
    let text = ''
    let headers: object = {}
    sent.on('response', received => {
      headers = received
    })
    sent.setEncoding('utf8').on('data', chunk => {
      text += chunk
    })
    await waitFor(() => text.includes('pgbus:replay-end'))
    await pgbus.stream('h2').broadcast('over h2')
    await waitFor(() => text.endsWith('data: over h2\n\n'))
    t.match(headers, { ':status': 200, 'content-type': 'text/event-stream' })
    t.notHas(headers, 'connection')
    await handle.close()
    await waitFor(() => text.includes('pgbus:shutdown') && sent.closed)
  })
})

t.test('given pages of other origins', async t => {
  const leave = (headers: Headers) => [
    headers.get('access-control-allow-origin'),
    headers.get('access-control-allow-credentials'),
    headers.get('vary'),
  ]
  const there = 'https://shop.example'
  const allowed = [
    ['a string', there],
    ['a pattern', /^https:\/\/[a-z]+\.example$/g],
    ['a list', ['https://other.example', /shop/]],
    ['a function', (origin: string) => origin === there],
  ] as const
  for (const [what, origin] of allowed) {
    t.test(`when ${what} names them, then they may, with every status`, async t => {
      const { pgbus, origin: here } = await setup(t, { cors: { origin, credentials: true } })
      const headers = { origin: there }
      for (let twice = 0; twice < 2; twice += 1) {
        const client = await openSse(here + pgbus.stream('x').url(), { headers })
        t.match(client.headers, {
          'access-control-allow-origin': there,
          'access-control-allow-credentials': 'true',
          vary: 'Origin',
        })
        client.close()
      }
      t.strictSame(leave((await fetch(`${here}/pgbus/streams/x`, { headers })).headers), [
        there,
        'true',
        'Origin',
      ])
      const asked = await fetch(here + pgbus.stream('x').url(), { method: 'OPTIONS', headers })
      t.equal(asked.status, 204)
      t.match(asked.headers.get('access-control-allow-headers'), 'Last-Event-ID')
      t.strictSame(leave(asked.headers), [there, 'true', 'Origin'])
      const foreign = await fetch(`${here}/pgbus/streams/x`, { headers: { origin: 'https://evil.test' } })
      t.strictSame(leave(foreign.headers), [null, null, 'Origin'])
    })
  }

  t.test('when nobody is allowed, or the function fails, then there is no leave', async t => {
    const closed = await setup(t)
    const headers = { origin: there }
    t.strictSame(leave((await fetch(`${closed.origin}/pgbus/streams/x`, { headers })).headers), [
      null,
      null,
      null,
    ])
    t.equal((await fetch(`${closed.origin}/pgbus/streams/x`, { method: 'OPTIONS', headers })).status, 405)
    const broken = await setup(t, {
      cors: {
        origin: () => {
          throw new Error('no list')
        },
      },
    })
    t.strictSame(leave((await fetch(`${broken.origin}/pgbus/streams/x`, { headers })).headers), [
      null,
      null,
      null,
    ])
    t.strictSame(broken.reports, ['stream_cors: no list'])
  })

  t.test('when the setting cannot be meant, then it is refused', async t => {
    for (const cors of [
      true,
      {},
      { origin: '*', credentials: true },
      { origin: [] },
      { origin: 'x', more: 1 },
    ]) {
      t.throws(() => createPgbus({ streams: { cors: cors as never } }), { code: 'PGBUS_ERR_CONFIG' })
    }
  })
})

t.test('given test mode', async t => {
  t.test('when a stream is followed, then it is checked and ends, and nothing connects', async t => {
    const { pgbus, origin } = await setup(t, { testMode: true })
    await db.vacated()
    const client = await openSse(origin + pgbus.stream('x').url())
    await client.ended
    t.equal(client.status, 200)
    t.equal(client.headers['content-type'], 'text/event-stream')
    t.equal(client.raw(), ': pgbus test mode — connection accepted, no polling\n\n')
    t.equal((await fetch(`${origin}/pgbus/streams/x`)).status, 404)
    t.strictSame(await db.census(), [])
  })
})
