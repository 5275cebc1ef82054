import { EventEmitter } from 'node:events'
import t from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import type { ChildToSupervisor, SupervisorToChild } from '../../../lib/processes/messages.ts'
import {
  type ChildExit,
  ChildHandle,
  type ChildLike,
} from '../../../lib/processes/supervisor/child-handle.ts'
import { quiet } from '../../support/quiet-log.ts'
import { waitFor } from '../../support/wait-for.ts'

class FakeChild extends EventEmitter implements ChildLike {
  readonly pid: number | undefined
  connected = true
  readonly sent: SupervisorToChild['t'][] = []
  readonly signals: string[] = []

  constructor(pid?: number) {
    super()
    this.pid = pid
  }

  send(message: SupervisorToChild, callback: (error: Error | null) => void): boolean {
    this.sent.push(message.t)
    callback(null)
    return true
  }

  kill(signal: NodeJS.Signals): boolean {
    this.signals.push(signal)
    return true
  }

  say(message: ChildToSupervisor): void {
    this.emit('message', message)
  }

  disconnects(): void {
    this.connected = false
    this.emit('disconnect')
  }
}

const entry = resolveConfig({ workers: 'default: 1' }, {}).workers[0]!

const setup = (options: { pid?: number | undefined; bootTimeout?: number } = { pid: 4711 }) => {
  const child = new FakeChild(options.pid)
  const exits: ChildExit[] = []
  const events: string[] = []
  const handle = new ChildHandle({
    slot: 'worker:0.0',
    child,
    boot: { t: 'boot', slot: 'worker:0.0', spec: { role: 'worker', entry }, config: {}, configFile: null },
    log: quiet,
    bootTimeout: options.bootTimeout,
    onReady: () => events.push('ready'),
    onListen: ({ tables }) => events.push(`listen ${tables.join(',')}`),
    onRecycle: reason => events.push(`recycle ${reason}`),
    onExit: exit => exits.push(exit),
  })
  return { child, handle, exits, events }
}

t.test('given a child that boots', async t => {
  t.test('when it tells its steps, then they are known', async t => {
    const { child, handle, events } = setup()
    t.strictSame(child.sent, ['boot'])
    t.equal(handle.state, 'booting')
    child.say({ t: 'loaded' })
    t.equal(handle.state, 'loaded')
    child.say({ t: 'listen', tables: ['pgbus_default'] })
    child.say({ t: 'ready' })
    t.equal(handle.ready, true)
    t.strictSame(events, ['listen pgbus_default', 'ready'])
    child.disconnects()
    child.emit('exit', 0, null)
  })

  t.test('when its modules never load, then it is killed, and the reason says so', async t => {
    const { child, exits } = setup({ pid: 4711, bootTimeout: 20 })
    await waitFor(() => child.signals.length > 0)
    t.strictSame(child.signals, ['SIGKILL'])
    child.disconnects()
    child.emit('exit', null, 'SIGKILL')
    t.match(exits, [{ signal: 'SIGKILL', reason: 'its modules were not imported within 0.02 s' }])
  })

  t.test('when it cannot be started at all, then that is an exit', async t => {
    const { child, exits, handle } = setup({})
    child.emit('error', Object.assign(new Error('spawn EAGAIN'), { code: 'EAGAIN' }))
    t.match(exits, [{ code: null, signal: null, reason: 'spawn EAGAIN', expected: false }])
    handle.kill()
    t.strictSame(child.signals, [], 'there is nothing to kill')
  })
})

t.test('given a child that ends', async t => {
  t.test('when its process ends before its last words are read, then they still count', async t => {
    const { child, handle, exits } = setup()
    child.say({ t: 'held', claimed: [], running: [['pgbus_default', 1, 1]], done: [] })
    child.emit('exit', null, 'SIGKILL')
    t.strictSame(exits, [], 'the channel is still open')
    child.say({ t: 'held', claimed: [['pgbus_default', 2, 1]], running: [], done: [['pgbus_default', 1, 1]] })
    child.disconnects()
    t.match(exits, [{ signal: 'SIGKILL', reason: 'was killed by SIGKILL', expected: false }])
    t.strictSame([...handle.held.waiting], [['pgbus_default', [{ msgId: 2, readCount: 1 }]]])
  })

  t.test('when somebody holds its channel open, then the exit is seen all the same', async t => {
    const { child, exits } = setup()
    child.emit('exit', 1, null)
    await waitFor(() => exits.length === 1)
    child.disconnects()
    t.equal(exits.length, 1)
  })

  t.test('when it said why, then that is the reason', async t => {
    const { child, exits } = setup()
    child.say({ t: 'fatal', message: 'cannot import jobs.js: no', stack: null })
    child.disconnects()
    child.emit('exit', 1, null)
    t.match(exits, [{ code: 1, reason: 'cannot import jobs.js: no' }])
  })

  t.test('when it was told to, then the exit is expected, and it is not signalled afterwards', async t => {
    const { child, handle, exits } = setup()
    handle.stop('SIGTERM')
    child.disconnects()
    child.emit('exit', 0, null)
    handle.kill()
    t.strictSame(child.signals, ['SIGTERM'])
    t.match(exits, [{ code: 0, expected: true }])
    handle.send({ t: 'wake' }, () => t.pass('a message to nobody counts as sent'))
  })
})
