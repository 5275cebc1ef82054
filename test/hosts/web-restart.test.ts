import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { TestRelease } from '../fixtures/web/switchable.ts'
import { freePort } from '../support/free-port.ts'
import { waitFor } from '../support/wait-for.ts'
import { booted, isFree, spawnWeb, type WebHost, type WebOptions } from './web-host.ts'

interface Answer {
  index: number
  phase: number
  pid: number
  release: string
  directory: string
  surge: number | 'all'
}

const ask = async (url: string) =>
  (await (await fetch(url, { headers: { connection: 'close' } })).json()) as Answer

function folderOf(t: Test): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-release-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** A host of two workers whose application does what `release` says, from its next start on. */
async function setup(t: Test, options: WebOptions & { first?: TestRelease } = {}) {
  const folder = folderOf(t)
  const file = join(folder, 'release.json')
  const release = (next: TestRelease) => writeFileSync(file, JSON.stringify(next))
  release(options.first ?? { name: 'one' })
  const host = spawnWeb(t, {
    app: 'switchable',
    args: ['-w', '2', '-p', '0'],
    ...options,
    env: { TEST_RELEASE: file, ...options.env },
  })
  const url = await booted(host, 2)
  const end = async () => {
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  }
  return { folder, host, url, release, end }
}

/** Who answers: by worker, in its order. */
async function answers(url: string): Promise<Answer[]> {
  const seen = new Map<number, Answer>()
  await waitFor(async () => {
    const answer = await ask(url)
    seen.set(answer.index, answer)
    return seen.size === 2
  })
  return [...seen.values()].sort((a, b) => a.index - b.index)
}

/** Sends a signal, and waits for what must be written then. */
async function expect(host: WebHost, signal: NodeJS.Signals, pattern: RegExp): Promise<void> {
  const before = host.output().length
  host.signal(signal)
  await waitFor(() => pattern.test(host.output().slice(before)), {
    timeout: 60_000,
    message: `${pattern} after ${signal}\n${host.output().slice(before)}`,
  })
}

t.test('given a host of two workers', async t => {
  const { host, url, release, end } = await setup(t, { env: { PGBUS_WEB_BOOT_TIMEOUT: '30s' } })
  const first = await answers(url)
  t.match(first, [
    { index: 1, phase: 0, release: 'one' },
    { index: 2, phase: 0, release: 'one' },
  ])

  t.test('when the next release throws at import, then the old one serves, and the log says why', async t => {
    release({ name: 'two', fault: 'throws' })
    await expect(
      host,
      'SIGUSR1',
      /restart given up: worker 1 of phase 1 did not become ready: release two has no settings/,
    )
    t.same(await answers(url), first)
  })

  t.test('when the next release exits, then the old one serves', async t => {
    release({ name: 'two', fault: 'exits' })
    await expect(host, 'SIGUSR1', /restart given up: worker 1 of phase 2 .*exited with code 3/)
    t.same(await answers(url), first)
  })

  t.test('when the next release is good, then both workers are of it', async t => {
    release({ name: 'three' })
    await expect(host, 'SIGUSR1', /restart finished in/)
    const second = await answers(url)
    t.match(second, [
      { index: 1, phase: 3, release: 'three' },
      { index: 2, phase: 3, release: 'three' },
    ])
    t.notOk(second.some(({ pid }) => first.some(old => old.pid === pid)))
  })

  t.test('when only the second worker of a release fails, then the first one stays', async t => {
    release({ name: 'four', fault: 'exits', index: 2 })
    await expect(host, 'SIGUSR1', /restart given up: worker 2 of phase 4/)
    t.match(await answers(url), [
      { index: 1, phase: 4, release: 'four' },
      { index: 2, phase: 3, release: 'three' },
    ])
    await end()
  })
})

t.test('given a release that is never ready, when its time is over, then the old one serves', async t => {
  const { host, url, release, end } = await setup(t, { env: { PGBUS_WEB_BOOT_TIMEOUT: '8s' } })
  const first = await answers(url)
  release({ name: 'two', fault: 'hangs' })
  await expect(host, 'SIGUSR1', /restart given up: .*not ready within 8s \(web\.bootTimeout\)/)
  t.same(await answers(url), first)
  await end()
})

t.test('given a restart that goes on', async t => {
  // A port that is found anew would change when no worker is left for a moment.
  const args = ['-w', '2', '-p', String(await freePort())]
  const { host, url, folder, release } = await setup(t, { args })
  const [one, two] = (await answers(url)) as [Answer, Answer]
  const gate = join(folder, 'gate')
  release({ name: 'two', gate })
  host.signal('SIGUSR1')
  // The host, its two workers and the first new one.
  await waitFor(() => host.survivors().length === 4)

  t.test('when more signals come, then they become one more restart', async t => {
    host.signal('SIGUSR1')
    await host.waitForOutput(/one more restart follows this one/)
    await expect(host, 'SIGUSR1', /one more restart follows this one/)
    t.same((await ask(url)).phase, 0)
  })

  t.test('when another old worker is killed, then one of the old phase takes its place', async () => {
    process.kill(two.pid, 'SIGKILL')
    await host.waitForOutput(/worker 2 \(pid \d+\) ended after/)
    // The gate holds that one too.
    await waitFor(() => host.survivors().length === 4)
  })

  t.test('when the old worker of the same place is killed, then the new one takes over', async t => {
    process.kill(one.pid, 'SIGKILL')
    await host.waitForOutput(/worker 1 \(pid \d+\) is gone: was killed by SIGKILL/)
    writeFileSync(gate, '')
    await waitFor(() => (host.output().match(/restart finished in/g) ?? []).length === 2, { timeout: 60_000 })
    t.match(await answers(url), [
      { index: 1, phase: 2 },
      { index: 2, phase: 2 },
    ])
    t.equal((await waitFor(() => host.survivors().length === 3)) && host.survivors().length, 3)
  })

  t.test('when the host gets TERM in the middle, then all of them end', async t => {
    rmSync(gate)
    const { length } = host.output()
    host.signal('SIGUSR1')
    await waitFor(() => host.survivors().length === 4)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
    t.notMatch(host.output().slice(length), /"lvl":"ERROR"/)
    t.ok(await isFree(Number(new URL(url).port)))
  })
})

t.test('given a host that boots, when it gets USR1, then it restarts once it has booted', async t => {
  const folder = folderOf(t)
  const file = join(folder, 'release.json')
  writeFileSync(file, JSON.stringify({ name: 'one' }))
  const host = spawnWeb(t, { app: 'switchable', args: ['-w', '1', '-p', '0'], env: { TEST_RELEASE: file } })
  await waitFor(() => host.survivors().length === 2)
  host.signal('SIGUSR1')
  await booted(host, 1)
  await host.waitForOutput(/restart finished in/, 60_000)
  t.match(host.output(), /the restart follows the boot/)
  t.notMatch(host.output(), /Debugger listening/)
})

t.test('given a directory that is a symbolic link and a configuration in it', async t => {
  const folder = folderOf(t)
  const deploy = (name: string, config: string) => {
    const release = join(folder, name)
    mkdirSync(release)
    writeFileSync(join(release, 'pgbus.config.mjs'), `export default ${config}`)
    writeFileSync(
      join(release, 'app.mjs'),
      `export const createApp = ({ worker, config }) => ({ handler: (_, response) => response.end(JSON.stringify({
         ...worker, release: '${name}', directory: process.cwd(), surge: config.web.restart.surge })) })`,
    )
    symlinkSync(release, join(folder, 'next'))
    renameSync(join(folder, 'next'), join(folder, 'current'))
  }
  deploy('one', "{ web: { app: './app.mjs' } }")
  const host = spawnWeb(t, { args: ['-w', '2', '-p', '0', '--directory', join(folder, 'current')] })
  const url = await booted(host, 2)
  t.match(await ask(url), { release: 'one', directory: join(folder, 'one'), surge: 1 })

  t.test('when the link moves and USR1 comes, then workers run in the new directory', async t => {
    deploy('two', "{ web: { app: './app.mjs', restart: { surge: 'all' } } }")
    await expect(host, 'SIGUSR1', /restart finished in/)
    t.match(await ask(url), { release: 'two', directory: join(folder, 'two'), phase: 1 })
  })

  t.test('when the configuration is wrong and USR2 comes, then all that is wrong is named', async t => {
    deploy('three', "{ web: { app: './app.mjs', restart: { surge: -1 }, bootTimeout: 'soon' } }")
    await expect(host, 'SIGUSR2', /restart given up: Invalid pgbus configuration/)
    t.match(host.output(), /web\.restart\.surge/)
    t.match(host.output(), /web\.bootTimeout/)
    t.match(await ask(url), { release: 'two' })
  })

  t.test('when the configuration is right and USR2 comes, then it counts', async t => {
    deploy('four', "{ web: { app: './app.mjs', restart: { surge: 2 }, hubSocket: '/tmp/other.sock' } }")
    await expect(host, 'SIGUSR2', /restart finished in/)
    t.match(await ask(url), { release: 'four', surge: 2, phase: 2 })
    t.match(host.output(), /a change of web\.hubSocket takes effect when the process is started again/)
    t.notMatch(host.output(), /a change of web\.(host|workers)/)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  })
})
