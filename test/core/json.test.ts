import { deepStrictEqual } from 'node:assert/strict'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import t from 'tap'
import { PayloadTooLargeError, SerializationError } from '../../lib/core/errors.ts'
import { decode, encode, encodeText, parse } from '../../lib/core/json.ts'

/** Through text, as a queue does it. */
const travel = (value: unknown): unknown => decode(parse(encodeText(value)))

class Money {
  amount = 1
}

t.test('given values that have a form in JSON or a codec', async t => {
  const cyclicFree = { shared: [1] }
  const cases: [name: string, value: unknown][] = [
    ['null', null],
    ['booleans', [true, false]],
    ['numbers', [0, 1, -1, 0.1, 1e-7, 5e-324, 1.7976931348623157e308, 2 ** 53 - 1, -(2 ** 53 - 1)]],
    ['numbers beyond exact integers', [2 ** 53, 2 ** 53 + 2, 1e21, -1e21, 1e300]],
    ['negative zero', -0],
    ['strings', ['', 'plain', 'ünïcödé', '😀', '"quoted" \\ back', '\u2028', '\u0001']],
    ['a date', new Date('2026-03-01T10:00:00.123Z')],
    ['dates far away', [new Date(8.64e15), new Date(-8.64e15)]],
    ['bigints', [0n, -1n, 2n ** 64n]],
    [
      'a map',
      new Map<unknown, unknown>([
        ['a', 1],
        [{ k: 1 }, new Set([1])],
        [new Date(0), null],
      ]),
    ],
    ['a set', new Set<unknown>(['a', 1, null, { x: 1n }])],
    ['bytes', new Uint8Array([0, 1, 254, 255])],
    ['no bytes', new Uint8Array()],
    ['a URL', new URL('https://example.com/a?b=c#d')],
    ['data that looks like a codec', { $type: 'Date', value: 'not one' }],
    ['data that looks like the escape', { $type: 'Object', value: { $type: 'Date' } }],
    ['a member called $type', { $type: 5, other: [{ $type: null }] }],
    ['names of Object.prototype', { constructor: 1, toString: 'x', hasOwnProperty: null }],
    ['one object twice', [cyclicFree, cyclicFree]],
    ['digits in strings', ['12345678901234567890', '"12345678901234567890', '\\"1234567890123456789']],
  ]
  for (const [name, value] of cases) {
    t.test(`when ${name} travels, then it arrives equal`, async () => {
      deepStrictEqual(travel(value), value)
    })
  }

  t.test('when a Buffer travels, then its bytes arrive as Uint8Array', async () => {
    deepStrictEqual(travel(Buffer.from('hello')), new Uint8Array(Buffer.from('hello')))
  })

  t.test('when undefined travels, then it is left out of objects and null elsewhere', async () => {
    deepStrictEqual(travel(undefined), null)
    deepStrictEqual(travel({ a: undefined, b: 1 }), { b: 1 })
    // biome-ignore lint/suspicious/noSparseArray: holes are the case
    deepStrictEqual(travel([undefined, , 1]), [null, null, 1])
  })

  t.test('when a lone surrogate travels, then it arrives as replacement character', async () => {
    deepStrictEqual(travel({ 'a\uD800': 'x\uDC00y' }), { 'a\uFFFD': 'x\uFFFDy' })
  })

  t.test('when objects of another realm travel, then they count as plain', async () => {
    const foreign = runInNewContext('({ list: [1, { a: 2 }], when: new Date(0), none: Object.create(null) })')
    deepStrictEqual(travel(foreign), { list: [1, { a: 2 }], when: new Date(0), none: {} })
  })

  t.test('when a proxy of plain data travels, then its data arrives', async () => {
    deepStrictEqual(travel(new Proxy({ a: [1] }, {})), { a: [1] })
  })

  t.test('when any JSON value travels, then it arrives equal', async () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), value => {
        // An own `__proto__` is refused; that has its own test.
        fc.pre(!JSON.stringify(value).includes('"__proto__"'))
        deepStrictEqual(travel(value), value)
      }),
    )
  })

  t.test('when any value of these kinds travels, then it arrives equal', async () => {
    const { node } = fc.letrec(tie => ({
      node: fc.oneof(
        { depthSize: 'small' },
        fc.double({ noNaN: true, noDefaultInfinity: true }),
        fc.bigInt(),
        fc.string(),
        fc.date({ noInvalidDate: true }),
        fc.uint8Array().map(bytes => new Uint8Array(bytes)),
        fc.array(tie('node')),
        fc.dictionary(fc.oneof(fc.constant('$type'), fc.constant('value'), fc.string()), tie('node'), {
          noNullPrototype: true,
        }),
        fc.array(fc.tuple(tie('node'), tie('node'))).map(pairs => new Map(pairs)),
        fc.array(tie('node')).map(members => new Set(members)),
      ),
    }))
    fc.assert(
      fc.property(node, value => {
        fc.pre(!JSON.stringify(encodable(value)).includes('\\u0000'))
        fc.pre(!JSON.stringify(encodable(value)).includes('__proto__'))
        deepStrictEqual(travel(value), value)
      }),
    )
  })
})

t.test('given values that cannot be stored', async t => {
  const cycle: { self?: unknown } = {}
  cycle.self = { back: cycle }
  const named = Object.assign([1], { extra: 1 })
  const deep = (levels: number) => {
    let value: unknown = 1
    for (let level = 0; level < levels; level += 1) value = [value]
    return value
  }
  const cases: [name: string, value: unknown, text: RegExp][] = [
    ['NaN', { user: { age: Number.NaN } }, /^args\.user\.age: cannot serialize NaN$/],
    ['Infinity', [1, Number.POSITIVE_INFINITY], /^args\[1\]: cannot serialize Infinity$/],
    ['a function', { user: { name() {} } }, /^args\.user\.name: cannot serialize a function$/],
    ['a symbol', [Symbol('x')], /^args\[0\]: cannot serialize a symbol$/],
    ['a symbol key', { [Symbol('x')]: 1 }, /^args\["Symbol\(x\)"\]: .*key is a symbol$/],
    ['a class instance', { price: new Money() }, /^args\.price: cannot serialize an instance of Money$/],
    ['a subclass of a built-in', new (class Dates extends Map {})(), /^args: .*instance of Dates$/],
    ['an unnamed class', new (class {})(), /^args: .*unnamed class$/],
    ['a boxed primitive', Object(1), /^args: .*instance of Number$/],
    ['an error', new TypeError('x'), /^args: .*instance of TypeError$/],
    ['a promise', Promise.resolve(), /^args: .*instance of Promise$/],
    ['another typed array', new Float64Array(1), /^args: .*instance of Float64Array$/],
    ['a proxy of a Map', new Proxy(new Map(), {}), /^args: .*class named Map$/],
    ['an invalid date', { when: new Date(Number.NaN) }, /^args\.when: cannot serialize an invalid date$/],
    ['a cycle', cycle, /^args\.self\.back: cannot serialize a cycle$/],
    ['U+0000', { 'odd key': 'a\0b' }, /^args\["odd key"\]: .*U\+0000/],
    ['U+0000 in a key', { 'a\0': 1 }, /U\+0000/],
    ['an own __proto__', JSON.parse('{"a":{"__proto__":{"admin":true}}}'), /^args\.a\.__proto__: /],
    ['an array with names', { list: named }, /^args\.list\.extra: /],
    [
      'a throwing getter',
      {
        user: {
          get name(): string {
            throw new Money()
          },
        },
      },
      /^args\.user\.name: reading/,
    ],
    [
      'a throwing proxy',
      [
        new Proxy(
          {},
          {
            ownKeys: () => {
              throw new Money()
            },
          },
        ),
      ],
      /^args\[0\]: reading/,
    ],
    ['depth 101', deep(101), /: deeper than 100 levels$/],
    ['a value in a map', new Map([['k', { f() {} }]]), /^args\["value 0"\]\.f: /],
  ]
  for (const [name, value, text] of cases) {
    t.test(`when ${name} is encoded, then the error names the path`, async t => {
      t.throws(() => encode(value), SerializationError)
      t.throws(() => encode(value), { message: text })
    })
  }

  t.test('when a value is exactly 100 levels deep, then it travels', async () => {
    deepStrictEqual(travel(deep(100)), deep(100))
  })

  t.test('when maps are nested 100 levels, then they travel', async () => {
    let maps: unknown = 1
    for (let level = 0; level < 100; level += 1) maps = new Map([[1, maps]])
    deepStrictEqual(travel(maps), maps)
  })

  t.test('when the text is above the limit, then size and limit are named', async t => {
    t.throws(() => encodeText('x'.repeat(100), { maxBytes: 100 }), PayloadTooLargeError)
    t.throws(() => encodeText(['é'.repeat(60)], { maxBytes: 100 }), { message: /124 bytes.*limit is 100/ })
    t.equal(encodeText('x'.repeat(98), { maxBytes: 100 }).length, 100)
    const huge: unknown[] = []
    huge[4_000_000_000] = 1
    t.throws(() => encode(huge), PayloadTooLargeError, 'before anything is allocated')
  })

  t.test('when only plain JSON is wanted, then codecs are refused and $type is data', async t => {
    t.throws(() => encode({ when: new Date(0) }, { plain: true, root: 'headers' }), {
      message: /^headers\.when: .*Date/,
    })
    t.same(decode(encode({ $type: 'x' }, { plain: true }), { plain: true }), { $type: 'x' })
  })
})

t.test('given messages of other writers', async t => {
  t.test('when integers are beyond 2^53, then they become bigint', async () => {
    deepStrictEqual(
      parse('{"a":9007199254740993,"b":[-12345678901234567890],"c":"12345678901234567890","d":1}'),
      { a: 9007199254740993n, b: [-12345678901234567890n], c: '12345678901234567890', d: 1 },
    )
  })

  t.test('when integers are long but exact, or no integers, then they stay numbers', async () => {
    deepStrictEqual(
      parse('[9007199254740991,-9007199254740991,1234567890123456.5,1234567890123456e2]'),
      [9007199254740991, -9007199254740991, 1234567890123456.5, 123456789012345600],
    )
  })

  t.test('when strings imitate the marks of the parser, then they stay strings', async () => {
    deepStrictEqual(parse('["integer 0:12345678901234567890",12345678901234567890]'), [
      'integer 0:12345678901234567890',
      12345678901234567890n,
    ])
    deepStrictEqual(parse('["\\u0069nteger 0:1",12345678901234567890,"\\\\",12345678901234567890]'), [
      'integer 0:1',
      12345678901234567890n,
      '\\',
      12345678901234567890n,
    ])
  })

  t.test('when an object has an own __proto__, then it is dropped and harms nobody', async t => {
    const decoded = decode(parse('{"__proto__":{"admin":true},"a":{"__proto__":1,"b":2}}'))
    deepStrictEqual(decoded, { a: { b: 2 } })
    t.equal(({} as { admin?: boolean }).admin, undefined)
    t.equal((decoded as { admin?: boolean }).admin, undefined)
  })

  for (const json of [
    '{"$type":"Temporal","value":1}',
    '{"$type":"__proto__","value":1}',
    '{"$type":7,"value":1}',
    '{"$type":"Date","value":"yesterday"}',
    '{"$type":"Date"}',
    '{"$type":"Date","value":"2026-03-01T10:00:00.000Z","more":1}',
    '{"$type":"BigInt","value":"0x10"}',
    '{"$type":"Number","value":"Infinity"}',
    '{"$type":"Map","value":[[1]]}',
    '{"$type":"Set","value":{}}',
    '{"$type":"Uint8Array","value":[1]}',
    '{"$type":"URL","value":"::"}',
    '{"$type":"Object","value":[]}',
  ]) {
    t.test(`when ${json} is decoded, then it is refused with its path`, async t => {
      t.throws(() => decode(parse(`{"a":[${json}]}`)), SerializationError)
      t.throws(() => decode(parse(`{"a":[${json}]}`)), { message: /^args\.a\[0\]: / })
    })
  }

  t.test('when arrays are nested 100000 levels, then it is refused, not a stack overflow', async t => {
    t.throws(() => decode(parse(`${'['.repeat(100_000)}${']'.repeat(100_000)}`)), SerializationError)
  })

  t.test('when the text is no JSON, then the error does not quote it', async t => {
    t.throws(() => parse('{"password":"hunter2"', 'message'), { message: 'message: not JSON' })
  })
})

/** A value's members in a form that JSON.stringify shows completely. */
function encodable(value: unknown): unknown {
  if (value instanceof Map) return [...value].map(encodable)
  if (value instanceof Set) return [...value].map(encodable)
  if (Array.isArray(value)) return value.map(encodable)
  if (typeof value === 'bigint') return String(value)
  if (
    typeof value === 'object' &&
    value !== null &&
    !(value instanceof Date) &&
    !(value instanceof Uint8Array)
  ) {
    return Object.entries(value).map(encodable)
  }
  return value
}
