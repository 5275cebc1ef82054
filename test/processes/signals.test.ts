import t from 'tap'
import { listenForStop } from '../../lib/processes/signals.ts'
import type { TestContext } from '../support/database.ts'

const setup = (t: TestContext) => {
  const seen: string[] = []
  let clock = 0
  const release = listenForStop(
    {
      graceful: reason => seen.push(`graceful ${reason}`),
      immediate: reason => seen.push(`immediate ${reason}`),
      crashed: error => seen.push(`crashed ${String(error)}`),
    },
    () => clock,
  )
  t.teardown(release)
  return {
    seen,
    release,
    emit: (signal: NodeJS.Signals, at: number) => {
      clock = at
      process.emit(signal, signal)
    },
  }
}

t.test('given a process that listens for stop requests', async t => {
  t.test('when the first signal comes, then it stops gracefully', async t => {
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
      const { seen, emit, release } = setup(t)
      emit(signal, 0)
      t.strictSame(seen, [`graceful ${signal}`])
      release()
    }
  })

  t.test('when a second TERM or INT comes, then it stops at once', async t => {
    const { seen, emit } = setup(t)
    emit('SIGINT', 0)
    emit('SIGTERM', 1)
    t.strictSame(seen, ['graceful SIGINT', 'immediate SIGTERM'])
  })

  t.test('when npm repeats a Ctrl-C within moments, then it is one request', async t => {
    const { seen, emit } = setup(t)
    emit('SIGINT', 1_000)
    emit('SIGINT', 1_010)
    t.strictSame(seen, ['graceful SIGINT'])
    emit('SIGINT', 2_000)
    t.strictSame(seen, ['graceful SIGINT', 'immediate SIGINT'])
  })

  t.test('when the terminal closes twice, then the drain goes on', async t => {
    const { seen, emit } = setup(t)
    emit('SIGHUP', 0)
    emit('SIGHUP', 1_000)
    t.strictSame(seen, ['graceful SIGHUP'])
  })

  t.test('when QUIT comes first, then it stops at once', async t => {
    const { seen, emit } = setup(t)
    emit('SIGQUIT', 0)
    t.strictSame(seen, ['immediate SIGQUIT'])
  })

  t.test('when it is released, then no listener is left', async t => {
    const before = process.listenerCount('SIGTERM')
    const { release } = setup(t)
    t.equal(process.listenerCount('SIGTERM'), before + 1)
    release()
    t.equal(process.listenerCount('SIGTERM'), before)
  })
})
