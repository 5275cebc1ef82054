import t from 'tap'
import { checkRoutingKey, checkTopicPattern, topicMatches, topicsOverlap } from '../../lib/core/topics.ts'

const patterns = [
  'orders',
  'orders.*',
  'orders.#',
  '#.error',
  'a.#.b',
  '*.b',
  '#',
  '*',
  '*.*',
  'lo*gs',
  'x#',
  'a*.b',
  'a.b',
  '#x',
  '*a*',
]

t.test('given patterns', async t => {
  const table: [pattern: string, matches: string[], others: string[]][] = [
    ['orders', ['orders'], ['orders.created', 'Orders', 'xorders', 'ordersx']],
    ['orders.*', ['orders.created'], ['orders', 'orders.line.added', 'ordersXcreated']],
    ['orders.#', ['orders.created', 'orders.line.added'], ['orders']],
    ['#.error', ['app.error', 'x.y.error'], ['error']],
    ['a.#.b', ['a.c.b', 'a.c.d.b'], ['a.b']],
    ['*.b', ['a.b'], ['a.a.b', 'b']],
    ['#', ['a', 'a.b'], []],
    ['lo*gs', ['loXgs'], ['logs', 'lo.gs']],
    ['x#', ['x', 'x1', 'x.y'], ['y']],
  ]
  for (const [pattern, matches, others] of table) {
    t.test(`when keys are matched with "${pattern}", then as the database does`, async t => {
      for (const key of matches) t.ok(topicMatches(pattern, key), key)
      for (const key of others) t.notOk(topicMatches(pattern, key), key)
    })
  }

  t.test('when two are compared, then they overlap exactly if some key matches both', async t => {
    const words = [
      'a',
      'b',
      'x',
      'ax',
      'xa',
      'xab',
      'orders',
      'error',
      'log',
      'loxgs',
      'aa',
      'xx',
      'axb',
      'loags',
      'bax',
    ]
    const keys = words.flatMap(one => [one, ...words.flatMap(two => [`${one}.${two}`])])
    keys.push(...words.flatMap(one => words.flatMap(two => [`a.${one}.${two}`, `orders.${one}.${two}`])))
    keys.push(...words.flatMap(one => [`${one}.x.b`, `x.${one}.error`, `a.x.${one}.b`]))
    for (const a of patterns) {
      for (const b of patterns) {
        const shared = keys.find(key => topicMatches(a, key) && topicMatches(b, key))
        t.equal(topicsOverlap(a, b), shared !== undefined, `${a} and ${b}: ${shared}`)
      }
    }
  })

  t.test('when the longest are compared, then at once', async t => {
    const long = Array.from({ length: 64 }, () => '#a').join('.')
    t.ok(topicsOverlap(long, long.replaceAll('#', '*')))
    t.notOk(topicsOverlap(`${long}b`, `${long}c`))
  })
})

t.test('given keys and patterns that are not allowed', async t => {
  const bad = ['', '.a', 'a.', 'a..b', 'a b', 'a!', 'ä', 'x'.repeat(256), 'a\n', null, 7, undefined]
  for (const value of [...bad, 'a.*', '#']) t.throws(() => checkRoutingKey(value), TypeError)
  for (const value of [...bad, '**', '##', '*#', 'a.#*']) t.throws(() => checkTopicPattern(value), TypeError)
  t.equal(checkRoutingKey('a.b-c_d.0'), 'a.b-c_d.0')
  for (const pattern of patterns) t.equal(checkTopicPattern(pattern), pattern)
})
