import t from 'tap'
import { type StreamName, streamName } from '../../lib/streams/name.ts'

t.test('given what can name a stream', async t => {
  const room = { toStreamKey: () => 'room:42' }
  const names: [StreamName, string][] = [
    ['orders', 'orders'],
    [42, '42'],
    [0, '0'],
    [room, 'room:42'],
    [['room', 42], 'room:42'],
    [['a', ['b', room], 3], 'a:b:room:42:3'],
    ['Mixed Case – ünï ✓ "quoted"', 'Mixed Case – ünï ✓ "quoted"'],
    ['x'.repeat(255), 'x'.repeat(255)],
    ['✓'.repeat(85), '✓'.repeat(85)],
    ['😀', '😀'],
  ]
  for (const [name, expected] of names) {
    t.test(`when it is ${JSON.stringify(name).slice(0, 40)}, then its text is the name`, async t => {
      t.equal(streamName(name), expected)
      t.equal(streamName(streamName(name)), expected)
    })
  }
})

t.test('given what cannot name a stream', async t => {
  const names: [string, unknown, RegExp][] = [
    ['an empty text', '', /is empty/],
    ['an empty list', [], /empty list/],
    ['a list with an empty part', ['room', ''], /a part of one, is empty/],
    ['the id of an unsaved record', ['room', undefined], /instead got undefined/],
    ['null', null, /instead got null/],
    ['NaN', Number.NaN, /instead got NaN/],
    ['a boolean', true, /instead got true/],
    ['a plain object', { id: 1 }, /instead got \{"id":1\}/],
    [
      'a key that is no text',
      { toStreamKey: () => 5 },
      /toStreamKey\(\) should return a string, instead got 5/,
    ],
    ['U+0000', 'a\0b', /cannot hold U\+0000/],
    ['half of a surrogate pair', 'a\ud800', /half of a surrogate pair/],
    ['256 bytes', 'x'.repeat(256), /at most 255 bytes.*has 256/],
    ['86 characters of three bytes', '✓'.repeat(86), /has 258/],
  ]
  for (const [what, name, message] of names) {
    t.test(`when it is ${what}, then the error says so`, async t => {
      t.throws(() => streamName(name as StreamName), {
        name: 'InvalidStreamNameError',
        code: 'PGBUS_ERR_INVALID_STREAM_NAME',
        message,
      })
    })
  }
})
