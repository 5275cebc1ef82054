import { writeFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import t from 'tap'
import { HubUnavailableError } from '../../../lib/core/errors.ts'
import { HubClient } from '../../../lib/streams/hub/hub-client.ts'
import { MasterHub } from '../../../lib/streams/hub/master-hub.ts'
import { encodeFrame, type Frame, type HubFrame } from '../../../lib/streams/hub/protocol.ts'
import { recordLog } from '../../db/support.ts'
import type { TestContext } from '../../support/database.ts'
import { waitFor } from '../../support/wait-for.ts'
import { blockFor, FakeUpstream, fakeHub, socketPath } from './support.ts'

/** A client of a hub that answers hello, records the rest, and otherwise does what `reply` says. */
async function setup(
  t: TestContext,
  reply: (frame: Frame, send: (frame: HubFrame) => void, socket: Socket) => void = () => undefined,
  ackTimeout = 2_000,
) {
  const path = socketPath(t)
  const received: Frame[] = []
  let hubSocket!: Socket
  const server = await fakeHub(t, path, (socket, receive) => {
    hubSocket = socket
    const send = (frame: HubFrame) => void socket.write(encodeFrame(frame))
    receive(frame => {
      received.push(frame)
      if (frame.t === 'hello') send({ t: 'status', healthy: true })
      else reply(frame, send, socket)
    })
  })
  const recorded = recordLog()
  const client = await HubClient.connect({ path, ackTimeout, index: 2, phase: 1, ...recorded })
  t.teardown(() => client.close())
  const deaths: string[] = []
  client.onDead(reason => deaths.push(reason))
  const wakes: [string, string | null][] = []
  client.onWake((channel, payload) => void wakes.push([channel, payload]))
  const send = (frame: HubFrame) => void hubSocket.write(encodeFrame(frame))
  return { path, server, received, client, deaths, wakes, send, hubSocket, ...recorded }
}

const acknowledge = (frame: Frame, send: (frame: HubFrame) => void) => {
  if (frame.t === 'sub') send({ t: 'ack', q: frame.q, i: frame.i })
}

t.test('given a hub that serves', async t => {
  t.test('when a worker connects, then it has introduced itself and knows the status', async t => {
    const { received, client } = await setup(t)
    t.same(received, [{ t: 'hello', v: 1, pid: process.pid, index: 2, phase: 1 }])
    t.equal(client.healthy, true)
    t.equal(client.mode, 'hub')
  })

  t.test(
    'when several callers want one channel, then one request is sent and all learn the answer',
    async t => {
      let answer: (() => void) | undefined
      const { received, client } = await setup(t, (frame, send) => {
        answer = () => acknowledge(frame, send)
      })
      const answers = [client.ensureListening('a'), client.ensureListening('a'), client.ensureListening('a')]
      await waitFor(() => answer)
      answer?.()
      t.same(await Promise.all(answers), ['active', 'active', 'active'])
      t.equal(await client.ensureListening('a'), 'active')
      t.equal(received.length, 2)
      t.equal(client.channels, 1)
    },
  )

  t.test('when the last reference goes, then the hub is told, once; a new one asks anew', async t => {
    const { received, client } = await setup(t, acknowledge)
    await client.ensureListening('a')
    await client.ensureListening('a')
    client.release('a')
    client.release('a')
    client.release('a')
    client.release('never taken')
    t.equal(await client.ensureListening('a'), 'active')
    t.same(
      received.slice(1).map(frame => frame.t),
      ['sub', 'unsub', 'sub'],
    )
  })

  t.test(
    'when it has no connection yet, then the answer is pending and the next caller asks again',
    async t => {
      let down = true
      const { client } = await setup(t, (frame, send) => {
        if (frame.t !== 'sub') return
        if (down) send({ t: 'nack', q: frame.q, i: frame.i, reason: 'down' })
        else acknowledge(frame, send)
      })
      t.equal(await client.ensureListening('a'), 'pending')
      down = false
      t.equal(await client.ensureListening('a'), 'active')
    },
  )

  t.test('when wakes come, then they arrive in order, and only for channels in use', async t => {
    const { client, wakes, send } = await setup(t, acknowledge)
    await client.ensureListening('a')
    send({ t: 'wake', q: 'b', p: null })
    send({ t: 'wake', q: 'a', p: 'x' })
    send({ t: 'wake', q: 'a', p: null })
    await waitFor(() => wakes.length === 2)
    t.same(wakes, [
      ['a', 'x'],
      ['a', null],
    ])
  })

  t.test('when the receiver throws, then that is reported and the client lives', async t => {
    const { client, send, deaths, reported } = await setup(t, acknowledge)
    let calls = 0
    client.onWake(() => {
      calls += 1
      throw new Error('a receiver that throws')
    })
    await client.ensureListening('a')
    send({ t: 'wake', q: 'a', p: null })
    send({ t: 'wake', q: 'a', p: null })
    await waitFor(() => calls === 2)
    t.equal(reported.length, 2)
    t.same(deaths, [])
  })

  t.test('when it sends frames of an unknown type, then one warning is logged', async t => {
    const { client, hubSocket, send, lines } = await setup(t)
    hubSocket.write(Buffer.from('\0\0\0\x0d{"t":"later"}\0\0\0\x0d{"t":"later"}'))
    send({ t: 'status', healthy: false })
    await waitFor(() => !client.healthy)
    t.equal(lines.filter(line => line.includes('later')).length, 1)
  })

  t.test(
    'when this process was too busy to read the answer in time, then that is not held against the hub',
    async t => {
      // Another process answers: one that shares the event loop would be blocked as well.
      const path = socketPath(t)
      const { spawnNode } = await import('../../support/spawn.ts')
      const hub = spawnNode(t, '-e', [
        `
      const net = require('node:net')
      const send = (s, o) => { const b = Buffer.from(JSON.stringify(o)); const h = Buffer.alloc(4); h.writeUInt32BE(b.length); s.write(Buffer.concat([h, b])) }
      net.createServer(s => s.on('data', d => {
        if (d.includes('"hello"')) send(s, { t: 'status', healthy: true })
        else send(s, { t: 'ack', q: 'a', i: 0 })
      })).listen(${JSON.stringify(path)}, () => console.log('listening'))
      `,
      ])
      await hub.waitForOutput(/listening/)
      const client = await HubClient.connect({ path, ackTimeout: 200, ...recordLog() })
      t.teardown(() => client.close())
      const deaths: string[] = []
      client.onDead(reason => deaths.push(reason))
      const answer = client.ensureListening('a')
      await new Promise(resolve => setImmediate(resolve))
      blockFor(2_000)
      t.equal(await answer, 'active')
      t.same(deaths, [])
    },
  )
})

t.test('given a hub that goes away', async t => {
  const ways: [string, (hub: Awaited<ReturnType<typeof setup>>) => void, RegExp][] = [
    ['ends the connection', ({ hubSocket }) => hubSocket.end(), /closed/],
    ['is killed', ({ hubSocket }) => hubSocket.destroy(), /clos|reset/i],
    [
      'dies in the middle of a frame',
      ({ hubSocket }) => hubSocket.end(Buffer.from([0, 0, 0, 9, 123])),
      /closed/,
    ],
    ['says goodbye', ({ send }) => send({ t: 'bye', reason: 'the hub stops' }), /the hub stops/],
    ['breaks the protocol', ({ hubSocket }) => hubSocket.write(Buffer.from([0xff, 0, 0, 0])), /announces/],
    [
      'sends a wrong field',
      ({ hubSocket }) => hubSocket.write(Buffer.from('\0\0\0\x12{"t":"wake","q":1}')),
      /field q/,
    ],
  ]
  for (const [what, act, reason] of ways) {
    t.test(`when it ${what}, then the client dies once and waiting callers learn it`, async t => {
      const given = await setup(t)
      const { client, deaths } = given
      const answer = client.ensureListening('a')
      act(given)
      t.equal(await answer, 'pending')
      await waitFor(() => deaths.length > 0)
      await client.close()
      t.equal(deaths.length, 1)
      t.match(deaths[0], reason)
      t.equal(client.healthy, false)
      t.equal(await client.ensureListening('b'), 'pending')
      client.release('a')
    })
  }

  t.test('when it does not acknowledge, then the client dies after its timeout', async t => {
    const { client, deaths } = await setup(t, undefined, 200)
    t.equal(await client.ensureListening('a'), 'pending')
    t.match(deaths, [/no acknowledgement within 200 ms/])
  })

  t.test('when it is slow but answers one request after the other, then it is alive', async t => {
    const due: (() => void)[] = []
    const { client, deaths } = await setup(
      t,
      (frame, send) => void due.push(() => acknowledge(frame, send)),
      400,
    )
    const answers = Array.from({ length: 8 }, (_, n) => client.ensureListening(`c${n}`))
    await waitFor(() => due.length === 8)
    for (const answer of due) {
      await new Promise(resolve => setTimeout(resolve, 300))
      answer()
    }
    t.same(new Set(await Promise.all(answers)), new Set(['active']))
    t.same(deaths, [])
  })

  t.test('when it stops reading, then bytes that do not leave are noticed', async t => {
    const { client, deaths, hubSocket } = await setup(t, acknowledge, 1_000)
    const channels = Array.from({ length: 5_000 }, (_, n) => `${n} ${'x'.repeat(50)}`)
    for (const channel of channels) await client.ensureListening(channel)
    hubSocket.pause()
    // None of these asks for an answer, and together they are more than a socket holds.
    for (const channel of channels) client.release(channel)
    await waitFor(() => deaths.length > 0)
    t.match(deaths, [/took no bytes for 1000 ms/])
  })

  t.test('when the death came before anybody asked, then it is told at once', async t => {
    const { client, hubSocket, deaths } = await setup(t)
    hubSocket.destroy()
    await waitFor(() => deaths.length === 1)
    const late: string[] = []
    client.onDead(reason => late.push(reason))
    t.equal(late.length, 1)
  })

  t.test('when the client is closed, then that is no death, and waiting callers learn it', async t => {
    const { client, deaths } = await setup(t)
    const answer = client.ensureListening('a')
    await Promise.all([client.close(), client.close()])
    t.equal(await answer, 'pending')
    t.same(deaths, [])
    t.equal(await client.ensureListening('a'), 'pending')
  })
})

t.test('given no hub to talk to', async t => {
  const connect = (path: string, ackTimeout = 300) => HubClient.connect({ path, ackTimeout, ...recordLog() })

  t.test('when the path does not exist, is a file, or is too long, then connecting says so', async t => {
    const path = socketPath(t)
    await t.rejects(connect(path), HubUnavailableError)
    writeFileSync(path, '')
    await t.rejects(connect(path), HubUnavailableError)
    await t.rejects(connect(`/tmp/${'x'.repeat(300)}`), HubUnavailableError)
  })

  t.test('when somebody listens but never answers, then connecting gives up', async t => {
    const path = socketPath(t)
    await fakeHub(t, path, () => undefined)
    await t.rejects(connect(path), { code: 'PGBUS_ERR_HUB_UNAVAILABLE', message: /no answer within 300 ms/ })
  })

  t.test('when the hub speaks another version, then connecting says so', async t => {
    const path = socketPath(t)
    await fakeHub(t, path, (socket, receive) =>
      receive(() => void socket.end(encodeFrame({ t: 'bye', reason: 'version 2' }))),
    )
    await t.rejects(connect(path), { code: 'PGBUS_ERR_HUB_UNAVAILABLE', message: /version 2/ })
  })
})

t.test('given the real hub', async t => {
  t.test(
    'when a client subscribes, leaves and comes back at once, then it hears what is notified',
    async t => {
      const path = socketPath(t)
      const upstream = new FakeUpstream()
      const recorded = recordLog()
      const hub = new MasterHub({ path, listener: () => upstream, ...recorded })
      await hub.start()
      t.teardown(() => hub.close())
      const client = await HubClient.connect({ path, ackTimeout: 2_000, ...recorded })
      const wakes: string[] = []
      client.onWake(channel => void wakes.push(channel))
      for (let n = 0; n < 20; n += 1) {
        const first = client.ensureListening('a')
        client.release('a')
        const second = client.ensureListening('a')
        t.same(await Promise.all([first, second]), ['active', 'active'])
        t.equal(upstream.references.get('a'), 1)
        client.release('a')
      }
      await client.ensureListening('a')
      upstream.notify('a')
      await waitFor(() => wakes.length === 1)
      await client.close()
      await waitFor(() => upstream.references.size === 0)
    },
  )
})
