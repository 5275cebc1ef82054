import t, { type Test } from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import type { Logger } from '../../../lib/core/log.ts'
import { Primary } from '../../../lib/processes/web/primary.ts'
import { waitFor } from '../../support/wait-for.ts'
import { FakeWorker } from './fake-worker.ts'

/** A primary whose workers are made up; `forks` has them in the order in which they were started. */
function setup(t: Test, workers: number) {
  const forks: { worker: FakeWorker; env: Record<string, string> }[] = []
  const lines: string[] = []
  const write = (first: unknown, second?: unknown) => lines.push(String(second ?? first))
  const log = { debug: write, info: write, warn: write, error: write, child: () => log } as unknown as Logger
  const primary = new Primary({
    config: resolveConfig({ web: { workers, shutdownTimeout: '1h', bootTimeout: '1h' } }, {}),
    log,
    env: { PGBUS_WEB_APP: '/srv/app.js' },
    fork: env => {
      const worker = new FakeWorker()
      forks.push({ worker, env })
      return worker
    },
  })
  t.teardown(() => primary.kill())
  const at = (index: number) => forks[index]!.worker
  return { primary, forks, lines, at }
}

const ready = { t: 'ready', addresses: ['http://127.0.0.1:3000'] }

t.test('given two workers', async t => {
  t.test('when both are ready, then the start resolves to the addresses', async t => {
    const { primary, forks, lines, at } = setup(t, 2)
    const started = primary.start()
    t.same(
      forks.map(({ env }) => env),
      [
        { PGBUS_WEB_APP: '/srv/app.js', PGBUS_WEB_INDEX: '1' },
        { PGBUS_WEB_APP: '/srv/app.js', PGBUS_WEB_INDEX: '2' },
      ],
    )
    at(0).says(ready)
    at(1).says(ready)
    t.same(await started, ['http://127.0.0.1:3000'])
    t.equal(lines.filter(line => line === 'listening on http://127.0.0.1:3000').length, 1)
    t.match(lines.at(-1), /^booted 2 workers in \d+\.\d s$/)
  })

  t.test('when one fails while the other is ready, then it is started again, slower each time', async t => {
    const { primary, forks, lines, at } = setup(t, 2)
    const started = primary.start()
    at(0).says(ready)
    at(1).exits(1)
    await waitFor(() => forks.length === 3)
    at(2).exits(1)
    t.match(
      lines.at(-1),
      /worker 2 .* failed to boot: exited with code 1 before it was ready; next one in 2000 ms/,
    )
    await waitFor(() => forks.length === 4)
    at(3).says(ready)
    await started
    t.pass('booted')
  })

  t.test(
    'when three boots fail and none was ever ready, then the start fails and nothing is left',
    async t => {
      const { primary, forks, at } = setup(t, 2)
      const started = primary.start()
      at(0).says({ t: 'fatal', message: 'no settings' })
      at(0).exits(1)
      at(1).exits(1)
      await waitFor(() => forks.length === 3, { message: 'one more attempt' })
      at(2).says({ t: 'fatal', message: 'no settings' })
      at(2).exits(1)
      await t.rejects(started, { code: 'PGBUS_ERR_BOOT', message: 'no worker could boot: no settings' })
      await new Promise(resolve => setImmediate(resolve))
      t.equal(forks.length, 3, 'three attempts')
    },
  )
})

t.test('given five workers', async t => {
  t.test('when none is ready yet, then three try; when one is, then the others follow', async t => {
    const { primary, forks, at } = setup(t, 5)
    const started = primary.start()
    t.equal(forks.length, 3)
    at(0).exits(0)
    // Longer than the first delay of the policy.
    await new Promise(resolve => setTimeout(resolve, 1_100))
    t.equal(forks.length, 3)
    at(1).says(ready)
    t.same(
      forks.slice(3).map(({ env }) => env.PGBUS_WEB_INDEX),
      ['4', '5', '1'],
    )
    for (const index of [2, 3, 4, 5]) at(index).says(ready)
    await started
  })

  t.test('when the first three fail, then there is no fourth', async t => {
    const { primary, forks, at } = setup(t, 5)
    const started = primary.start()
    for (const index of [0, 1, 2]) at(index).exits(1)
    await t.rejects(started, { code: 'PGBUS_ERR_BOOT' })
    t.equal(forks.length, 3)
  })
})

t.test(
  'given a ready worker that drains by itself, when it is gone, then the next one starts at once',
  async t => {
    const { primary, forks, lines, at } = setup(t, 1)
    const started = primary.start()
    at(0).says(ready)
    await started
    at(0).says({ t: 'draining', connections: 2 })
    at(0).exits(0)
    await waitFor(() => forks.length === 2)
    t.match(lines.at(-1), /ended after .*; next one in 0 ms/)
  },
)

t.test('given running workers', async t => {
  t.test('when they are stopped, then each is told once, and none is replaced', async t => {
    const { primary, forks, at } = setup(t, 2)
    const started = primary.start()
    at(0).says(ready)
    at(1).says(ready)
    await started
    let stopped = false
    const stopping = primary.stop('SIGTERM').then(() => {
      stopped = true
    })
    void primary.stop('again')
    at(0).exits(0)
    await new Promise(resolve => setImmediate(resolve))
    t.notOk(stopped)
    at(1).exits(0)
    await stopping
    t.same(at(0).sent, [{ pgbus: 'web', t: 'stop', reason: 'SIGTERM', deadlineMs: 3_600_000 }])
    t.equal(forks.length, 2)
  })

  t.test('when they are killed while they stop, then kill waits for their end', async t => {
    const { primary, at } = setup(t, 2)
    const started = primary.start()
    at(0).says(ready)
    at(1).says(ready)
    await started
    const stopping = primary.stop('SIGTERM')
    await primary.kill()
    await stopping
    t.same([at(0).killed, at(1).killed], [['SIGKILL'], ['SIGKILL']])
  })

  t.test('when they are stopped before they were ready, then the start is rejected', async t => {
    const { primary, at } = setup(t, 1)
    const started = primary.start()
    const rejected = t.rejects(started, { message: 'stopped while booting: SIGTERM' })
    const stopping = primary.stop('SIGTERM')
    await rejected
    at(0).exits(0)
    await stopping
  })
})

t.test('given a machine that cannot start a process for a moment', async t => {
  t.test('when a worker is to be started, then that counts as a death and is tried again', async t => {
    const lines: string[] = []
    const write = (first: unknown, second?: unknown) => lines.push(String(second ?? first))
    const log = {
      debug: write,
      info: write,
      warn: write,
      error: write,
      child: () => log,
    } as unknown as Logger
    const worker = new FakeWorker()
    let tries = 0
    const primary = new Primary({
      config: resolveConfig({ web: { workers: 1, shutdownTimeout: '1h', bootTimeout: '1h' } }, {}),
      log,
      env: {},
      fork: () => {
        tries += 1
        if (tries === 1) throw Object.assign(new Error('spawn EAGAIN'), { code: 'EAGAIN' })
        return worker
      },
    })
    t.teardown(() => primary.kill())
    const started = primary.start()
    await waitFor(() => tries === 2)
    worker.says(ready)
    await started
    t.match(lines.join('\n'), /could not be started: spawn EAGAIN; next one in 1000 ms/)
  })
})
