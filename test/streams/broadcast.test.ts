import t from 'tap'
import {
  Broadcaster,
  type BroadcasterOptions,
  type BroadcastOptions,
  isDurable,
} from '../../lib/streams/broadcast.ts'
import { waitFor } from '../support/wait-for.ts'
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
  const reports: string[] = []
  const broadcaster = new Broadcaster({
    store: () => store,
    config: modes(changes),
    log,
    report: (error, context) => void reports.push(`${(error as Error).message} ${JSON.stringify(context)}`),
    now: () => now,
  })
  return {
    store,
    lines,
    reports,
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
      [{ evnt: 'x' }, /no option "evnt"; there are event, durable, visibleTo/],
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

t.test('given broadcasts that replace each other', async t => {
  const coalesce = { coalesce: 20, target: 'total' }

  t.test('when several come within the window, then the latest is sent, once, as it was asked', async t => {
    const { broadcaster, store } = setup()
    for (const text of ['1', '2', '3']) {
      t.equal(await broadcaster.broadcast('a', text, { ...coalesce, exclude: `c${text}` }, undefined), null)
    }
    await broadcaster.broadcast('a', 'of another target', { ...coalesce, target: 'other' }, undefined)
    await broadcaster.broadcast('b', 'of another stream', coalesce, undefined)
    t.strictSame(store.rows, [], 'nothing before the window ends')
    await waitFor(() => store.rows.length === 3)
    t.strictSame(
      store.rows.map(({ message }) => JSON.parse(message)),
      [
        { html: '3', stream: 'a', exclude: 'c3' },
        { html: 'of another target', stream: 'a' },
        { html: 'of another stream', stream: 'b' },
      ],
    )
    await broadcaster.broadcast('a', '4', coalesce, undefined)
    await broadcaster.flush()
    t.equal(store.rows.length, 4, 'the next window works, and closing does not wait for it')
  })

  t.test('when one cannot be sent, then it is reported, and the next one is sent', async t => {
    const { broadcaster, store, reports } = setup()
    const append = t.capture(store, 'append', async () => {
      throw new Error('no database')
    })
    await broadcaster.broadcast('a', '1', coalesce, undefined)
    await waitFor(() => reports.length === 1)
    t.match(reports[0], 'no database {"action":"coalescer_flush","stream":"a","target":"total"}')
    append.restore()
    await broadcaster.broadcast('a', '2', coalesce, undefined)
    await waitFor(() => store.rows.length === 1)
  })

  t.test('when it is an ephemeral one that is too long, then it is stored', async t => {
    const { broadcaster, store, lines } = setup()
    const options = { ...coalesce, durable: false }
    await broadcaster.broadcast('a', 'short', options, undefined)
    await broadcaster.flush()
    await broadcaster.broadcast('a', 'x'.repeat(8_000), options, undefined)
    await broadcaster.flush()
    t.strictSame([store.notified.length, store.rows.length, lines.length], [1, 1, 1])
  })

  t.test('when the request cannot be meant, then it is refused before anything is sent', async t => {
    const { broadcaster } = setup()
    const cases = [
      [{ coalesce: true }, 'coalesce needs target'],
      [{ coalesce: 0, target: 'x' }, 'coalesce should be true or a number'],
      [{ coalesce: Number.POSITIVE_INFINITY, target: 'x' }, 'coalesce should be true or a number'],
      [{ coalesce: 'yes', target: 'x' }, 'coalesce should be true or a number'],
      [
        { coalesce: true, target: 'x', tx: { query: async () => ({ rows: [] }) } },
        'coalesce cannot be used with tx',
      ],
      [{ target: '' }, 'target should be'],
      [{ visibleTo: '' }, 'visibleTo should be'],
      [{ exclude: 7 }, 'exclude should be'],
    ] as const
    for (const [options, message] of cases) {
      await t.rejects(broadcaster.broadcast('a', 'x', options as never, undefined), {
        name: 'TypeError',
        message,
      })
    }
    await t.rejects(broadcaster.broadcast('a', { big: 1n }, coalesce, undefined), {
      code: 'PGBUS_ERR_SERIALIZATION',
    })
  })
})
