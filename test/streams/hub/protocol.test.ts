import fc from 'fast-check'
import t from 'tap'
import { HubProtocolError } from '../../../lib/core/errors.ts'
import {
  encodeFrame,
  type Frame,
  FrameDecoder,
  maxFrameBytes,
  parseFrame,
} from '../../../lib/streams/hub/protocol.ts'

const number = fc.nat()
const name = fc.string({ minLength: 1, maxLength: 15, unit: 'binary' }).filter(text => !text.includes('\0'))
// Well formed: JSON escapes half a surrogate pair, and gives it back as it was.
const anyText = fc.string({ unit: 'binary' })
const frame: fc.Arbitrary<Frame> = fc.oneof(
  fc.record({ t: fc.constant('hello' as const), v: number, pid: number, index: number, phase: number }),
  fc.record({ t: fc.constant('sub' as const), q: name, i: number }),
  fc.record({ t: fc.constant('unsub' as const), q: name }),
  fc.record({ t: fc.constant('ack' as const), q: name, i: number }),
  fc.record({ t: fc.constant('nack' as const), q: name, i: number, reason: anyText }),
  fc.record({ t: fc.constant('wake' as const), q: name, p: fc.option(anyText) }),
  fc.record({ t: fc.constant('status' as const), healthy: fc.boolean() }),
  fc.record({ t: fc.constant('bye' as const), reason: anyText }),
)

/** Decodes bytes given in the pieces that `cuts` makes of them. */
function decode(bytes: Buffer, cuts: readonly number[] = []): unknown[] {
  const values: unknown[] = []
  const decoder = new FrameDecoder(value => values.push(value))
  let from = 0
  for (const cut of [...cuts.map(n => n % (bytes.length + 1)).sort((a, b) => a - b), bytes.length]) {
    decoder.push(bytes.subarray(from, cut))
    from = cut
  }
  return values
}

function framed(body: Buffer | string): Buffer {
  const bytes = Buffer.from(body as string)
  const header = Buffer.alloc(4)
  header.writeUInt32BE(bytes.length)
  return Buffer.concat([header, bytes])
}

/** A failing run prints its seed and path; fast-check's own message carries both. */
function check<T extends [unknown, ...unknown[]]>(property: fc.IPropertyWithHooks<T>, numRuns: number): void {
  fc.assert(property, { numRuns })
}

t.test('given frames on a byte stream', async t => {
  t.test('when the stream is split anywhere, then the same frames come out', async () => {
    check(
      fc.property(
        fc.array(frame, { maxLength: 8 }),
        fc.array(fc.nat(), { maxLength: 20 }),
        (frames, cuts) => {
          const decoded = decode(Buffer.concat(frames.map(encodeFrame)), cuts)
          const parsed = decoded.map(value => parseFrame(value as Record<string, unknown>))
          return JSON.stringify(parsed) === JSON.stringify(frames)
        },
      ),
      3_000,
    )
  })

  t.test('when it comes byte by byte, then multi-byte characters survive', async t => {
    const bytes = encodeFrame({ t: 'wake', q: 'pgbus.s.1', p: 'naïve 日本 🚀 \u2028' })
    t.same(
      decode(
        bytes,
        Array.from(bytes, (_, n) => n),
      ),
      [{ t: 'wake', q: 'pgbus.s.1', p: 'naïve 日本 🚀 \u2028' }],
    )
  })

  t.test('when the stream ends inside a frame, then that frame never was', async t => {
    const bytes = Buffer.concat([
      encodeFrame({ t: 'status', healthy: true }),
      encodeFrame({ t: 'bye', reason: 'x' }),
    ])
    t.same(decode(bytes.subarray(0, bytes.length - 1)), [{ t: 'status', healthy: true }])
  })

  t.test('when a frame has exactly the largest size, then it passes; one byte more does not', async t => {
    const body = `{"t":"bye","reason":"${'x'.repeat(maxFrameBytes - 23)}"}`
    t.equal(Buffer.byteLength(body), maxFrameBytes)
    t.equal(decode(framed(body), [5, 70_000]).length, 1)
    t.throws(() => decode(framed(`${body} `)), HubProtocolError)
    t.throws(() => encodeFrame({ t: 'bye', reason: 'x'.repeat(maxFrameBytes) }), HubProtocolError)
  })
})

t.test('given hostile bytes', async t => {
  for (const [what, bytes] of [
    ['an announced length of 0', Buffer.from([0, 0, 0, 0])],
    ['an announced length above the limit', Buffer.from([0, 0x40, 0, 1])],
    ['the largest length there is', Buffer.from([0xff, 0xff, 0xff, 0xff])],
    ['bytes that are not UTF-8', framed(Buffer.from([0x7b, 0x22, 0xc3, 0x28, 0x22, 0x3a, 0x31, 0x7d]))],
    ['text that is not JSON', framed('{"t":')],
    ['an array', framed('[1]')],
    ['null', framed('null')],
    ['a string', framed('"sub"')],
  ] as const) {
    t.test(`when there is ${what}, then it is a protocol error`, async t => {
      t.throws(() => decode(bytes), HubProtocolError)
    })
  }

  t.test('when the bytes are random, then nothing but protocol errors is thrown', async () => {
    const small = fc.uint8Array({ maxLength: 64 }).map(body => framed(Buffer.from(body)))
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 200 }).map(b => Buffer.from(b)),
      fc.array(fc.oneof(small, frame.map(encodeFrame)), { maxLength: 5 }).map(parts => Buffer.concat(parts)),
      fc.json().map(framed),
    )
    check(
      fc.property(bytes, fc.array(fc.nat(), { maxLength: 5 }), (input, cuts) => {
        try {
          for (const value of decode(input, cuts)) parseFrame(value as Record<string, unknown>)
        } catch (error) {
          if (!(error instanceof HubProtocolError)) throw error
        }
      }),
      5_000,
    )
  })
})

t.test('given a decoded object', async t => {
  t.test('when its type is unknown or it has more fields, then that is no error', async t => {
    t.equal(parseFrame({ t: 'later' }), null)
    t.same(parseFrame({ t: 'status', healthy: true, more: 1 }), { t: 'status', healthy: true })
  })

  t.test('when a field of a known type is missing or wrong, then it is a protocol error', async t => {
    for (const value of [
      {},
      { t: 1 },
      { t: 'hello', v: 1, pid: 1, index: -1, phase: 0 },
      { t: 'hello', v: '1', pid: 1, index: 0, phase: 0 },
      { t: 'sub', q: 'a' },
      { t: 'sub', q: '', i: 0 },
      { t: 'sub', q: 'a\0b', i: 0 },
      { t: 'sub', q: 'ä'.repeat(32), i: 0 },
      { t: 'sub', q: 'a', i: 1.5 },
      { t: 'wake', q: 'a' },
      { t: 'wake', q: 'a', p: 1 },
      { t: 'status', healthy: 'yes' },
      { t: 'nack', q: 'a', i: 1 },
      { t: 'bye' },
    ]) {
      t.throws(() => parseFrame(value), HubProtocolError, JSON.stringify(value))
    }
  })
})
