/** The same probes through every door. */
import http, { createServer, type RequestListener, type Server } from 'node:http'
import http2 from 'node:http2'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import t from 'tap'
import type { Pgbus } from '../../lib/pgbus.ts'
import { pgbusHealthExpress } from '../../plugins/express/index.ts'
import { pgbusHealth } from '../../plugins/fastify/index.ts'
import { createHealthHandler } from '../../plugins/node/index.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'

type Express = RequestListener & { use(...handlers: unknown[]): void }
type Open = (t: TestContext, pgbus: Pgbus) => Promise<number>

const require = createRequire(import.meta.url)
const db = await createDatabase(t)

async function listen(t: TestContext, server: Server): Promise<number> {
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
  t.teardown(() => new Promise(done => server.close(done)))
  return (server.address() as AddressInfo).port
}

async function openFastify(t: TestContext, options: { pgbus: Pgbus; prefix?: string }): Promise<number> {
  const app = Fastify()
  t.teardown(() => app.close())
  await app.register(pgbusHealth, options)
  app.get('/other', async () => 'the application')
  await app.listen({ port: 0, host: '127.0.0.1' })
  return (app.server.address() as AddressInfo).port
}

const openExpress =
  (version: string): Open =>
  (t, pgbus) => {
    const app = (require(version) as () => Express)()
    app.use('/pgbus/health', pgbusHealthExpress({ pgbus }))
    app.use((_request: unknown, response: { end(text: string): void }) => response.end('the application'))
    return listen(t, createServer(app))
  }

const doors: [name: string, prefix: string, open: Open][] = [
  ['Fastify', '/pgbus/health', (t, pgbus) => openFastify(t, { pgbus })],
  [
    'Fastify with a prefix',
    '/inner/probes',
    (t, pgbus) => openFastify(t, { pgbus, prefix: '/inner/probes' }),
  ],
  ['Express 4', '/pgbus/health', openExpress('express4')],
  ['Express 5', '/pgbus/health', openExpress('express')],
  [
    'node:http',
    '/inner/probes',
    (t, pgbus) => {
      const handle = createHealthHandler({ pgbus, prefix: '/inner/probes/' })
      return listen(
        t,
        createServer((request, response) => {
          if (!handle(request, response)) response.end('the application')
        }),
      )
    },
  ],
]

interface Answer {
  code: number
  headers: http.IncomingHttpHeaders
  body: string
}

function ask(port: number, path: string, method = 'GET', body?: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = body === undefined ? {} : { 'content-type': 'application/x-nobody-knows' }
    const request = http.request({ port, host: '127.0.0.1', path, method, headers, agent: false })
    request.once('error', reject)
    request.once('response', response => {
      let text = ''
      response.setEncoding('utf8').on('data', chunk => {
        text += chunk
      })
      response.once('end', () =>
        resolve({ code: response.statusCode ?? 0, headers: response.headers, body: text }),
      )
    })
    request.end(body)
  })
}

for (const [name, prefix, open] of doors) {
  t.test(`given the probes behind ${name}`, async t => {
    const pgbus = createTestPgbus(t, db)
    const port = await open(t, pgbus)

    t.test('when the cluster is well, then it lives and is ready', async t => {
      const live = await ask(port, `${prefix}/livez`)
      t.match(live, { code: 200, body: /^ok$/, headers: { 'content-type': /^text\/plain/ } })
      t.equal(live.headers['cache-control'], 'no-store')
      const ready = await ask(port, `${prefix}/readyz?verbose=1`)
      t.match(ready, { code: 200, headers: { 'content-type': /^application\/json/ } })
      t.equal(ready.headers['cache-control'], 'no-store')
      t.match(JSON.parse(ready.body), {
        status: 'OK',
        checked_at: /^\d{4}-.*Z$/,
        summary: { total_depth: 0 },
      })
    })

    t.test('when asked in another way or for something else, then it refuses', async t => {
      for (const path of ['livez', 'readyz']) {
        for (const method of ['HEAD', 'POST', 'PUT', 'OPTIONS', 'DELETE']) {
          const body = method === 'POST' ? 'x' : undefined
          const answer = await ask(port, `${prefix}/${path}`, method, body)
          t.match(answer, { code: 405, headers: { allow: 'GET' } }, `${method} ${path}`)
          t.equal(answer.body, method === 'HEAD' ? '' : 'pgbus: method not allowed')
        }
      }
      for (const path of ['', '/', '/readyz/', '/livez/x', '/metrics', '/LIVEZ']) {
        t.match(await ask(port, prefix + path), { code: 404, body: /^pgbus: not found$/ }, path)
      }
      t.equal((await ask(port, '/other')).body, 'the application')
    })

    t.test('when the instance cannot reach its database, then it lives and is not ready', async t => {
      const away = createTestPgbus(t, { url: 'postgres://127.0.0.1:1/x' })
      const there = await open(t, away)
      t.match(await ask(there, `${prefix}/livez`), { code: 200, body: /^ok$/ })
      const { code, body, headers } = await ask(there, `${prefix}/readyz`)
      t.equal(code, 503)
      t.strictSame(JSON.parse(body), { status: 'ERROR', error: 'connect ECONNREFUSED 127.0.0.1:1' })
      t.equal(headers['cache-control'], 'no-store')
    })
  })
}

t.test('given the probes behind node:http2', async t => {
  const pgbus = createTestPgbus(t, db)
  const handle = createHealthHandler({ pgbus })
  const server = http2.createServer((request, response) => void handle(request, response))
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.teardown(async () => {
    session.destroy()
    await new Promise(done => server.close(done))
  })

  t.test('when it is asked, then it answers', async t => {
    const request = session.request({ ':path': '/pgbus/health/readyz' })
    const status = await new Promise(resolve => request.once('response', head => resolve(head[':status'])))
    request.close()
    t.equal(status, 200)
  })
})

t.test('given doors that are made without what they need', async t => {
  t.test('when they are made, then that is said', async t => {
    const pgbus = createTestPgbus(t, db)
    await t.rejects(openFastify(t, {} as never), { name: 'TypeError', message: 'needs { pgbus }' })
    t.throws(() => pgbusHealthExpress({} as never), { name: 'TypeError', message: 'needs { pgbus }' })
    t.throws(() => createHealthHandler({ pgbus, prefix: 'x' }), { message: 'prefix should be' })
  })
})
