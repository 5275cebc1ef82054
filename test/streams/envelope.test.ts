import t from 'tap'
import {
  type BroadcastPayload,
  decodeEnvelope,
  encodeEnvelope,
  isMeantFor,
} from '../../lib/streams/envelope.ts'

const maxBytes = 1_048_576

function encode(payload: unknown, event?: string, nonce?: string): unknown {
  return JSON.parse(
    encodeEnvelope({ stream: 'room:42', payload: payload as BroadcastPayload, event, nonce }, maxBytes),
  )
}

t.test('given a payload', async t => {
  t.test('when it is text, then the envelope has it and the stream', async t => {
    t.strictSame(encode('<p>hi</p>'), { html: '<p>hi</p>', stream: 'room:42' })
    t.strictSame(encode(''), { html: '', stream: 'room:42' })
  })

  t.test('when it is anything else, then its JSON is sent as the event json', async t => {
    t.strictSame(encode({ a: [1, null, { b: 'x' }] }), {
      html: '{"a":[1,null,{"b":"x"}]}',
      stream: 'room:42',
      event: 'json',
    })
    for (const payload of [7, false, null, [], new Date(0)])
      t.match(encode(payload), { html: JSON.stringify(payload), event: 'json' })
  })

  t.test('when an event is named, then it is kept, except the default one', async t => {
    t.match(encode({ a: 1 }, 'order'), { event: 'order' })
    t.match(encode('x', 'a.B-c_d:9'), { event: 'a.B-c_d:9' })
    t.notOk(Object.hasOwn(encode('x', 'turbo-stream') as object, 'event'))
  })

  t.test('when a nonce is given, then the text differs', async t => {
    t.match(encode('x', undefined, 'c0ffee00'), { n: 'c0ffee00' })
  })

  t.test('when text holds half of a surrogate pair, then it becomes U+FFFD', async t => {
    t.match(encode('a\ud83dz'), { html: 'a\ufffdz' })
  })

  t.test('when it cannot be stored, then the error says so', async t => {
    const circular: Record<string, unknown> = {}
    circular.self = circular
    for (const payload of ['a\0b', circular, 1n, undefined, () => 1, Symbol('x')])
      t.throws(() => encode(payload), { code: 'PGBUS_ERR_SERIALIZATION' }, String(typeof payload))
    t.match(encode({ a: '\0' }), { html: '{"a":"\\u0000"}' }, 'escaped, so it is plain text to PostgreSQL')
  })
})

t.test('given an event name that cannot be used', async t => {
  const names = [
    ...['', ' ', 'a b', 'a\nb', 'ü', 'x'.repeat(65), 'pgbus:x', 'pgbus:'],
    ...[
      'open',
      'close',
      'error',
      'message',
      'connected',
      'event',
      'shutdown',
      'gap-detected',
      'replay-start',
      'replay-end',
    ],
  ]
  for (const name of [...names, 5, null, {}]) {
    t.test(`when it is ${JSON.stringify(name)}, then it is a TypeError`, async t => {
      t.throws(() => encode('x', name as string), { name: 'TypeError', message: /^event should be/ })
    })
  }
})

t.test('given a limit', async t => {
  t.test('when the wrapped JSON has as many bytes, then it passes; with one more it does not', async t => {
    const wrapped = (length: number) =>
      encodeEnvelope({ stream: 's', payload: 'é'.repeat(length), event: undefined }, 100)
    const overhead = Buffer.byteLength(JSON.stringify({ html: '', stream: 's' }))
    const fits = Math.floor((100 - overhead) / 2)
    t.equal(Buffer.byteLength(wrapped(fits)), overhead + 2 * fits)
    t.throws(() => wrapped(fits + 1), {
      code: 'PGBUS_ERR_PAYLOAD_TOO_LARGE',
      message: new RegExp(`on "s" is ${overhead + 2 * (fits + 1)} bytes, the limit is 100`),
    })
  })
})

t.test('given a stored text', async t => {
  t.test('when it is an envelope, then it is read', async t => {
    t.match(decodeEnvelope('{"html":"x","stream":"a","event":"e","more":1}'), { html: 'x', event: 'e' })
  })
  for (const text of ['', 'x', '1', 'null', '[]', '{}', '{"html":1}', '"html"']) {
    t.test(`when it is ${text || 'empty'}, then it is none`, async t => {
      t.equal(decodeEnvelope(text), undefined)
    })
  }
  t.test('when it names another stream, then it is not meant for this one', async t => {
    t.equal(isMeantFor('a', { html: '', stream: 'a' }), true)
    t.equal(isMeantFor('a', { html: '' }), true)
    t.equal(isMeantFor('a', { html: '', stream: 'b' }), false)
    t.equal(isMeantFor('1', { html: '', stream: 1 }), false)
  })
})
