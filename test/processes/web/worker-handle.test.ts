import t, { type Test } from 'tap'
import type { Logger } from '../../../lib/core/log.ts'
import { type WorkerExit, WorkerHandle } from '../../../lib/processes/web/worker-handle.ts'
import { waitFor } from '../../support/wait-for.ts'
import { FakeWorker } from './fake-worker.ts'

function setup(_t: Test, options: { bootTimeout?: number; drainTimeout?: number } = {}) {
  const worker = new FakeWorker()
  const clock = { now: 1_000 }
  const exits: WorkerExit[] = []
  const ready: string[][] = []
  const lines: string[] = []
  const write = (first: unknown, second?: unknown) => lines.push(String(second ?? first))
  const log = { debug: write, info: write, warn: write, error: write, child: () => log } as unknown as Logger
  const handle = new WorkerHandle({
    index: 2,
    phase: 0,
    worker,
    bootTimeout: 60_000,
    workerTimeout: 60_000,
    drainTimeout: 60_000,
    now: () => clock.now,
    ...options,
    log,
    onCheckIn: () => undefined,
    onReady: ({ addresses }) => ready.push([...addresses]),
    onExit: (_handle, exit) => exits.push(exit),
  })
  return { worker, handle, exits, ready, lines, clock }
}

t.test('given a booting worker', async t => {
  t.test(
    'when it says ready, then it is, with its addresses; messages of the app are left alone',
    async t => {
      const { worker, handle, ready, exits } = setup(t)
      t.equal(handle.state, 'booting')
      worker.emit('message', { hello: 'from the app' })
      worker.emit('message', null)
      worker.says({ t: 'booting' })
      worker.says({ t: 'ready', addresses: ['http://127.0.0.1:1'] })
      worker.says({ t: 'ready', addresses: ['http://127.0.0.1:2'] })
      t.equal(handle.state, 'ready')
      t.same(ready, [['http://127.0.0.1:1']])
      worker.exits(0)
      t.match(exits, [{ code: 0, booted: true, expected: false, reason: 'exited with code 0' }])
    },
  )

  t.test('when it is stopped before it can listen, then it is told again once it can', async t => {
    const { worker, handle, exits } = setup(t)
    handle.stop('SIGTERM', 5_000)
    worker.says({ t: 'booting' })
    t.equal(worker.sent.length, 2)
    worker.exits(0)
    t.match(exits, [{ expected: true, booted: false }])
  })

  t.test('when it is not ready in time, then it is killed and the reason names the key', async t => {
    const { worker, handle, exits, lines, clock } = setup(t)
    clock.now += 60_000
    handle.killIfSilent()
    t.same(worker.killed, [])
    clock.now += 1
    handle.killIfSilent()
    t.same(worker.killed, ['SIGKILL'])
    await waitFor(() => exits.length > 0)
    t.match(exits, [{ booted: false, expected: false, reason: 'not ready within 60s (web.bootTimeout)' }])
    t.same(lines, [`worker 2 (pid ${worker.process.pid}) failed to boot within 60s`])
  })

  t.test('when it says why it fails, then that is the reason', async t => {
    const { worker, exits } = setup(t)
    worker.says({ t: 'fatal', message: 'no such module' })
    worker.says({ t: 'draining', connections: 0 })
    worker.exits(1)
    t.match(exits, [{ code: 1, booted: false, expected: false, reason: 'no such module' }])
  })

  t.test('when it exits with 0, then the reason says that this is not success', async t => {
    const { worker, exits } = setup(t)
    worker.exits(0)
    worker.exits(0)
    t.match(exits, [{ code: 0, booted: false, expected: false, reason: /must not end the process/ }])
    t.equal(exits.length, 1)
  })
})

t.test('given a ready worker', async t => {
  t.test('when it checks in, then it lives; when it no longer does, then it is killed', async t => {
    const { worker, handle, exits, lines, clock } = setup(t)
    worker.says({ t: 'ready', addresses: [] })
    t.equal(handle.stats, undefined)
    for (let n = 0; n < 3; n += 1) {
      clock.now += 60_000
      handle.killIfSilent()
      worker.says({ t: 'checkin', stats: { rss: n } })
    }
    t.same(worker.killed, [])
    t.match(handle.stats, { rss: 2 })
    clock.now += 60_001
    t.equal(handle.silentMs, 60_001)
    handle.killIfSilent()
    t.same(worker.killed, ['SIGKILL'])
    await waitFor(() => exits.length > 0)
    t.match(exits, [{ booted: true, expected: false, reason: 'no check-in within 60s (web.workerTimeout)' }])
    t.same(lines, [`worker 2 (pid ${worker.process.pid}) failed to check in within 60s`])
  })

  t.test('when it drains, then it has the time of its drain, whatever it says', async t => {
    const { worker, handle, clock } = setup(t)
    worker.says({ t: 'ready', addresses: [] })
    handle.stop('SIGTERM', 60_000)
    clock.now += 600_000
    handle.killIfSilent()
    t.same(worker.killed, [])
    worker.exits(0)
  })

  t.test('when it is stopped, then it is told once and its exit is expected', async t => {
    const { worker, handle, exits } = setup(t)
    worker.says({ t: 'ready', addresses: [] })
    handle.stop('SIGTERM', 5_000)
    t.same(worker.sent, [{ pgbus: 'web', t: 'stop', reason: 'SIGTERM', deadlineMs: 5_000, handover: false }])
    worker.says({ t: 'draining', connections: 3 })
    t.equal(handle.state, 'draining')
    worker.exits(0)
    t.match(exits, [{ expected: true, booted: true }])
    handle.stop('again', 5_000)
    handle.kill()
    t.equal(worker.sent.length, 1)
    t.same(worker.killed, [])
  })

  t.test('when it does not stop in time, then it is killed', async t => {
    const { worker, handle, exits } = setup(t)
    worker.says({ t: 'ready', addresses: [] })
    handle.stop('SIGTERM', 20)
    await waitFor(() => worker.killed.length > 0)
    await waitFor(() => exits.length > 0)
    t.same(worker.killed, ['SIGKILL'])
  })

  t.test('when it drains by itself and hangs, then it is killed after the drain timeout', async t => {
    const { worker, exits } = setup(t, { drainTimeout: 20 })
    worker.says({ t: 'ready', addresses: [] })
    worker.says({ t: 'draining', connections: 1 })
    await waitFor(() => worker.killed.length > 0)
    await waitFor(() => exits.length > 0)
    t.match(exits, [{ expected: true, signal: 'SIGKILL' }])
  })

  t.test('when its channel is closed already, then stop sends nothing and still has a deadline', async t => {
    const { worker, handle, exits } = setup(t)
    worker.connected = false
    handle.stop('SIGTERM', 20)
    t.same(worker.sent, [])
    await waitFor(() => worker.killed.length > 0)
    await waitFor(() => exits.length > 0)
    t.equal(handle.state, 'exited')
  })
})
