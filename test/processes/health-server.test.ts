import { type AddressInfo, connect, createServer } from 'node:net'
import t from 'tap'
import { HealthServer, type Readiness } from '../../lib/processes/health-server.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'

const host = '127.0.0.1'

const open = async (t: TestContext) => {
  const state: Readiness = { status: 'BOOTING', expected: 0, live: 0 }
  const server = new HealthServer({ port: 0, host, readiness: () => state })
  t.teardown(() => server.close())
  const { port } = await server.open()
  return { server, state, port }
}

/** The whole answer to what is written, as text. */
const exchange = (port: number, request: string): Promise<string> =>
  new Promise((resolve, reject) => {
    let text = ''
    const socket = connect({ port, host })
    socket.setEncoding('latin1')
    socket.on('data', chunk => {
      text += chunk
    })
    socket.on('error', error => (text === '' ? reject(error) : resolve(text)))
    socket.on('close', () => resolve(text))
    socket.write(request)
  })

const ask = async (port: number, method: string, path: string) => {
  const text = await exchange(port, `${method} ${path} HTTP/1.1\r\nHost: x\r\n\r\n`)
  const [head = '', body = ''] = text.split('\r\n\r\n')
  const [line = '', ...headers] = head.split('\r\n')
  return { code: Number(line.split(' ')[1]), headers: headers.join('\n'), body }
}

t.test('given a health port', async t => {
  const { state, port } = await open(t)

  t.test('when asked whether it lives, then it does, whatever its status', async t => {
    state.status = 'DEGRADED'
    const { code, headers, body } = await ask(port, 'GET', '/livez')
    t.equal(code, 200)
    t.equal(body, 'ok')
    t.match(headers, /^content-type: text\/plain$/im)
    t.match(headers, /^connection: close$/im)
  })

  t.test('when asked whether it is ready, then only OK is', async t => {
    const cases: [Readiness, number][] = [
      [{ status: 'BOOTING', expected: 0, live: 0 }, 503],
      [{ status: 'OK', expected: 3, live: 3 }, 200],
      [{ status: 'DEGRADED', expected: 3, live: 2 }, 503],
      [{ status: 'DRAINING', expected: 3, live: 3 }, 503],
    ]
    for (const [readiness, expected] of cases) {
      Object.assign(state, readiness)
      const { code, headers, body } = await ask(port, 'GET', '/readyz?verbose=1')
      t.equal(code, expected)
      t.equal(body, JSON.stringify(readiness))
      t.match(headers, /^content-type: application\/json$/im)
      t.match(headers, /^connection: close$/im)
    }
  })

  t.test('when asked in another way, then that is not allowed', async t => {
    for (const path of ['/livez', '/readyz'])
      for (const method of ['HEAD', 'POST', 'OPTIONS']) {
        const { code, headers, body } = await ask(port, method, path)
        t.equal(code, 405, `${method} ${path}`)
        t.match(headers, /^allow: GET$/im)
        t.match(headers, /^connection: close$/im)
        t.equal(body, method === 'HEAD' ? '' : 'pgbus: method not allowed')
      }
  })

  t.test('when asked for something else, then it is not there', async t => {
    for (const path of ['/', '/metrics', '/livez/', '/readyz.json', '//livez']) {
      const { code, headers, body } = await ask(port, 'GET', path)
      t.equal(code, 404, path)
      t.equal(body, 'pgbus: not found')
      t.match(headers, /^connection: close$/im)
    }
  })

  t.test('when a client misbehaves, then only its own connection suffers', async t => {
    t.match(await exchange(port, 'nonsense\r\n\r\n'), /^HTTP\/1\.1 400 /)
    t.match(
      await exchange(port, `GET /livez HTTP/1.1\r\nHost: x\r\nX: ${'y'.repeat(9_000)}\r\n\r\n`),
      /^HTTP\/1\.1 431 /,
    )
    const reset = connect({ port, host })
    reset.on('error', () => undefined)
    await new Promise<void>(resolve => reset.write('GET /livez HT', () => resolve()))
    reset.resetAndDestroy()
    // One that never ends its headers is told so after five seconds.
    const slow = exchange(port, 'GET /livez HTTP/1.1\r\n')
    t.equal((await ask(port, 'GET', '/livez')).code, 200)
    t.match(await slow, /^HTTP\/1\.1 408 /)
  })
})

t.test('given a port that is taken', async t => {
  t.test('when it is opened, then the error names address and key', async t => {
    const other = createServer()
    await new Promise<void>(resolve => other.listen(0, host, resolve))
    t.teardown(() => other.close())
    const { port } = other.address() as AddressInfo
    const server = new HealthServer({ port, host, readiness: () => ({ status: 'OK', expected: 0, live: 0 }) })
    await t.rejects(server.open(), {
      code: 'PGBUS_ERR_BOOT',
      message: `cannot listen on ${host}:${port} (health.port, health.bind): the port is taken by another process (EADDRINUSE)`,
    })
    await server.close()
  })
})

t.test('given a client that keeps its connection', async t => {
  t.test('when the server is closed, then it is cut off and the port is free', async t => {
    const { server, port } = await open(t)
    let closed = false
    const socket = connect({ port, host })
    socket.on('error', () => undefined)
    socket.on('close', () => {
      closed = true
    })
    await new Promise<void>(resolve => socket.write('GET /li', () => resolve()))
    await Promise.all([server.close(), server.close()])
    await waitFor(() => closed)
    await t.rejects(exchange(port, ''), { code: 'ECONNREFUSED' })
  })
})
