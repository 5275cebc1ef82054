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
  connections.refuse()
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
    connections.refuse()
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
    connections.refuse()
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
    connections.refuse()
    await Promise.all([closed, ended])
    t.pass('closed')
  },
)
