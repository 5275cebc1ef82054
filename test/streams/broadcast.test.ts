import t from 'tap'
import {
  Broadcaster,
  type BroadcasterOptions,
  type BroadcastOptions,
  isDurable,
} from '../../lib/streams/broadcast.ts'
import { MemoryStore, recordingLog } from './fakes.ts'

type Modes = BroadcasterOptions['config']

const modes = (changes: Partial<Modes> = {}): Modes => ({
  defaultMode: 'durable',
  durablePatterns: [],
  ephemeralPatterns: [],
  maxPayloadBytes: 1_048_576,
  ...changes,
})

function setup(changes: Partial<Modes> = {}) {
  const store = new MemoryStore()
  const { log, lines } = recordingLog()
  let now = 0
  const broadcaster = new Broadcaster({ store: () => store, config: modes(changes), log, now: () => now })
  return {
    store,
    lines,
    broadcaster,
    pass: (ms: number) => {
      now += ms
    },
  }
}

t.test('given a stream and the configuration', async t => {
  const chat = /^chat_/g
  const cases: [string, Partial<Modes>, string, boolean][] = [
    ['nothing is said', {}, 'a', true],
    ['the default is ephemeral', { defaultMode: 'ephemeral' }, 'a', false],
    ['a name is durable', { defaultMode: 'ephemeral', durablePatterns: ['a'] }, 'a', true],
    ['another name is durable', { defaultMode: 'ephemeral', durablePatterns: ['a'] }, 'ab', false],
    ['a pattern is durable', { defaultMode: 'ephemeral', durablePatterns: [chat] }, 'chat_1', true],
    [
      'the same pattern is asked again',
      { defaultMode: 'ephemeral', durablePatterns: [chat] },
      'chat_1',
      true,
    ],
    ['a pattern is ephemeral', { ephemeralPatterns: [/typing$/] }, 'room typing', false],
    ['no pattern matches', { ephemeralPatterns: [/typing$/] }, 'room', true],
    ['both match', { durablePatterns: [/^r/], ephemeralPatterns: [/m$/] }, 'room', true],
  ]
  for (const [what, changes, stream, expected] of cases) {
    t.test(`when ${what}, then it is ${expected ? 'durable' : 'ephemeral'}`, async t => {
      t.equal(isDurable(stream, modes(changes)), expected)
    })
  }
})

t.test('given a broadcast', async t => {
  t.test('when call, handle and pattern differ, then the call wins, then the handle', async t => {
    const { broadcaster, store } = setup({ ephemeralPatterns: ['a'] })
    t.equal(await broadcaster.broadcast('a', 'x', {}, undefined), null)
    t.equal(await broadcaster.broadcast('a', 'x', {}, true), 1)
    t.equal(await broadcaster.broadcast('a', 'x', { durable: false }, true), null)
    t.equal(await broadcaster.broadcast('a', 'x', { durable: true }, false), 2)
    t.equal(await broadcaster.broadcast('a', 'x', { durable: undefined }, false), null)
    t.equal(store.notified.length, 3)
  })

  t.test('when its options cannot be right, then nothing is sent', async t => {
    const { broadcaster, store } = setup()
    const wrong: [object, RegExp][] = [
      [{ evnt: 'x' }, /no option "evnt"; there are event, durable, tx/],
      [{ visibleTo: 'admins' }, /no option "visibleTo"/],
      [{ durable: 'yes' }, /durable should be true or false, instead got "yes"/],
      [{ tx: null }, /tx should be a database client/],
      [{ tx: {} }, /tx should be a database client/],
      [{ event: 'pgbus:x' }, /event should be/],
    ]
    for (const [options, message] of wrong) {
      await t.rejects(broadcaster.broadcast('a', 'x', options as BroadcastOptions, undefined), {
        name: 'TypeError',
        message,
      })
    }
    await t.rejects(broadcaster.broadcast('a', 'x\0', {}, undefined), { code: 'PGBUS_ERR_SERIALIZATION' })
    t.strictSame([store.rows, store.notified], [[], []])
  })

  t.test('when it is too long for a notification, then one line a minute and stream says so', async t => {
    const { broadcaster, lines, pass, store } = setup({ defaultMode: 'ephemeral' })
    const long = 'x'.repeat(8_000)
    const send = (stream: string) => broadcaster.broadcast(stream, long, {}, undefined)
    await send('a')
    await send('a')
    await send('b')
    t.equal(lines.length, 2)
    pass(59_999)
    await send('a')
    t.equal(lines.length, 2)
    pass(1)
    await send('a')
    t.equal(lines.length, 3)
    t.match(lines[0], /^warn: ephemeral broadcast on "a" is 80\d\d bytes \(limit 7999\); sent durably$/)
    t.strictSame([store.rows.length, store.notified.length], [5, 0])
  })

  t.test('when it is larger than the limit, then neither way takes it', async t => {
    const { broadcaster, store } = setup({ maxPayloadBytes: 100 })
    for (const durable of [true, false])
      await t.rejects(broadcaster.broadcast('a', 'x'.repeat(100), { durable }, undefined), {
        code: 'PGBUS_ERR_PAYLOAD_TOO_LARGE',
      })
    t.strictSame([store.rows, store.notified], [[], []])
  })
})
