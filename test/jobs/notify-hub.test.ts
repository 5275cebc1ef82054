import t from 'tap'
import { type HubListener, type HubMember, type HubMessage, NotifyHub } from '../../lib/jobs/notify-hub.ts'
import { cancelChannel, createdChannel } from '../../lib/pgmq/statements.ts'
import { quiet } from '../support/quiet-log.ts'

/** A listener that counts references and answers when it is told to. */
class FakeListener implements HubListener {
  delivering = true
  answer: 'active' | 'pending' = 'active'
  closed = 0
  readonly references = new Map<string, number>()
  /** Resolve to let LISTEN be answered; undefined: at once. */
  gate: Promise<void> | undefined
  notify: (channel: string, payload: string) => void = () => undefined
  status: (delivering: boolean) => void = () => undefined

  start(): void {}
  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    // Always heard, so not among those that children refer to.
    if (channel === cancelChannel || channel === createdChannel) return this.answer
    this.references.set(channel, (this.references.get(channel) ?? 0) + 1)
    await this.gate
    return this.answer
  }
  release(channel: string): void {
    const left = (this.references.get(channel) ?? 0) - 1
    if (left === 0) this.references.delete(channel)
    else this.references.set(channel, left)
  }
  onNotify(receive: (channel: string, payload: string) => void): void {
    this.notify = receive
  }
  onStatus(receive: (delivering: boolean) => void): void {
    this.status = receive
  }
  async close(): Promise<void> {
    this.closed += 1
  }
  setDelivering(delivering: boolean): void {
    this.delivering = delivering
    this.status(delivering)
  }
}

class FakeMember implements HubMember {
  readonly slot: string
  readonly received: HubMessage['t'][] = []
  /** Does not read: messages stay unsent until {@link drain}. */
  blocked = false
  readonly #unsent: (() => void)[] = []

  constructor(slot: string) {
    this.slot = slot
  }

  send(message: HubMessage, sent: () => void): void {
    this.received.push(message.t)
    if (this.blocked) this.#unsent.push(sent)
    else sent()
  }

  drain(): void {
    this.blocked = false
    for (const sent of this.#unsent.splice(0)) sent()
  }

  take(): HubMessage['t'][] {
    return this.received.splice(0)
  }
}

const setup = (t: { teardown(fn: () => unknown): unknown }) => {
  const listener = new FakeListener()
  const intervals: { ms: number; fn: () => void }[] = []
  const hub = new NotifyHub({
    listener,
    log: quiet,
    every: (ms, fn) => {
      intervals.push({ ms, fn })
      return () => intervals.pop()
    },
  })
  hub.start()
  t.teardown(() => hub.close())
  return { listener, hub, intervals }
}

t.test('given a cancelled message', async t => {
  const { listener, hub } = setup(t)
  const reader = new FakeMember('worker:0.0')
  const other = new FakeMember('worker:1.0')
  await hub.listen(reader, ['pgbus_a'])
  await hub.listen(other, ['pgbus_b'])
  reader.take()
  other.take()
  t.test('when it is told, then those who read its table are told, also one that does not drain', async t => {
    reader.blocked = true
    listener.notify('pgbus_cancel', '{"physical":"pgbus_a","msgId":7,"reason":null}')
    listener.notify('pgbus_cancel', '{"physical":"pgbus_a","msgId":8,"reason":null}')
    t.strictSame(reader.take(), ['cancel', 'cancel'])
    t.strictSame(other.take(), [])
  })
  t.test('when the notification is of somebody else, then nobody is told', async t => {
    for (const payload of ['', '{"physical":"pgbus_a"}', 'null']) listener.notify('pgbus_cancel', payload)
    t.strictSame(reader.take(), [])
  })
})

t.test('given a child that reads two tables', async t => {
  t.test('when it says so, then both are LISTENed, and it is woken and told the status', async t => {
    const { listener, hub } = setup(t)
    const child = new FakeMember('worker:0.0')
    await hub.listen(child, ['pgbus_a', 'pgbus_b'])
    t.strictSame(
      [...listener.references],
      [
        ['pgmq.q_pgbus_a.INSERT', 1],
        ['pgmq.q_pgbus_b.INSERT', 1],
      ],
    )
    t.strictSame(child.take(), ['wake', 'healthy'])
  })

  t.test('when LISTEN is not answered yet, then no status makes it wait for notifications', async t => {
    const { listener, hub } = setup(t)
    let open: () => void = () => undefined
    listener.gate = new Promise(resolve => {
      open = resolve
    })
    const child = new FakeMember('worker:0.0')
    const listening = hub.listen(child, ['pgbus_a'])
    listener.setDelivering(false)
    listener.setDelivering(true)
    t.strictSame(child.take(), [])
    open()
    await listening
    t.strictSame(child.take(), ['wake', 'healthy'])
  })

  t.test('when the connection is down, then it is told to poll, and told again when it is back', async t => {
    const { listener, hub } = setup(t)
    listener.delivering = false
    listener.answer = 'pending'
    const child = new FakeMember('worker:0.0')
    await hub.listen(child, ['pgbus_a'])
    t.strictSame(child.take(), ['wake', 'degraded'])
    listener.notify('pgmq.q_pgbus_a.INSERT', '')
    listener.setDelivering(true)
    t.strictSame(child.take(), ['wake', 'healthy'])
  })

  t.test('when it replaces its set, then only the difference changes', async t => {
    const { listener, hub } = setup(t)
    const child = new FakeMember('worker:0.0')
    await hub.listen(child, ['pgbus_a', 'pgbus_b'])
    await hub.listen(child, ['pgbus_b', 'pgbus_c'])
    t.strictSame(
      [...listener.references],
      [
        ['pgmq.q_pgbus_b.INSERT', 1],
        ['pgmq.q_pgbus_c.INSERT', 1],
      ],
    )
  })

  t.test(
    'when it dies while LISTEN is under way, then nothing is sent and nothing stays LISTENed',
    async t => {
      const { listener, hub } = setup(t)
      let open: () => void = () => undefined
      listener.gate = new Promise(resolve => {
        open = resolve
      })
      const child = new FakeMember('worker:0.0')
      const listening = hub.listen(child, ['pgbus_a'])
      hub.remove(child)
      hub.remove(child)
      open()
      await listening
      t.strictSame(child.take(), [])
      t.equal(listener.references.size, 0)
    },
  )
})

t.test('given two children that share one table', async t => {
  const pair = async (t: { teardown(fn: () => unknown): unknown }) => {
    const { listener, hub } = setup(t)
    const [one, other] = [new FakeMember('worker:0.0'), new FakeMember('worker:0.1')]
    await hub.listen(one, ['pgbus_a', 'pgbus_b'])
    await hub.listen(other, ['pgbus_b'])
    one.take()
    other.take()
    return { listener, hub, one, other }
  }

  t.test('when a message is inserted, then exactly the children that read its table are woken', async t => {
    const { listener, one, other } = await pair(t)
    listener.notify('pgmq.q_pgbus_a.INSERT', '')
    t.strictSame([one.take(), other.take()], [['wake'], []])
    listener.notify('pgmq.q_pgbus_b.INSERT', 'whatever')
    t.strictSame([one.take(), other.take()], [['wake'], ['wake']])
    listener.notify('pgmq.q_pgbus_c.INSERT', '')
    t.strictSame([one.take(), other.take()], [[], []])
  })

  t.test('when one dies, then the table of the other stays LISTENed', async t => {
    const { listener, hub, one, other } = await pair(t)
    hub.remove(one)
    t.strictSame([...listener.references], [['pgmq.q_pgbus_b.INSERT', 1]])
    listener.notify('pgmq.q_pgbus_b.INSERT', '')
    t.strictSame([one.take(), other.take()], [[], ['wake']])
  })

  t.test('when one is blocked, then its wakes merge into one and the other is not delayed', async t => {
    const { listener, one, other } = await pair(t)
    one.blocked = true
    for (let n = 0; n < 10_000; n += 1) listener.notify('pgmq.q_pgbus_b.INSERT', '')
    t.strictSame(one.received, ['wake'])
    t.equal(other.take().length, 10_000)
    one.drain()
    t.strictSame(one.take(), ['wake', 'wake'], 'one more for all that came meanwhile')
  })

  t.test('when the status flaps while one is blocked, then it hears the last word', async t => {
    const { listener, one } = await pair(t)
    one.blocked = true
    listener.notify('pgmq.q_pgbus_b.INSERT', '')
    for (let n = 0; n < 100; n += 1) listener.setDelivering(n % 2 === 0)
    one.drain()
    t.strictSame(one.take(), ['wake', 'degraded'])
  })
})

t.test('given a hub that is closed', async t => {
  t.test('when it is closed again or used, then nothing happens', async t => {
    const { listener, hub } = setup(t)
    const child = new FakeMember('worker:0.0')
    await Promise.all([hub.close(), hub.close()])
    await hub.listen(child, ['pgbus_a'])
    t.equal(listener.closed, 1)
    t.equal(listener.references.size, 0)
    t.strictSame(child.take(), [])
  })
})

t.test('given a hub and time that passes', async t => {
  t.test('when 5 s are over, then each child is told the status again', async t => {
    const { hub, intervals } = setup(t)
    const child = new FakeMember('worker:0.0')
    await hub.listen(child, ['pgbus_a'])
    child.take()
    t.strictSame(
      intervals.map(({ ms }) => ms),
      [5_000],
    )
    intervals[0]?.fn()
    t.strictSame(child.take(), ['healthy'])
    await hub.close()
    t.equal(intervals.length, 0)
  })
})

t.test('given a queue that was made', async t => {
  const { listener, hub } = setup(t)
  const patterns = new FakeMember('worker:0.0')
  const named = new FakeMember('worker:1.0')
  await hub.listen(patterns, [], { wildcard: true })
  await hub.listen(named, ['pgbus_a'])
  patterns.take()
  named.take()
  t.test('when that is told, then those who read by pattern are told, once while they are busy', async t => {
    patterns.blocked = true
    listener.notify('pgmq.q_pgbus_a.INSERT', '')
    for (const name of ['pgbus_b', 'pgbus_c', 'pgbus_d']) listener.notify('pgbus_queues', name)
    t.strictSame(patterns.take(), ['refresh'])
    patterns.drain()
    t.strictSame(patterns.take(), ['refresh'])
    t.strictSame(named.take(), ['wake'])
  })
})
