/** Servers of every kind are emptied without losing a request: HTTP/2 with and without TLS, HTTPS, and both at once. */
import { createServer, type RequestListener, type Server } from 'node:http'
import * as http2 from 'node:http2'
import { Agent, createServer as createHttpsServer, request as httpsRequest } from 'node:https'
import { type AddressInfo, connect } from 'node:net'
import t, { type Test } from 'tap'
import { Connections } from '../../../lib/processes/web/connections.ts'
import { cert, key } from '../../fixtures/web/certificate.ts'
import { waitFor } from '../../support/wait-for.ts'

type Kind = 'h2c' | 'https' | 'h2'

async function setup(t: Test, kind: Kind, handler: RequestListener) {
  const listener = handler as unknown as Parameters<typeof http2.createServer>[1]
  const server = {
    h2c: () => http2.createServer(listener!) as unknown as Server,
    https: () => createHttpsServer({ key, cert }, handler) as unknown as Server,
    h2: () => http2.createSecureServer({ key, cert, allowHTTP1: true }, listener!) as unknown as Server,
  }[kind]()
  const connections = new Connections(server)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const closed = new Promise<void>(resolve => server.once('close', () => resolve()))
  const { port } = server.address() as AddressInfo
  t.teardown(() => {
    server.close()
    connections.destroy()
  })
  return { server, connections, closed, port }
}

function session(t: Test, url: string) {
  const client = http2.connect(url, { rejectUnauthorized: false })
  client.on('error', () => undefined)
  t.teardown(() => client.destroy())
  const get = () =>
    new Promise<number>((resolve, reject) => {
      let status = 0
      const request = client.request({ ':path': '/' })
      request.on('response', headers => {
        status = Number(headers[':status'])
      })
      request.on('error', reject)
      request.on('end', () => resolve(status)).resume()
      request.end()
    })
  return { client, get }
}

for (const kind of ['h2c', 'h2'] as const)
  t.test(`given an HTTP/2 session (${kind})`, async t => {
    let finish = () => {}
    const { connections, closed, port } = await setup(t, kind, (_request, response) => {
      finish = () => response.end('done')
      if (!slow) finish()
    })
    let slow = false
    const { client, get } = session(t, `${kind === 'h2' ? 'https' : 'http'}://127.0.0.1:${port}`)
    t.equal(await get(), 200)
    t.equal(connections.open, 1)
    t.equal(connections.requests, 1)
    await waitFor(() => connections.inFlight === 0)

    t.test('when the server refuses, then a running request is answered and the session ends', async t => {
      slow = true
      const answer = get()
      await waitFor(() => connections.inFlight === 1)
      const gone = new Promise(resolve => client.once('goaway', resolve))
      const quiet = connections.refuse(20)
      await Promise.all([gone, quiet])
      t.equal(connections.open, 1, 'it is not cut')
      finish()
      t.equal(await answer, 200)
      await closed
      await waitFor(() => connections.open === 0)
    })
  })

for (const kind of ['https', 'h2'] as const)
  t.test(`given HTTP/1 on a TLS server (${kind})`, async t => {
    const { connections, closed, port } = await setup(t, kind, (_request, response) => response.end('done'))
    const agent = new Agent({ keepAlive: true, rejectUnauthorized: false, ALPNProtocols: ['http/1.1'] })
    t.teardown(() => agent.destroy())
    const get = () =>
      new Promise<string | undefined>((resolve, reject) => {
        httpsRequest({ host: '127.0.0.1', port, agent }, response =>
          response.on('end', () => resolve(response.headers.connection)).resume(),
        )
          .on('error', reject)
          .end()
      })
    t.equal(await get(), 'keep-alive')
    t.equal(connections.open, 1)
    const spare = connect(port, '127.0.0.1')
    await new Promise(resolve => spare.once('connect', resolve))
    spare.on('error', () => undefined).resume()

    t.test('when the server refuses, then the next answer is the last, and spares are let go', async t => {
      const quiet = connections.refuse(200)
      t.equal(await get(), 'close')
      await Promise.all([quiet, closed])
      t.equal(connections.open, 0)
    })
  })

t.test(
  'given connections that another socket hands to the server, then they are watched like its own',
  async t => {
    const server = createServer((_request, response) => response.end('done'))
    const connections = new Connections(server)
    const { createServer: createSocket } = await import('node:net')
    const feeder = createSocket(socket => server.emit('connection', socket))
    await new Promise<void>(resolve => feeder.listen(0, '127.0.0.1', resolve))
    t.teardown(() => feeder.close())
    const { port } = feeder.address() as AddressInfo
    const answer = await fetch(`http://127.0.0.1:${port}`)
    await answer.text()
    t.equal(connections.open, 1)
    await connections.refuse(20)
    await waitFor(() => connections.open === 0)
  },
)
