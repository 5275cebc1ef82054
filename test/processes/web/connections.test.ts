import { Agent, createServer, request as httpRequest, type RequestListener } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import t, { type Test } from 'tap'
import { Connections } from '../../../lib/processes/web/connections.ts'
import { waitFor } from '../../support/wait-for.ts'

async function setup(t: Test, handler: RequestListener) {
  const server = createServer(handler)
  const connections = new Connections(server)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const closed = new Promise<void>(resolve => server.once('close', () => resolve()))
  const agent = new Agent({ keepAlive: true })
  t.teardown(() => {
    agent.destroy()
    server.close()
    server.closeAllConnections()
  })
  const { port } = server.address() as AddressInfo
  const get = () =>
    new Promise<{ status: number; connection: string | undefined }>((resolve, reject) => {
      httpRequest({ host: '127.0.0.1', port, agent }, response => {
        response
          .resume()
          .on('end', () => resolve({ status: response.statusCode!, connection: response.headers.connection }))
      })
        .on('error', reject)
        .end()
    })
  return { server, connections, closed, port, get }
}

t.test('given idle keep-alive connections, when the server refuses, then it closes at once', async t => {
  const { connections, closed, get } = await setup(t, (_request, response) => response.end())
  t.equal((await get()).connection, 'keep-alive')
  t.equal(connections.open, 1)
  connections.refuse(20)
  await closed
  await waitFor(() => connections.open === 0)
})

t.test(
  'given a running request, when the server refuses, then it is answered and its connection ends',
  async t => {
    let answer = () => {}
    const asked = new Promise<void>(resolve => {
      answer = resolve
    })
    let respond = () => {}
    const { connections, closed, get } = await setup(t, (_request, response) => {
      respond = () => response.end('done')
      answer()
    })
    const result = get()
    await asked
    connections.refuse(20)
    respond()
    t.same(await result, { status: 200, connection: 'close' })
    await closed
  },
)

t.test(
  'given a response whose head is sent, when the server refuses, then the connection ends when it goes idle',
  async t => {
    let finish = () => {}
    let begun = () => {}
    const started = new Promise<void>(resolve => {
      begun = resolve
    })
    const { connections, closed, get } = await setup(t, (_request, response) => {
      response.write('first')
      finish = () => response.end('last')
      begun()
    })
    const result = get()
    await started
    connections.refuse(20)
    finish()
    t.equal((await result).connection, 'keep-alive')
    await closed
  },
)

t.test(
  'given a connection on which nothing was asked, when the server refuses, then it is let go',
  async t => {
    const { connections, closed, port } = await setup(t, (_request, response) => response.end())
    const spare = connect(port, '127.0.0.1')
    await new Promise(resolve => spare.once('connect', resolve))
    const ended = new Promise(resolve => spare.once('close', resolve))
    spare.on('error', () => undefined).resume()
    connections.refuse(20)
    await Promise.all([closed, ended])
    t.pass('closed')
  },
)

t.test('given an idle keep-alive connection that is used while the server refuses', async t => {
  const { connections, closed, get } = await setup(t, (_request, response) => response.end('done'))
  await get()
  const quiet = connections.refuse(60_000)

  t.test('when its request comes, then it is answered, and that was the last on it', async t => {
    t.equal(connections.open, 1, 'it was not cut')
    t.same(await get(), { status: 200, connection: 'close' })
    await Promise.all([quiet, closed])
    t.equal(connections.open, 0)
  })
})

t.test('given a request that arrives in pieces, when the server refuses, then it is waited for', async t => {
  const { connections, closed, port } = await setup(t, (_request, response) => response.end('done'))
  const client = connect(port, '127.0.0.1')
  let answer = ''
  client.setEncoding('utf8').on('data', chunk => {
    answer += chunk
  })
  const ended = new Promise(resolve => client.once('close', resolve))
  client.write('GET / HTTP/1.1\r\nhost: x\r\n')
  await waitFor(() => connections.open === 1)
  connections.refuse(200)
  // Each piece is a sign of life.
  for (let n = 0; n < 6; n += 1) {
    await new Promise(resolve => setTimeout(resolve, 50))
    client.write(`x-${n}: y\r\n`)
  }
  client.write('\r\n')
  await Promise.all([closed, ended])
  t.match(answer, /^HTTP\/1\.1 200 OK\r\n/)
})
