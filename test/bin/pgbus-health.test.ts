import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { init, parse } from 'es-module-lexer'
import t from 'tap'
import type { TestContext } from '../support/database.ts'
import { compiled, spawnNode } from '../support/spawn.ts'

const file = compiled('bin/pgbus-health.ts')

const run = async (t: TestContext, args: string[], env: Record<string, string> = {}) => {
  const { child, exited, output } = spawnNode(t, file, args, { env })
  let stdout = ''
  child.stdout?.on('data', chunk => {
    stdout += chunk
  })
  const printed = [child.stdout, child.stderr].map(
    stream => new Promise(resolve => stream?.once('close', resolve)),
  )
  const { code } = await exited
  await Promise.all(printed)
  return { code, stdout, stderr: output().replace(stdout, '') }
}

const listen = async (t: TestContext, server: Server): Promise<string> => {
  const sockets = new Set<Socket>()
  server.on('connection', socket => {
    sockets.add(socket)
    socket.on('error', () => undefined)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    return new Promise(resolve => server.close(resolve))
  })
  return String((server.address() as AddressInfo).port)
}

const answering = (t: TestContext, code: number) =>
  listen(
    t,
    createHttpServer((_request, response) => response.writeHead(code).end('body')),
  )

t.test('given a host that answers', async t => {
  t.test('when the answer is 200, then the exit code is 0', async t => {
    const requests: string[] = []
    const port = await listen(
      t,
      createHttpServer((request, response) => {
        const { method, url, httpVersion, headers } = request
        requests.push(`${method} ${url} HTTP/${httpVersion} ${headers.host} ${headers.connection}`)
        response.end()
      }),
    )
    t.strictSame(await run(t, ['--port', port]), {
      code: 0,
      stdout: 'pgbus-health: /readyz -> 200\n',
      stderr: '',
    })
    const named = await run(t, ['--path=/livez', '--timeout', '5.5'], { PGBUS_HEALTH_PORT: port })
    t.match(named, { code: 0, stdout: 'pgbus-health: /livez -> 200\n' })
    t.equal((await run(t, ['--port', port], { PGBUS_HEALTH_PORT: '1' })).code, 0, 'the flag wins')
    t.strictSame(requests, [
      'GET /readyz HTTP/1.0 127.0.0.1 close',
      'GET /livez HTTP/1.0 127.0.0.1 close',
      'GET /readyz HTTP/1.0 127.0.0.1 close',
    ])
  })

  t.test('when the answer is anything else, then the exit code is 1', async t => {
    for (const code of [204, 302, 404, 503]) {
      const port = await answering(t, code)
      const result = await run(t, ['--port', port])
      t.strictSame(result, { code: 1, stdout: `pgbus-health: /readyz -> ${code}\n`, stderr: '' })
    }
  })

  t.test('when the status line comes byte by byte, then it is understood', async t => {
    const port = await listen(
      t,
      createServer(async socket => {
        for (const byte of 'HTTP/1.1 200 OK\r\n') {
          socket.write(byte)
          await new Promise(resolve => setImmediate(resolve))
        }
      }),
    )
    t.match(await run(t, ['--port', port, '--timeout', '20']), { code: 0 })
  })
})

t.test('given a host that does not answer as it should', async t => {
  const cases: [name: string, reason: RegExp, serve: (socket: Socket) => void][] = [
    ['says nothing', /no answer within 0\.3 s/, () => undefined],
    ['hangs up', /closed without an answer/, socket => socket.end()],
    ['hangs up in the line', /closed without an answer/, socket => socket.end('HTTP/1.1 200')],
    ['speaks something else', /not HTTP/, socket => socket.write('SSH-2.0-OpenSSH_9.6\r\n')],
    ['speaks without end', /not HTTP/, socket => socket.write('x'.repeat(5_000))],
    ['resets', /ECONNRESET/, socket => socket.once('data', () => socket.resetAndDestroy())],
  ]
  for (const [name, reason, serve] of cases)
    t.test(`when it ${name}, then the exit code is 1, without a stack`, async t => {
      const port = await listen(t, createServer(serve))
      const timeout = name === 'says nothing' ? '0.3' : '20'
      const { code, stdout, stderr } = await run(t, ['--port', port, '--timeout', timeout])
      t.equal(code, 1)
      t.equal(stdout, 'pgbus-health: /readyz -> no response\n')
      t.match(stderr, reason)
      t.notMatch(stderr, /\n\s+at /)
    })

  t.test('when nobody listens, then the exit code is 1', async t => {
    const server = createServer()
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    await new Promise(resolve => server.close(resolve))
    const { code, stderr } = await run(t, ['--port', String(port)])
    t.equal(code, 1)
    t.match(stderr, /ECONNREFUSED/)
  })
})

t.test('given wrong usage', async t => {
  const cases: string[][] = [
    [],
    ['--port', '70000'],
    ['--port', '0'],
    ['--port', '80x'],
    ['--port'],
    ['--port', '--path'],
    ['--port', '80', '--timeout', 'abc'],
    ['--port', '80', '--timeout', '0'],
    ['--port', '80', '--timeout', '-1'],
    ['--port', '80', '--timeout', '1e3'],
    ['--port', '80', '--path', 'readyz'],
    ['--port', '80', '--path', '/a b'],
    ['--port', '80', '--host', 'x'],
    ['80'],
  ]
  for (const args of cases)
    t.test(
      `when called with [${args.join(' ')}], then the exit code is 2 and usage goes to stderr`,
      async t => {
        const { code, stdout, stderr } = await run(t, args)
        t.equal(code, 2)
        t.equal(stdout, '')
        t.match(stderr, /^pgbus-health: .*\nUsage: pgbus-health/)
        t.notMatch(stderr, /\n\s+at /)
      },
    )

  t.test('when asked for help, then it is given', async t => {
    t.match(await run(t, ['--help']), { code: 0, stdout: /^Usage: pgbus-health/ })
  })

  t.test('when the variable is no port, then the exit code is 2', async t => {
    t.equal((await run(t, [], { PGBUS_HEALTH_PORT: 'http' })).code, 2)
  })
})

t.test('given the file of the command', async t => {
  t.test('when its imports are read, then it loads one module of Node', async t => {
    await init
    const [imports] = parse(readFileSync(file, 'utf8'))
    t.strictSame(
      imports.map(({ specifier }) => specifier),
      ['node:net'],
    )
  })

  t.test('when it runs, then the time it takes is printed beside that of Node itself', async t => {
    const elapsed = (args: string[]) => {
      const started = performance.now()
      spawnSync(process.execPath, args, { env: { PATH: process.env.PATH } })
      return `${Math.round(performance.now() - started)} ms`
    }
    // A figure for whoever reads the log. What is promised are the imports above.
    t.comment(`node -e 0: ${elapsed(['-e', '0'])}, pgbus-health --help: ${elapsed([file, '--help'])}`)
  })
})
