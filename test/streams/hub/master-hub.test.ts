import { existsSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import t from 'tap'
import { HubUnavailableError } from '../../../lib/core/errors.ts'
import { MasterHub } from '../../../lib/streams/hub/master-hub.ts'
import { recordLog } from '../../db/support.ts'
import type { TestContext } from '../../support/database.ts'
import { spawnNode } from '../../support/spawn.ts'
import { waitFor } from '../../support/wait-for.ts'
import { deferred, FakeUpstream, rawWorker, socketPath } from './support.ts'

async function setup(t: TestContext) {
  const path = socketPath(t)
  const upstream = new FakeUpstream()
  const recorded = recordLog()
  const hub = new MasterHub({ path, listener: () => upstream, log: recorded.log, report: recorded.report })
  await hub.start()
  t.teardown(() => hub.close())
  return { path, upstream, hub, ...recorded }
}

const durable = (q: string) => ({ t: 'wake', q, p: null })
const sent = (frames: unknown[], type: string) => frames.filter(frame => (frame as { t: string }).t === type)

t.test('given a socket path', async t => {
  t.test(
    'when the hub has started, then only its owner may open the socket, and the mask is back',
    async t => {
      const mask = process.umask()
      const { path } = await setup(t)
      t.equal(statSync(path).mode & 0o777, 0o600)
      t.equal(process.umask(), mask)
    },
  )

  t.test('when bind has just returned, then the file already has its mode', async t => {
    // Without the mask, the mode between bind and chmod would be that of the ordinary mask.
    const path = socketPath(t)
    const modes: number[] = []
    const listen = createServer().constructor.prototype.listen
    const { hub } = makeHub(path)
    const prototype = createServer().constructor.prototype
    prototype.listen = function (this: unknown, ...args: unknown[]) {
      const result = listen.apply(this, args)
      modes.push(statSync(path).mode & 0o777)
      return result
    }
    try {
      await hub.start()
    } finally {
      prototype.listen = listen
    }
    await hub.close()
    t.same(modes, [0o600])
  })

  t.test('when a dead hub left its file, then it is replaced', async t => {
    const path = socketPath(t)
    const dead = spawnNode(t, '-e', [
      `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`,
    ])
    await dead.exited
    t.ok(existsSync(path), 'the file is still there')
    const { hub } = makeHub(path)
    await hub.start()
    await rawWorker(t, path)
    await hub.close()
    t.notOk(existsSync(path), 'and goes with the hub')
  })

  t.test('when another hub lives there, then it is never stolen', async t => {
    const { path } = await setup(t)
    const { hub, upstream } = makeHub(path)
    await t.rejects(hub.start(), HubUnavailableError)
    await hub.close()
    t.same(upstream.calls, [], 'no LISTEN connection was opened')
    const worker = await rawWorker(t, path)
    await worker.next('status')
  })

  t.test('when there is a file that is no socket, then it is left alone', async t => {
    const path = socketPath(t)
    writeFileSync(path, 'precious')
    await t.rejects(makeHub(path).hub.start(), HubUnavailableError)
    t.equal(statSync(path).size, 8)
  })

  t.test('when it is too long or its folder is missing, then starting says so', async t => {
    await t.rejects(makeHub(`/tmp/${'x'.repeat(100)}`).hub.start(), HubUnavailableError)
    await t.rejects(makeHub(`${socketPath(t)}/not/there`).hub.start(), HubUnavailableError)
  })
})

function makeHub(path: string, upstream = new FakeUpstream()) {
  const { log, report } = recordLog()
  return { upstream, hub: new MasterHub({ path, listener: () => upstream, log, report }) }
}

t.test('given the life of a hub', async t => {
  t.test('when it is closed while it starts, then nothing is left', async t => {
    const path = socketPath(t)
    const { hub, upstream } = makeHub(path)
    const starting = hub.start()
    await hub.close()
    await starting
    t.notOk(existsSync(path))
    t.same(upstream.calls, ['start', 'close'])
    await hub.close()
    await t.rejects(hub.start())
  })

  t.test('when the listener cannot be made, then the socket goes again', async t => {
    const path = socketPath(t)
    const { log, report } = recordLog()
    const hub = new MasterHub({
      path,
      listener: () => {
        throw new Error('no listener')
      },
      log,
      report,
    })
    await t.rejects(hub.start(), /no listener/)
    t.notOk(existsSync(path))
    await hub.close()
  })

  t.test('when the listener fails to start, then it is closed', async t => {
    const upstream = new FakeUpstream()
    upstream.start = () => {
      throw new Error('cannot start')
    }
    const { hub } = makeHub(socketPath(t), upstream)
    await t.rejects(hub.start(), /cannot start/)
    t.same(upstream.calls, ['close'])
  })

  t.test('when it stops, then workers hear bye and the file goes', async t => {
    const { path, hub } = await setup(t)
    const worker = await rawWorker(t, path)
    await worker.next('status')
    await hub.close()
    await worker.next('bye')
    await worker.ended
    t.notOk(existsSync(path))
  })

  t.test('when it stops while a worker does not read, then stopping does not wait for it', async t => {
    const { path, hub, upstream } = await setup(t)
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 0 })
    await worker.next('ack')
    worker.socket.pause()
    for (let n = 0; n < 200; n += 1) upstream.notify('a', 'x'.repeat(7_000))
    await hub.close()
  })
})

t.test('given a subscription', async t => {
  t.test('when LISTEN is not answered yet, then it is registered already and not acknowledged', async t => {
    const { path, upstream } = await setup(t)
    upstream.gate = deferred<'active' | 'pending'>()
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 7 })
    await waitFor(() => upstream.calls.includes('listen a'))
    upstream.notify('a')
    t.same(await worker.next('wake'), durable('a'))
    t.same(sent(worker.frames, 'ack'), [])
    upstream.gate.resolve('active')
    t.same(await worker.next('ack'), { t: 'ack', q: 'a', i: 7 })
  })

  t.test('when the database is down, then it is refused for now and the wake follows', async t => {
    const { path, upstream } = await setup(t)
    upstream.gate = deferred<'active' | 'pending'>()
    upstream.gate.resolve('pending')
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 1 })
    t.match(await worker.next('nack'), { q: 'a', i: 1, reason: String })
    upstream.notify('a')
    t.same(await worker.next('wake'), durable('a'))
  })

  t.test('when the listener fails, then the worker is told and the error is reported', async t => {
    const { path, upstream, reported } = await setup(t)
    upstream.ensureListening = async () => {
      throw new Error('broken listener')
    }
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 1 })
    await worker.next('nack')
    t.match(reported, [{ context: { action: 'stream_hub' } }])
  })

  t.test('when two workers have it, then each gets every wake and the last one ends it', async t => {
    const { path, upstream, hub } = await setup(t)
    const [one, two] = [await rawWorker(t, path, { index: 1 }), await rawWorker(t, path, { index: 2 })]
    for (const worker of [one, two]) {
      worker.send({ t: 'sub', q: 'a', i: 0 })
      await worker.next('ack')
    }
    upstream.notify('a', '{"html":"x"}')
    for (const worker of [one, two]) {
      t.same(await worker.next('wake'), { t: 'wake', q: 'a', p: '{"html":"x"}' })
    }
    one.send({ t: 'unsub', q: 'a' })
    await waitFor(() => upstream.references.get('a') === 1)
    upstream.notify('a')
    await two.next('wake', frame => frame.p === null)
    t.equal(sent(one.frames, 'wake').length, 1)
    two.send({ t: 'unsub', q: 'a' })
    await waitFor(() => upstream.references.size === 0)
    t.equal(hub.stats().channels, 0)
  })

  t.test('when a worker asks twice, then it is answered twice and holds one reference', async t => {
    const { path, upstream } = await setup(t)
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 0 })
    worker.send({ t: 'sub', q: 'a', i: 1 })
    await worker.next('ack', frame => frame.i === 1)
    await waitFor(() => upstream.references.get('a') === 1)
    worker.send({ t: 'unsub', q: 'a' })
    worker.send({ t: 'unsub', q: 'a' })
    await waitFor(() => upstream.references.size === 0)
  })

  t.test('when a wake is on its way after the last one left, then no entry is made', async t => {
    const { path, upstream, hub } = await setup(t)
    const worker = await rawWorker(t, path)
    worker.send({ t: 'sub', q: 'a', i: 0 })
    await worker.next('ack')
    worker.send({ t: 'unsub', q: 'a' })
    await waitFor(() => hub.stats().channels === 0)
    upstream.notify('a')
    upstream.notify('never subscribed', 'x')
    t.equal(hub.stats().channels, 0)
    t.same(sent(worker.frames, 'wake'), [])
  })

  t.test(
    'when the worker vanishes before LISTEN is answered, then its references are given back',
    async t => {
      const { path, upstream, hub } = await setup(t)
      upstream.gate = deferred<'active' | 'pending'>()
      const worker = await rawWorker(t, path)
      worker.send({ t: 'sub', q: 'a', i: 0 })
      worker.send({ t: 'sub', q: 'a', i: 1 })
      worker.send({ t: 'sub', q: 'b', i: 2 })
      await waitFor(() => upstream.calls.includes('listen b'))
      worker.socket.destroy()
      await waitFor(() => hub.stats().workers.length === 0)
      upstream.gate.resolve('active')
      await waitFor(() => upstream.references.size === 0)
      t.equal(hub.stats().channels, 0)
    },
  )
})

t.test('given status', async t => {
  t.test('when a worker says hello and when it changes, then the worker is told', async t => {
    const { path, upstream } = await setup(t)
    upstream.delivering = false
    const worker = await rawWorker(t, path)
    t.same(await worker.next('status'), { t: 'status', healthy: false })
    upstream.setDelivering(true)
    await worker.next('status', frame => frame.healthy)
  })

  t.test('when nothing happens, then it is repeated', async t => {
    const { path } = await setup(t)
    const worker = await rawWorker(t, path)
    await waitFor(() => sent(worker.frames, 'status').length >= 2)
  })
})

t.test('given a worker that misbehaves, and a good one', async t => {
  const cases: [string, Buffer][] = [
    ['announces too much', Buffer.from([0xff, 0xff, 0xff, 0xff])],
    ['sends no JSON', Buffer.from([0, 0, 0, 2, 0x7b, 0x21])],
    ['sends a wrong field', Buffer.from('\0\0\0\x1d{"t":"sub","q":"","i":"zero"}')],
  ]
  for (const [what, bytes] of cases) {
    t.test(`when it ${what}, then it is cut off and the other one is not`, async t => {
      const { path, upstream, lines, hub } = await setup(t)
      const [good, bad] = [await rawWorker(t, path, { index: 1 }), await rawWorker(t, path, { index: 2 })]
      good.send({ t: 'sub', q: 'a', i: 0 })
      await good.next('ack')
      bad.send({ t: 'sub', q: 'b', i: 0 })
      await bad.next('ack')
      bad.socket.write(bytes)
      await bad.ended
      t.match(lines.join('\n'), /cutting off worker 2/)
      await waitFor(() => !upstream.references.has('b'))
      upstream.notify('a', 'x')
      await good.next('wake')
      t.equal(hub.stats().workers.length, 1)
    })
  }

  t.test('when it subscribes before hello, then it is cut off', async t => {
    const { path } = await setup(t)
    const worker = await rawWorker(t, path, { silent: true })
    worker.send({ t: 'sub', q: 'a', i: 0 })
    await worker.ended
  })

  t.test('when it speaks another version, then it hears why and goes', async t => {
    const { path } = await setup(t)
    const worker = await rawWorker(t, path, { silent: true })
    worker.send({ t: 'hello', v: 2, pid: 1, index: 0, phase: 0 })
    t.match(await worker.next('bye'), { reason: /version/ })
    await worker.ended
  })

  t.test('when it sends frames of an unknown type, then one warning is logged and it stays', async t => {
    const { path, lines } = await setup(t)
    const worker = await rawWorker(t, path)
    const unknown = Buffer.from('\0\0\0\x0d{"t":"later"}')
    worker.socket.write(Buffer.concat([unknown, unknown, unknown]))
    worker.send({ t: 'sub', q: 'a', i: 0 })
    await worker.next('ack')
    t.equal(lines.filter(line => line.includes('later')).length, 1)
  })

  t.test('when it dies in the middle of a frame, then that is an end like any other', async t => {
    const { path, hub, lines } = await setup(t)
    const worker = await rawWorker(t, path)
    await worker.next('status')
    worker.socket.end(Buffer.from([0, 0, 1, 0, 0x7b]))
    await waitFor(() => hub.stats().workers.length === 0)
    t.notMatch(lines.join('\n'), /cutting off/)
  })
})

t.test('given a worker that does not read', async t => {
  const subscribed = async (t: TestContext, path: string, index: number, channels: string[]) => {
    const worker = await rawWorker(t, path, { index })
    for (const [i, q] of channels.entries()) {
      worker.send({ t: 'sub', q, i })
      await worker.next('ack', frame => frame.q === q)
    }
    return worker
  }
  const burst = 'x'.repeat(7_900)

  t.test('when ephemerals go on, then it is evicted and the others get every one', async t => {
    const { path, upstream, hub, lines } = await setup(t)
    const stuck = await subscribed(t, path, 3, ['a'])
    const good = await subscribed(t, path, 1, ['a'])
    stuck.socket.pause()
    let n = 0
    while (hub.stats().evictions === 0 && n < 5_000) {
      for (let k = 0; k < 20; k += 1, n += 1) upstream.notify('a', `${n} ${burst}`)
      await new Promise(resolve => setImmediate(resolve))
    }
    t.equal(hub.stats().evictions, 1)
    t.match(lines.join('\n'), /evicting worker 3 \(pid \d+\): \d+ frames, \d+ bytes unsent/)
    await waitFor(() => sent(good.frames, 'wake').length === n)
    t.same(
      sent(good.frames, 'wake').map(frame => Number.parseInt((frame as { p: string }).p, 10)),
      Array.from({ length: n }, (_, k) => k),
      'in order',
    )
    t.same(
      hub.stats().workers.map(({ index }) => index),
      [1],
    )
    stuck.socket.resume()
    await stuck.ended
  })

  t.test(
    'when durable wakes go on, then they are merged, and none is missing once it reads again',
    async t => {
      const { path, upstream, hub } = await setup(t)
      const slow = await subscribed(t, path, 1, ['a', 'b', 'c'])
      slow.socket.pause()
      // Fill the socket, so that the hub has to keep what comes next.
      while (hub.stats().workers[0]?.queuedFrames === 0) {
        upstream.notify('a', burst)
        await new Promise(resolve => setImmediate(resolve))
      }
      const before = sent(slow.frames, 'wake').length
      for (let k = 0; k < 100_000; k += 1) upstream.notify(k % 2 ? 'b' : 'c')
      upstream.notify('a', 'the last ephemeral')
      const { queuedFrames } = hub.stats().workers[0]!
      t.ok(queuedFrames < 10, `${queuedFrames} frames wait`)
      t.equal(hub.stats().mergedWakes, 99_998)
      t.equal(hub.stats().evictions, 0)
      slow.socket.resume()
      await slow.next('wake', frame => frame.q === 'b')
      await slow.next('wake', frame => frame.q === 'c')
      const wakes = sent(slow.frames, 'wake').slice(before) as { q: string; p: string | null }[]
      t.same(
        wakes.slice(-3).map(({ q, p }) => [q, p]),
        [
          ['a', 'the last ephemeral'],
          ['c', null],
          ['b', null],
        ],
        'first the queue, then the merged wakes',
      )
      upstream.notify('b')
      await waitFor(
        () => sent(slow.frames, 'wake').filter(frame => (frame as { q: string }).q === 'b').length === 2,
      )
    },
  )

  t.test('when it leaves a channel meanwhile, then that wake is dropped', async t => {
    const { path, upstream, hub } = await setup(t)
    const slow = await subscribed(t, path, 1, ['a', 'b'])
    slow.socket.pause()
    while (hub.stats().workers[0]?.queuedFrames === 0) {
      upstream.notify('a', burst)
      await new Promise(resolve => setImmediate(resolve))
    }
    upstream.notify('b')
    slow.send({ t: 'unsub', q: 'b' })
    await waitFor(() => hub.stats().channels === 1)
    upstream.notify('a', 'end')
    slow.socket.resume()
    await slow.next('wake', frame => frame.p === 'end')
    t.notOk(slow.frames.some(frame => frame.t === 'wake' && frame.q === 'b'))
  })

  t.test('when a large burst of a single turn reaches one that reads, then nobody is evicted', async t => {
    const { path, upstream, hub } = await setup(t)
    const good = await subscribed(t, path, 1, ['a'])
    for (let k = 0; k < 10_000; k += 1) upstream.notify('a', `frame ${k}`)
    await waitFor(() => sent(good.frames, 'wake').length === 10_000)
    t.equal(hub.stats().evictions, 0)
  })
})
