import { createServer, type IncomingMessage, type RequestListener } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { pgbusStreamsExpress } from '../../../plugins/express/index.ts'
import { createDatabase } from '../../support/database.ts'
import { createTestPgbus } from '../../support/instance.ts'
import { openSse } from '../../support/sse-client.ts'
import { dataOf } from '../fastify/setup.ts'

/** The part of Express that is used here. */
type Express = RequestListener & { use(...handlers: unknown[]): void }

const require = createRequire(import.meta.url)
const compression = require('compression') as () => unknown
const db = await createDatabase(t)

for (const version of ['express4', 'express']) {
  t.test(`given an application of ${version}`, async t => {
    const express = require(version) as () => Express
    const pgbus = createTestPgbus(t, db)
    const app = express()
    const streams = pgbusStreamsExpress<IncomingMessage & { user?: string }>({
      pgbus,
      authorize: (request, stream) => (stream === 'closed' ? false : { user: request.user }),
    })
    app.use((request: { user?: string }, _response: unknown, next: () => void) => {
      request.user = 'ann'
      next()
    })
    app.use(compression())
    app.use('/pgbus/streams', streams)
    app.use((_request: unknown, response: { end(text: string): void }) => response.end('the application'))
    const server = createServer(app)
    await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
    t.teardown(() => streams.close().then(() => new Promise(done => server.close(done))))
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`

    t.test('when a page follows a stream, then it has replay and live, uncompressed', async t => {
      const stream = pgbus.stream(`${version} page`)
      await stream.broadcast('before')
      const client = await openSse(`${origin}${stream.url()}?since=0`, {
        headers: { 'accept-encoding': 'gzip' },
      })
      await client.waitForEvent('pgbus:replay-end')
      await stream.broadcast('after')
      await client.waitForFrame(frame => frame.data === 'after')
      t.strictSame(dataOf(client), ['before', 'after'])
      t.match(client.headers, {
        'content-type': 'text/event-stream',
        'cache-control': 'no-cache, no-transform',
      })
      t.notHas(client.headers, 'content-encoding')
      const streamer = await pgbus.streams.streamer()
      t.equal(streamer.disconnect({ match: context => (context as { user: string }).user === 'ann' }), 1)
      await client.waitForEvent('pgbus:shutdown')
    })

    t.test('when a request is for no stream, then it is refused, or the application answers', async t => {
      const get = async (path: string, method = 'GET') => {
        const { status, headers, ...response } = await fetch(origin + path, { method }).then(
          async answer => ({
            status: answer.status,
            headers: answer.headers,
            body: await answer.text(),
          }),
        )
        return [status, headers.get('allow'), response.body]
      }
      t.strictSame(await get('/pgbus/streams'), [404, null, 'pgbus: missing signed stream name'])
      t.strictSame(await get('/pgbus/streams/x'), [404, null, 'pgbus: invalid signed stream name'])
      t.strictSame(await get('/pgbus/streams/%E0%A4%A'), [404, null, 'pgbus: invalid signed stream name'])
      t.strictSame(await get(pgbus.stream('closed').url()), [403, null, 'pgbus: forbidden'])
      t.strictSame(await get(pgbus.stream('x').url(), 'HEAD'), [405, 'GET', ''])
      t.strictSame(await get(pgbus.stream('x').url(), 'POST'), [405, 'GET', 'pgbus: method not allowed'])
      t.strictSame(await get('/elsewhere'), [200, null, 'the application'])
      t.match(await get('/pgbus/streams/client/index.js'), [200, null, /PgbusStream/])
      t.match(await get('/pgbus/streams/client/../package.json'), [404, null, /pgbus/])
    })

    t.test('when it closes, then its clients are told to come back, and new ones are refused', async t => {
      const client = await openSse(origin + pgbus.stream('end').url())
      await client.waitForEvent('pgbus:replay-end')
      await streams.close()
      await client.waitForEvent('pgbus:shutdown')
      await client.ended
      const late = await fetch(origin + pgbus.stream('end').url())
      t.equal(late.status, 503)
      t.equal(late.headers.get('retry-after'), '1')
    })
  })
}
