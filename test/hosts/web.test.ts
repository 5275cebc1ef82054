import { Agent, request } from 'node:http'
import t, { type Test } from 'tap'
import { isAlive } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'
import { booted, fixture, gone, isFree, spawnWeb, type WebOptions } from './web-host.ts'

interface Answer {
  status: number
  body: { index: number; pid: number; draining: boolean }
}

/** One request; a connection of its own unless an agent is given. */
function get(url: string, options: { agent?: Agent; method?: string } = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    request(url, { agent: options.agent ?? false, method: options.method ?? 'GET' }, response => {
      let text = ''
      response
        .setEncoding('utf8')
        .on('data', chunk => {
          text += chunk
        })
        .on('error', reject)
        .on('end', () => resolve({ status: response.statusCode!, body: JSON.parse(text) as Answer['body'] }))
    })
      .on('error', reject)
      .end()
  })
}

/** Two workers that serve `plain`, on a free port. */
async function setup(t: Test, options: WebOptions = {}) {
  const host = spawnWeb(t, { app: 'plain', args: ['-w', '2', '-p', '0'], ...options })
  const url = await booted(host, 2)
  return { host, url, port: Number(new URL(url).port), workers: host.ready() }
}

t.test('given two workers on one port', async t => {
  const { host, url, workers } = await setup(t, { ipc: true })

  t.test('when they are ready, then the parent is told once, with the address', async t => {
    await waitFor(() => host.messages.length > 0)
    t.same(host.messages, [{ pgbus: 'host', t: 'ready', addresses: [url] }])
  })

  t.test('when requests come, then both answer', async t => {
    const seen = new Set<number>()
    await waitFor(async () => seen.add((await get(url)).body.pid).size === 2)
    t.same([...seen].sort(), workers.map(({ pid }) => pid).sort())
  })

  t.test('when signals that a terminal or a person sends arrive, then they keep serving', async t => {
    for (const { pid } of workers)
      for (const signal of ['SIGINT', 'SIGHUP', 'SIGUSR1', 'SIGUSR2'] as const) process.kill(pid, signal)
    t.equal((await get(url)).status, 200)
    t.notMatch(host.output(), /Debugger listening/)
    t.ok((await Promise.all(workers.map(({ pid }) => isAlive(pid)))).every(Boolean))
  })

  t.test('when the parent leaves, then they stop gracefully', async t => {
    host.child.disconnect()
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  })
})

t.test('given idle keep-alive connections and a running request', async t => {
  t.test('when the host gets TERM, then the request is answered and everything ends soon', async t => {
    const { host, url, port, workers } = await setup(t)
    const agent = new Agent({ keepAlive: true })
    t.teardown(() => agent.destroy())
    for (let n = 0; n < 4; n += 1) await get(url, { agent })
    const slow = Promise.all([get(`${url}/slow?ms=1000`, { agent }), get(`${url}/slow?ms=1000`)])
    await new Promise(resolve => setTimeout(resolve, 200))
    host.signal('SIGTERM')
    for (const { status, body } of await slow) {
      t.equal(status, 200)
      t.equal(body.draining, true)
    }
    t.same(await host.exited, { code: 0, signal: null })
    t.match(host.output(), /closed by worker 1/)
    t.match(host.output(), /closed by worker 2/)
    t.notMatch(host.output(), /"lvl":"(WARN|ERROR)"/)
    await gone(workers.map(({ pid }) => pid))
    t.ok(await isFree(port))
  })

  t.test('when the host gets a second signal, then it ends at once with 1', async t => {
    const { host, url, port } = await setup(t)
    const slow = get(`${url}/slow?ms=60000`).catch(error => error as Error)
    await new Promise(resolve => setTimeout(resolve, 200))
    host.signal('SIGINT')
    await host.waitForOutput(/stopping: SIGINT/)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 1, signal: null })
    t.type(await slow, Error)
    t.same(host.survivors(), [])
    t.ok(await isFree(port))
  })

  t.test('when a request outlives the shutdown timeout, then it is cut and the exit is clean', async t => {
    const { host, url } = await setup(t, { env: { PGBUS_WEB_SHUTDOWN_TIMEOUT: '2s' } })
    const slow = get(`${url}/slow?ms=60000`).catch(error => error as Error)
    await new Promise(resolve => setTimeout(resolve, 200))
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.type(await slow, Error)
    t.same(host.survivors(), [])
  })
})

t.test('given a worker that ends', async t => {
  const { host, url, workers } = await setup(t)
  const replaced = (index: number, old: number) =>
    waitFor(() => host.ready().findLast(worker => worker.index === index && worker.pid !== old))

  t.test('when it was killed, then the other one serves and it is replaced', async t => {
    const [{ index, pid }] = workers as [{ index: number; pid: number }]
    process.kill(pid, 'SIGKILL')
    await host.waitForOutput(/was killed by SIGKILL/)
    t.equal((await get(url)).status, 200)
    t.not((await replaced(index, pid)).pid, pid)
  })

  t.test(
    'when it got TERM, then its running request is answered, and it is replaced without delay',
    async t => {
      const { body } = await get(url)
      const slow = get(`${url}/slow?ms=500`)
      const other = get(`${url}/slow?ms=500`)
      await new Promise(resolve => setTimeout(resolve, 100))
      process.kill(body.pid, 'SIGTERM')
      t.equal((await slow).status, 200)
      t.equal((await other).status, 200)
      await replaced(body.index, body.pid)
      t.match(
        host.output(),
        new RegExp(`\\(pid ${body.pid}\\) ended after [^"]*exited with code 0; next one in 0 ms`),
      )
    },
  )

  t.test('when it had a bug in a callback, then it answers what runs, says why and is replaced', async t => {
    const [crashed] = await Promise.allSettled([get(`${url}/crash`, { method: 'POST' })])
    t.equal(crashed.status, 'fulfilled')
    await host.waitForOutput(/ended after [^"]*a bug in a callback/)
    await waitFor(async () => (await get(url)).status === 200)
  })

  t.test('when it ends by process.exit(0), then that counts as a crash', async () => {
    await get(`${url}/exit`, { method: 'POST' }).catch(() => undefined)
    await host.waitForOutput(/ended after [^"]*exited with code 0; next one in [1-9]\d* ms/)
  })
})

t.test(
  'given a primary that is killed, when its workers notice, then nothing is left within 2 s',
  async t => {
    const { host, url, port, workers } = await setup(t)
    const open = new Agent({ keepAlive: true })
    t.teardown(() => open.destroy())
    await get(url, { agent: open })
    host.signal('SIGKILL')
    await host.exited
    await gone(
      workers.map(({ pid }) => pid),
      2_000,
    )
    t.ok(await isFree(port))
  },
)

t.test(
  'given a host that is still booting, when it gets TERM, then it ends with 0 and leaves nothing',
  async t => {
    const host = spawnWeb(t, {
      app: 'never-ready',
      args: ['-w', '2', '-p', '0'],
      env: { PGBUS_LOG_LEVEL: 'debug' },
    })
    await waitFor(() => host.survivors().length === 3)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  },
)

t.test('given constant requests, when workers are replaced one after the other, then none fails', async t => {
  const { host, url } = await setup(t)
  let stop = false
  let answered = 0
  const failures: unknown[] = []
  const client = async () => {
    while (!stop) {
      try {
        const { status } = await get(url)
        if (status === 200) answered += 1
        else failures.push(status)
      } catch (error) {
        failures.push(error)
      }
    }
  }
  const clients = Promise.all([client(), client(), client(), client()])
  for (let n = 0; n < 4; n += 1) {
    const before = host.ready().length
    const victim = host.ready().findLast(({ index }) => index === (n % 2) + 1)!
    process.kill(victim.pid, 'SIGTERM')
    await waitFor(() => host.ready().length > before)
  }
  stop = true
  await clients
  t.same(failures, [])
  t.ok(answered > 100, `${answered} requests`)
})

t.test('given no workers, when the application is served by the launcher itself', async t => {
  const host = spawnWeb(t, { args: ['start', fixture('plain'), '--workers', '0', '--port', '0'], ipc: true })
  const [, url] = await host.waitForOutput(/listening on (http:\/\/[^",\s]+)/)
  await waitFor(() => host.messages.length > 0)
  t.match((await get(url!)).body, { index: 0, pid: host.pid })
  for (const signal of ['SIGUSR1', 'SIGUSR2'] as const) {
    host.signal(signal)
    await host.waitForOutput(new RegExp(`${signal}: without workers .* restart the process`))
  }
  t.match((await get(url!)).body, { index: 0, pid: host.pid })
  const slow = get(`${url}/slow?ms=500`)
  await new Promise(resolve => setTimeout(resolve, 100))
  host.signal('SIGTERM')
  t.equal((await slow).status, 200)
  t.same(await host.exited, { code: 0, signal: null })
  t.match(host.output(), /closed by worker 0/)
})
