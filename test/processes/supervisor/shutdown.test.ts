import t from 'tap'
import { Shutdown, type Stoppable } from '../../../lib/processes/supervisor/shutdown.ts'

class FakeChild implements Stoppable {
  running = true
  readonly told: string[] = []
  stop(signal: 'SIGTERM' | 'SIGQUIT'): void {
    this.told.push(signal)
  }
  kill(): void {
    this.told.push('SIGKILL')
  }
}

/** A clock that only the test moves. */
const setup = (shutdownTimeout = 35_000) => {
  let now = 0
  const timers: { at: number; fn: () => void }[] = []
  const children = [new FakeChild(), new FakeChild()]
  const shutdown = new Shutdown({
    shutdownTimeout,
    children: () => children,
    after: (ms, fn) => {
      const timer = { at: now + ms, fn }
      timers.push(timer)
      return () => {
        if (timers.includes(timer)) timers.splice(timers.indexOf(timer), 1)
      }
    },
  })
  const advance = (ms: number) => {
    now += ms
    for (const timer of timers.filter(({ at }) => at <= now)) {
      timers.splice(timers.indexOf(timer), 1)
      timer.fn()
    }
  }
  return { shutdown, children, timers, advance }
}

t.test('given two children', async t => {
  t.test('when told to stop, then both get TERM once, and the exit code is 0', async t => {
    const { shutdown, children, timers } = setup()
    shutdown.graceful()
    shutdown.graceful()
    t.strictSame(
      children.map(child => child.told),
      [['SIGTERM'], ['SIGTERM']],
    )
    for (const child of children) child.running = false
    shutdown.finished()
    t.equal(timers.length, 0)
    t.equal(shutdown.exitCode, 0)
  })

  t.test('when one ignores TERM, then it is killed at shutdownTimeout, and the exit code is 1', async t => {
    const { shutdown, children, advance } = setup()
    shutdown.graceful()
    children[0]!.running = false
    advance(34_999)
    t.strictSame(children[1]!.told, ['SIGTERM'])
    advance(1)
    t.strictSame(
      children.map(child => child.told),
      [['SIGTERM'], ['SIGTERM', 'SIGKILL']],
    )
    t.equal(shutdown.killed, 1)
    t.equal(shutdown.exitCode, 1)
  })

  t.test('when told a second time, then they get QUIT, and SIGKILL after 2 s', async t => {
    const { shutdown, children, timers, advance } = setup()
    shutdown.graceful()
    advance(10_000)
    shutdown.immediate()
    shutdown.immediate()
    t.equal(timers.length, 1, 'the first deadline is gone')
    children[0]!.running = false
    advance(2_000)
    t.strictSame(
      children.map(child => child.told),
      [
        ['SIGTERM', 'SIGQUIT'],
        ['SIGTERM', 'SIGQUIT', 'SIGKILL'],
      ],
    )
    t.equal(shutdown.exitCode, 1)
  })

  t.test('when told to end at once, then a later graceful request changes nothing', async t => {
    const { shutdown, children } = setup()
    shutdown.immediate()
    shutdown.graceful()
    t.strictSame(children[0]!.told, ['SIGQUIT'])
    t.equal(shutdown.state, 'immediate')
    shutdown.finished()
  })
})
