import t from 'tap'
import { type Deferred, deferred } from '../../../lib/core/deferred.ts'
import {
  FailoverListener,
  type FallbackSource,
  type MortalSource,
} from '../../../lib/streams/hub/failover-listener.ts'
import { recordLog } from '../../db/support.ts'
import { waitFor } from '../../support/wait-for.ts'

/** A wake source that answers what the test wants. */
class FakeSource implements MortalSource, FallbackSource {
  readonly mode: 'hub' | 'local'
  healthy = true
  readonly references = new Map<string, number>()
  answer: Promise<'active' | 'pending'> = Promise.resolve('active')
  closed = 0
  #wake: (channel: string, payload: string | null) => void = () => undefined
  #dead: (reason: string) => void = () => undefined
  readonly #delivering = deferred()

  constructor(mode: 'hub' | 'local') {
    this.mode = mode
  }

  get channels(): number {
    return this.references.size
  }

  get delivering(): Promise<void> {
    return this.#delivering.promise
  }

  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    this.references.set(channel, (this.references.get(channel) ?? 0) + 1)
    return this.answer
  }

  release(channel: string): void {
    const left = this.references.get(channel)! - 1
    if (left === 0) this.references.delete(channel)
    else this.references.set(channel, left)
  }

  onWake(receive: (channel: string, payload: string | null) => void): void {
    this.#wake = receive
  }

  onDead(receive: (reason: string) => void): void {
    this.#dead = receive
  }

  wake(channel: string, payload: string | null = null): void {
    this.#wake(channel, payload)
  }

  die(reason = 'killed'): void {
    this.#dead(reason)
  }

  deliver(): void {
    this.#delivering.resolve()
  }

  async close(): Promise<void> {
    this.closed += 1
  }
}

function setup(make?: (attempt: number) => FallbackSource | Promise<FallbackSource>) {
  const hub = new FakeSource('hub')
  const locals: FakeSource[] = []
  const recorded = recordLog()
  let attempts = 0
  const source = new FailoverListener({
    hub,
    local: () => {
      attempts += 1
      if (make) return make(attempts)
      const local = new FakeSource('local')
      locals.push(local)
      return local
    },
    retry: { base: 10, max: 20 },
    ...recorded,
  })
  const wakes: [string, string | null][] = []
  source.onWake((channel, payload) => void wakes.push([channel, payload]))
  return { hub, locals, source, wakes, attempts: () => attempts, ...recorded }
}

t.test('given a hub that lives', async t => {
  t.test('when channels are taken and given back, then the hub sees exactly that', async t => {
    const { hub, source, wakes } = setup()
    t.equal(source.mode, 'hub')
    t.equal(await source.ensureListening('a'), 'active')
    await source.ensureListening('a')
    source.release('a')
    t.same([...hub.references], [['a', 1]])
    hub.wake('a', 'x')
    t.same(wakes, [['a', 'x']])
    source.release('a')
    source.release('a')
    t.equal(hub.references.size, 0)
    t.equal(source.channels, 0)
    await source.close()
    t.equal(hub.closed, 1)
  })
})

t.test('given a hub that dies', async t => {
  t.test('when it does, then one local source has every reference, and every channel is woken', async t => {
    const { hub, locals, source, wakes, lines } = setup()
    await source.ensureListening('a')
    await source.ensureListening('a')
    await source.ensureListening('b')
    hub.die('no acknowledgement')
    hub.die('again')
    await waitFor(() => wakes.length >= 3)
    t.equal(locals.length, 1)
    t.same(
      [...locals[0]!.references],
      [
        ['a', 2],
        ['b', 1],
      ],
    )
    t.same(new Set(wakes.map(([channel, payload]) => `${channel} ${payload}`)), new Set(['a null', 'b null']))
    t.equal(source.mode, 'local')
    locals[0]!.deliver()
    await waitFor(() => lines.includes('info local listener active, 2 channels'))
    t.equal(
      lines.filter(line => line === 'warn hub lost: no acknowledgement; switching to a local listener')
        .length,
      1,
    )
    await source.close()
    t.equal(locals[0]!.closed, 1)
  })

  t.test('when channels come and go before the local source exists, then it has the right ones', async t => {
    const made = deferred<FakeSource>()
    const { hub, source, wakes } = setup(() => made.promise)
    await source.ensureListening('stays')
    await source.ensureListening('goes')
    hub.die()
    t.equal(await source.ensureListening('added'), 'pending')
    t.equal(source.healthy, false)
    source.release('goes')
    const local = new FakeSource('local')
    made.resolve(local)
    await waitFor(() => wakes.length === 2)
    t.same([...local.references.keys()].sort(), ['added', 'stays'])
    source.release('added')
    t.same([...local.references.keys()], ['stays'])
    t.equal(await source.ensureListening('later'), 'active')
    local.wake('later', 'x')
    t.same(wakes.at(-1), ['later', 'x'])
    await source.close()
  })

  t.test('when a request is waiting for its answer, then it ends and the channel moves', async t => {
    const { hub, locals, source } = setup()
    const answer = deferred<'active' | 'pending'>()
    hub.answer = answer.promise
    const asked = source.ensureListening('a')
    hub.die()
    answer.resolve('pending')
    t.equal(await asked, 'pending')
    await waitFor(() => locals[0]?.references.has('a'))
    await source.close()
  })

  t.test('when the local source cannot be made, then it is tried again and reported once', async t => {
    const local = new FakeSource('local')
    const { hub, source, wakes, attempts, reported } = setup(attempt => {
      if (attempt === 1) throw new Error('cannot be built')
      if (attempt < 4) return Promise.reject(new Error('cannot be built'))
      return local
    })
    await source.ensureListening('a')
    hub.die()
    t.equal(await source.ensureListening('b'), 'pending')
    await waitFor(() => wakes.length === 2)
    t.equal(attempts(), 4)
    t.match(reported, [{ context: { action: 'stream_hub' } }])
    t.equal(reported.length, 1)
    await source.close()
  })

  t.test('when a source fails, then asking still answers and the failure is reported', async t => {
    const { hub, locals, source, reported } = setup()
    const failing = Promise.reject(new Error('fails'))
    failing.catch(() => undefined)
    hub.answer = failing
    t.equal(await source.ensureListening('a'), 'pending')
    hub.die()
    await waitFor(() => locals.length === 1)
    locals[0]!.answer = failing
    t.equal(await source.ensureListening('a'), 'pending')
    t.equal(reported.length, 2)
    await source.close()
  })
})

t.test('given a fallback that is closed', async t => {
  t.test('when the local source is being made, then it is closed as soon as it exists', async t => {
    const made: Deferred<FakeSource> = deferred()
    const { hub, source } = setup(() => made.promise)
    hub.die()
    const closing = source.close()
    const local = new FakeSource('local')
    made.resolve(local)
    await closing
    t.equal(local.closed, 1)
    t.equal(await source.ensureListening('a'), 'pending')
  })

  t.test('when it waits for the next attempt, then closing does not wait for it', async t => {
    const { hub, source, attempts } = setup(() => {
      throw new Error('cannot be built')
    })
    hub.die()
    await waitFor(() => attempts() >= 1)
    await source.close()
    const before = attempts()
    await new Promise(resolve => setTimeout(resolve, 60))
    t.equal(attempts(), before)
  })

  t.test('when it was never used, then closing twice is one close', async t => {
    const { hub, source } = setup()
    await Promise.all([source.close(), source.close()])
    t.equal(hub.closed, 1)
  })
})
