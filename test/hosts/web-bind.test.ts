import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { Agent as HttpAgent, request as httpRequest } from 'node:http'
import * as http2 from 'node:http2'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { cert, key } from '../fixtures/web/certificate.ts'
import { freePort } from '../support/free-port.ts'
import { waitFor } from '../support/wait-for.ts'
import { bootTimeout, fixture, spawnWeb, type WebOptions } from './web-host.ts'

function folderOf(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-bind-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

interface Where {
  socketPath?: string
  port?: number
  path?: string
}

/** One request over HTTP/1; resolves to the status. */
function get(where: Where, agent: HttpAgent | false = false): Promise<number> {
  const send = agent instanceof HttpsAgent ? httpsRequest : httpRequest
  return new Promise((resolve, reject) => {
    send({ host: '127.0.0.1', ...where, agent }, response =>
      response
        .on('error', reject)
        .on('end', () => resolve(response.statusCode ?? 0))
        .resume(),
    )
      .on('error', reject)
      .end()
  })
}

/** One request on an HTTP/2 connection of its own. */
function get2(port: number): Promise<number> {
  const client = http2.connect(`https://127.0.0.1:${port}`, { rejectUnauthorized: false })
  return new Promise<number>((resolve, reject) => {
    client.on('error', reject)
    const request = client.request({ ':path': '/' })
    request.on('error', reject)
    request.on('response', headers => resolve(Number(headers[':status'])))
    request.resume().end()
  }).finally(() => client.close())
}

/** A host that listens on a TCP port, a Unix socket and a TLS port. */
async function setup(t: Test, options: WebOptions = {}) {
  const folder = folderOf(t)
  const socketPath = join(folder, 'app.sock')
  const [plain, secure] = [await freePort(), await freePort()]
  writeFileSync(join(folder, 'key.pem'), key)
  writeFileSync(
    join(folder, 'pgbus.config.mjs'),
    `export default { web: { tls: ${JSON.stringify({ key: join(folder, 'key.pem'), cert, http2: true })} } }`,
  )
  const host = spawnWeb(t, {
    args: [
      fixture('plain'),
      ...['-c', join(folder, 'pgbus.config.mjs')],
      ...['-b', `unix://${socketPath}?mode=0660`, `ssl://127.0.0.1:${secure}`, `tcp://127.0.0.1:${plain}`],
      ...['-w', '2'],
    ],
    ...options,
  })
  await host.waitForOutput(/booted 2 workers in/, bootTimeout)
  return { host, socketPath, plain, secure }
}

t.test('given a host with several addresses', async t => {
  const { host, socketPath, plain, secure } = await setup(t)
  const tls = new HttpsAgent({ keepAlive: true, rejectUnauthorized: false, maxSockets: 1 })
  const kept = new HttpAgent({ keepAlive: true, maxSockets: 1 })
  t.teardown(() => {
    tls.destroy()
    kept.destroy()
  })
  t.match(
    host.output(),
    `listening on unix://${socketPath}, https://127.0.0.1:${secure}, http://127.0.0.1:${plain}`,
  )

  t.test('when each is asked, then the application answers', async t => {
    t.equal(await get({ port: plain }), 200)
    t.equal(await get({ socketPath }), 200)
    t.equal(await get({ port: secure }, tls), 200)
    t.equal(await get2(secure), 200)
    t.equal(statSync(socketPath).mode & 0o777, 0o660)
  })

  t.test('when workers are replaced under requests, then none fails on any address', async t => {
    const failures: unknown[] = []
    let going = true
    const repeat = async (name: string, once: () => Promise<number>) => {
      while (going) {
        try {
          const status = await once()
          if (status !== 200) failures.push([name, status])
        } catch (error) {
          failures.push([name, error])
        }
      }
    }
    const clients = Promise.all([
      repeat('unix', () => get({ socketPath })),
      repeat('unix, kept', () => get({ socketPath }, kept)),
      repeat('tls, kept', () => get({ port: secure }, tls)),
      repeat('http2', () => get2(secure)),
      repeat('tcp', () => get({ port: plain })),
    ])
    host.signal('SIGUSR1')
    await host.waitForOutput(/restart finished in/, 60_000)
    going = false
    await clients
    t.same(failures, [])
    t.equal(statSync(socketPath).mode & 0o777, 0o660)
  })

  t.test(
    'when the host gets TERM, then running requests are answered before the application closes',
    async t => {
      const slow = Promise.all([
        get({ socketPath, path: '/slow?ms=1000' }),
        get({ port: secure, path: '/slow?ms=1000' }, tls),
      ])
      await new Promise(resolve => setTimeout(resolve, 200))
      host.signal('SIGTERM')
      t.same(await slow, [200, 200])
      t.same(await host.exited, { code: 0, signal: null })
      t.notOk(existsSync(socketPath))
      t.same(host.survivors(), [])
      t.notMatch(host.output(), /"lvl":"(WARN|ERROR)"/)
    },
  )
})

t.test(
  'given a Unix socket that a killed host left behind, when the next one starts, then it is its own',
  async t => {
    const folder = folderOf(t)
    const socketPath = join(folder, 'app.sock')
    const options = { app: 'plain', args: ['-w', '1', '-b', `unix://${socketPath}`] }
    const first = spawnWeb(t, options)
    await first.waitForOutput(/booted 1 workers in/, bootTimeout)

    t.test('when a second host starts meanwhile, then it ends, and the first one serves', async t => {
      const second = spawnWeb(t, options)
      t.same(await second.exited, { code: 1, signal: null })
      t.match(second.output(), /pgbus-web: cannot listen on unix:.*the address is in use by another process/)
      t.equal(await get({ socketPath }), 200)
    })

    t.test('when the first was killed, then the next one takes the path', async t => {
      first.signal('SIGKILL')
      await first.exited
      await waitFor(() => first.survivors().length === 0)
      t.ok(existsSync(socketPath))
      const next = spawnWeb(t, options)
      await next.waitForOutput(/booted 1 workers in/, bootTimeout)
      t.equal(await get({ socketPath }), 200)
      next.signal('SIGTERM')
      t.same(await next.exited, { code: 0, signal: null })
    })
  },
)

t.test('given addresses that cannot be, when a host starts, then it ends with 2 and says which', async t => {
  for (const [bind, rule] of [
    ['http://127.0.0.1:80', /web\.bind: "http:\/\/127.0.0.1:80" must begin with/],
    ['ssl://127.0.0.1:0', /web\.tls: is required for an address that begins with ssl/],
  ] as const) {
    const host = spawnWeb(t, { app: 'plain', args: ['-b', bind] })
    t.same(await host.exited, { code: 2, signal: null })
    t.match(host.output(), rule)
  }
})
