import t, { type Test } from 'tap'
import { freePort } from '../support/free-port.ts'
import { isFree, listenOn, spawnWeb, type WebHost, type WebOptions } from './web-host.ts'

/** Starts 8 workers that cannot work; checks what all such starts have in common. */
async function fails(t: Test, options: WebOptions & { port?: number; code?: number }): Promise<WebHost> {
  const port = options.port ?? (await freePort())
  const host = spawnWeb(t, { ...options, args: ['-w', '8', '-p', String(port), ...(options.args ?? [])] })
  const { code, signal } = await host.exited
  t.same({ code, signal }, { code: options.code ?? 1, signal: null })
  if (code !== (options.code ?? 1)) t.comment(host.output())
  t.same(host.survivors(), [], 'no orphan')
  t.equal(reasons(host).length, 1, 'one line for a person')
  t.ok((host.output().match(/\) failed to boot: /g) ?? []).length <= 3, 'at most three attempts')
  if (options.port === undefined) t.ok(await isFree(port), 'the port is free')
  return host
}

/** Lines that are no log lines: what stands on the terminal. */
function reasons(host: WebHost): string[] {
  return host
    .output()
    .split('\n')
    .filter(line => line.startsWith('pgbus-web: '))
}

t.test('given a start that cannot succeed', async t => {
  t.test('when the port is in use, then it ends with the address and the reason', async t => {
    const held = await listenOn(0)
    t.teardown(() => held.close())
    const host = await fails(t, { app: 'plain', port: held.port })
    t.match(reasons(host)[0], `cannot listen on http://127.0.0.1:${held.port}: the address is in use`)
    t.notMatch(host.output(), /failed to boot/, 'no worker was started')
  })

  t.test('when the port needs a privilege, then it ends with the address and the reason', async t => {
    const host = await fails(t, { app: 'plain', port: 80, ...unprivileged() })
    t.match(reasons(host)[0], 'cannot listen on http://127.0.0.1:80: permission denied')
  })

  t.test('when the application throws at import, then it ends with the message', async t => {
    const host = await fails(t, { app: 'throws' })
    t.match(
      reasons(host)[0],
      /no worker could boot: app module .*throws\.js failed to load: the settings service is missing/,
    )
  })

  t.test('when the application is never ready, then it ends naming the key', async t => {
    const host = await fails(t, { app: 'never-ready', env: { PGBUS_WEB_BOOT_TIMEOUT: '5s' } })
    t.match(reasons(host)[0], /no worker could boot: not ready within 5s \(web\.bootTimeout\)/)
  })

  t.test('when the application exits with 0 at once, then it does not loop', async t => {
    const host = await fails(t, { app: 'exits' })
    t.match(reasons(host)[0], /exited with code 0 before it was ready/)
  })

  t.test('when the application calls listen itself, then it ends saying so', async t => {
    t.match(reasons(await fails(t, { app: 'listens' }))[0], /already listening: remove its listen\(\) call/)
    t.match(
      reasons(await fails(t, { app: 'listens-late' }))[0],
      /already listening: remove its listen\(\) call/,
    )
  })

  t.test('when the application does not exist, then it ends naming the file', async t => {
    t.match(reasons(await fails(t, { app: 'absent' }))[0], /app module .*absent\.js does not exist/)
  })
})

t.test('given a configuration that is wrong, when it starts, then it ends with 2', async t => {
  const folder = t.testdir({
    'broken.mjs': 'throw new Error("no settings here")',
    'wrong.mjs': 'export default { web: { port: "http", worker: 3 } }',
  })
  t.match(
    reasons(await fails(t, { app: 'plain', code: 2, args: ['-c', `${folder}/broken.mjs`] }))[0],
    /broken\.mjs: no settings here/,
  )
  const host = await fails(t, { app: 'plain', code: 2, args: ['-c', `${folder}/wrong.mjs`] })
  t.match(host.output(), /web\.worker/)
  t.match(
    reasons(await fails(t, { app: 'plain', code: 2, args: ['-c', `${folder}/absent.mjs`] }))[0],
    /absent\.mjs/,
  )
  t.match(reasons(await fails(t, { code: 2 }))[0], /web\.app is required/)
})

t.test(
  'given a command line, when it is wrong, then it ends with 2; asked for help or version, with 0',
  async t => {
    for (const args of [['--port', 'http'], ['-w', 'many'], ['--nonsense'], ['start', 'one', 'two']]) {
      const host = spawnWeb(t, { args })
      t.same(await host.exited, { code: 2, signal: null }, args.join(' '))
      t.match(host.output(), /^pgbus-web: /)
    }
    const help = spawnWeb(t, { args: ['--help'] })
    t.same(await help.exited, { code: 0, signal: null })
    t.match(help.output(), /--workers <n>/)
    const version = spawnWeb(t, { args: ['--version'] })
    t.same(await version.exited, { code: 0, signal: null })
    t.match(version.output(), /^\d+\.\d+\.\d+\n$/)
  },
)

t.test(
  'given the names that platforms use, when both they and ours are set, then flag, ours, theirs is the order',
  async t => {
    const [theirs, ours] = [await freePort(), await freePort()]
    const env = { PORT: String(theirs), HOST: '127.0.0.1', WEB_CONCURRENCY: '0' }
    const first = spawnWeb(t, { app: 'plain', env })
    await first.waitForOutput(new RegExp(`listening on http://127.0.0.1:${theirs}`))
    const second = spawnWeb(t, { app: 'plain', env: { ...env, PGBUS_WEB_PORT: String(ours) } })
    await second.waitForOutput(new RegExp(`listening on http://127.0.0.1:${ours}`))
  },
)

/** As root every port may be had: then the host gives up being root before it starts. */
function unprivileged(): Pick<WebOptions, 'execArgv'> {
  if (process.getuid?.() !== 0) return {}
  const code = 'process.setgroups([]); process.setgid(65534); process.setuid(65534)'
  return { execArgv: ['--import', `data:text/javascript,${encodeURIComponent(code)}`] }
}
