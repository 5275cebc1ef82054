import t, { type Test } from 'tap'
import type { PgbusConfig } from '../../../lib/config/options.ts'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import type { Logger } from '../../../lib/core/log.ts'
import { Primary } from '../../../lib/processes/web/primary.ts'
import type { Release } from '../../../lib/processes/web/release.ts'
import { waitFor } from '../../support/wait-for.ts'
import { FakeWorker } from './fake-worker.ts'

function release(phase: number, web: PgbusConfig['web'] = {}): Release {
  const config = resolveConfig({ web: { shutdownTimeout: '1h', bootTimeout: '1h', ...web } }, {})
  return { phase, config, entry: '/srv/entry.js', directory: '/srv', env: {} }
}

/** A primary whose workers are made up; `forks` has them in the order in which they were started. */
function setup(t: Test, workers: number, web: Partial<NonNullable<PgbusConfig['web']>> = {}) {
  const forks: { worker: FakeWorker; index: number; phase: number }[] = []
  const lines: string[] = []
  const write = (first: unknown, second?: unknown) => lines.push(String(second ?? first))
  const log = { debug: write, info: write, warn: write, error: write, child: () => log } as unknown as Logger
  const primary = new Primary({
    release: release(0, { workers, ...web }),
    log,
    fork: ({ phase }, index) => {
      const worker = new FakeWorker()
      forks.push({ worker, index, phase })
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
    t.match(forks, [
      { index: 1, phase: 0 },
      { index: 2, phase: 0 },
    ])
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
      forks.slice(3).map(({ index }) => index),
      [4, 5, 1],
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
    t.same(at(0).sent, [
      { pgbus: 'web', t: 'stop', reason: 'SIGTERM', deadlineMs: 3_600_000, handover: false },
    ])
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
      release: release(0, { workers: 1 }),
      log,
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

/** Lets what is already resolved go on. */
const turn = () => new Promise(resolve => setImmediate(resolve))

/** A primary whose workers of phase 0 are ready, and a restart of it. */
async function serving(t: Test, workers: number, surge: number | 'all' = 1) {
  const made = setup(t, workers)
  const started = made.primary.start()
  for (let n = 0; n < workers; n += 1) made.at(n).says(ready)
  await started
  const restart = (phase = 1) => made.primary.replaceAll(release(phase, { workers, restart: { surge } }))
  const told = (index: number) => made.at(index).sent.length > 0
  return { ...made, restart, told }
}

t.test('given a restart of two workers', async t => {
  t.test('when each new one is ready, then one after the other takes over', async t => {
    const { forks, at, restart, told } = await serving(t, 2)
    const done = restart()
    t.match(forks.slice(2), [{ index: 1, phase: 1 }])
    await turn()
    t.notOk(told(0), 'the old one serves until the new one is ready')
    at(2).says(ready)
    await turn()
    t.match(at(0).sent, [{ t: 'stop', reason: 'restart', handover: true }])
    t.equal(forks.length, 3, 'the second waits until the first old one is gone')
    at(0).exits(0)
    await turn()
    t.match(forks.slice(3), [{ index: 2, phase: 1 }])
    at(3).says(ready)
    await turn()
    at(1).exits(0)
    await done
    t.equal(forks.length, 4)
  })

  t.test('when a new one dies, then the old ones go on, and the error says why', async t => {
    const { forks, at, restart, told } = await serving(t, 2)
    const rejected = t.rejects(restart(), {
      code: 'PGBUS_ERR_RESTART',
      message: 'worker 1 of phase 1 did not become ready: no settings',
    })
    at(2).says({ t: 'fatal', message: 'no settings' })
    at(2).exits(1)
    await rejected
    t.equal(forks.length, 3)
    t.notOk(told(0) || told(1))
  })

  t.test('when the second new one dies, then one of each goes on; each is replaced by its kind', async t => {
    const { forks, at, restart } = await serving(t, 2)
    const rejected = t.rejects(restart(), { message: /worker 2 of phase 1 did not become ready/ })
    at(2).says(ready)
    await turn()
    at(0).exits(0)
    await turn()
    at(3).exits(1)
    await rejected
    at(2).says({ t: 'draining', connections: 0 })
    at(2).exits(0)
    at(1).says({ t: 'draining', connections: 0 })
    at(1).exits(0)
    await waitFor(() => forks.length === 6)
    t.match(forks.slice(4), [
      { index: 1, phase: 1 },
      { index: 2, phase: 0 },
    ])
  })

  t.test(
    'when another old one dies, then it is replaced by its like until the new release has worked',
    async t => {
      const { forks, at, restart } = await serving(t, 3)
      const done = restart()
      at(2).says({ t: 'draining', connections: 0 })
      at(2).exits(0)
      await waitFor(() => forks.length === 5)
      t.match(forks[4], { index: 3, phase: 0 })
      at(3).says(ready)
      await turn()
      at(1).says({ t: 'draining', connections: 0 })
      at(1).exits(0)
      await waitFor(() => forks.length === 6)
      t.match(forks[5], { index: 2, phase: 1 })
      at(0).exits(0)
      await turn()
      t.match(forks[6], { index: 2, phase: 1 }, 'its turn came: it is replaced like the others')
      done.catch(() => undefined)
    },
  )

  t.test('when the old one dies while the new one boots, then the new one takes its place', async t => {
    const { forks, lines, at, restart } = await serving(t, 1)
    const done = restart()
    at(0).exits(null, 'SIGSEGV')
    await turn()
    t.equal(forks.length, 2)
    t.match(lines.at(-1), /is gone: was killed by SIGSEGV/)
    at(1).says(ready)
    await done
    t.equal(forks.length, 2)
  })

  t.test('when both old and new one die, then one of the old release follows', async t => {
    const { forks, at, restart } = await serving(t, 1)
    const rejected = t.rejects(restart())
    at(0).exits(null, 'SIGSEGV')
    at(1).exits(1)
    await rejected
    await waitFor(() => forks.length === 3)
    t.match(forks[2], { index: 1, phase: 0 })
  })

  t.test('when the host is stopped, then new and old ones are told, and none follows', async t => {
    const { primary, forks, at, restart, told } = await serving(t, 2)
    const rejected = t.rejects(restart(), { message: 'pgbus-web is stopping' })
    const stopping = primary.stop('SIGTERM')
    await rejected
    t.ok(told(0) && told(1) && told(2))
    for (const index of [0, 1, 2]) at(index).exits(0)
    await stopping
    t.equal(forks.length, 3)
  })
})

t.test('given a restart of two workers with a surge of all', async t => {
  t.test('when all new ones are ready, and not before, then all old ones go', async t => {
    const { forks, at, restart, told } = await serving(t, 2, 'all')
    const done = restart()
    t.equal(forks.length, 4)
    at(3).says(ready)
    await turn()
    t.notOk(told(0) || told(1))
    at(2).says(ready)
    await turn()
    t.ok(told(0) && told(1))
    at(0).exits(0)
    at(1).exits(0)
    await done
  })

  t.test('when one new one dies after it was ready, then the others go and the old ones stay', async t => {
    const { at, restart, told } = await serving(t, 2, 'all')
    const rejected = t.rejects(restart(), { message: /worker 2: its replacement ended/ })
    at(3).says(ready)
    await turn()
    at(3).exits(1)
    at(2).says(ready)
    await rejected
    t.ok(told(2))
    t.notOk(told(0) || told(1))
  })
})

t.test('given a restart with a surge of two, when one new one dies, then the other is given up', async t => {
  const { forks, at, restart, told } = await serving(t, 3, 2)
  const rejected = t.rejects(restart())
  t.equal(forks.length, 5)
  at(3).exits(1)
  await rejected
  t.ok(told(4))
  t.notOk(told(0) || told(1) || told(2))
  t.equal(forks.length, 5)
})

t.test('given a restart without surge', async t => {
  t.test('when an old one is gone, and not before, then its replacement is started', async t => {
    const { forks, at, restart, told } = await serving(t, 1, 0)
    const done = restart()
    t.ok(told(0))
    t.equal(forks.length, 1)
    at(0).exits(0)
    await turn()
    t.match(forks[1], { index: 1, phase: 1 })
    at(1).says(ready)
    await done
  })

  t.test('when the new one dies, then one of the old release follows', async t => {
    const { forks, at, restart } = await serving(t, 1, 0)
    const rejected = t.rejects(restart())
    at(0).exits(0)
    await turn()
    at(1).exits(1)
    await rejected
    await waitFor(() => forks.length === 3)
    t.match(forks[2], { index: 1, phase: 0 })
  })
})

t.test('given two workers that have done enough', async t => {
  const enough = { t: 'checkin', stats: { rss: 0, requests: 11 } }
  const recycling = async (t: Test) => {
    const made = setup(t, 2, { recycle: { maxRequests: 10 } })
    const started = made.primary.start()
    made.at(0).says(ready)
    made.at(1).says(ready)
    await started
    return made
  }

  t.test('when both check in, then one after the other is replaced, the new one first', async t => {
    const { forks, at } = await recycling(t)
    at(0).says(enough)
    at(1).says(enough)
    await turn()
    t.match(forks.slice(2), [{ index: 1, phase: 0 }])
    t.same(at(0).sent, [])
    at(2).says(ready)
    await turn()
    t.match(at(0).sent, [{ t: 'stop', reason: 'recycle', handover: true }])
    t.equal(forks.length, 3)
    at(0).exits(0)
    await turn()
    t.match(forks.slice(3), [{ index: 2, phase: 0 }])
  })

  t.test('when a restart goes on, then it comes first, and nobody is replaced twice', async t => {
    const { primary, forks, at } = await recycling(t)
    const done = primary.replaceAll(release(1, { workers: 2, recycle: { maxRequests: 10 } }))
    await turn()
    at(1).says(enough)
    at(2).says(ready)
    await turn()
    at(0).exits(0)
    await turn()
    at(3).says(ready)
    await turn()
    at(1).exits(0)
    await done
    await turn()
    t.match(forks.slice(2), [
      { index: 1, phase: 1 },
      { index: 2, phase: 1 },
    ])
    t.equal(forks.length, 4)
  })

  t.test('when the new one dies, then the old one goes on, and so does recycling', async t => {
    const { forks, lines, at } = await recycling(t)
    at(0).says(enough)
    await turn()
    at(1).says(enough)
    at(2).exits(1)
    await turn()
    t.same(at(0).sent, [])
    t.match(lines.join('\n'), /worker 1 \(pid \d+\) goes on: worker 1 of phase 0 did not become ready/)
    await turn()
    t.match(forks.slice(3), [{ index: 2 }])
  })
})
