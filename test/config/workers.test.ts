import t from 'tap'
import { parseWorkers } from '../../lib/config/capsules.ts'
import { resolveConfig, validateConfig } from '../../lib/config/resolve.ts'

t.test('given the string form', async t => {
  const cases: [text: string, entries: [name: string | null, queues: string[], concurrency: number][]][] = [
    [
      'critical: 5; default: 10',
      [
        ['critical', ['critical'], 5],
        ['default', ['default'], 10],
      ],
    ],
    ['critical, default: 5', [['critical', ['critical', 'default'], 5]]],
    [
      'default: 5; default: 3',
      [
        [null, ['default'], 5],
        [null, ['default'], 3],
      ],
    ],
    [
      'a; b;',
      [
        ['a', ['a'], 5],
        ['b', ['b'], 5],
      ],
    ],
    [
      '  a ,b :7 ;c:  1',
      [
        ['a', ['a', 'b'], 7],
        ['c', ['c'], 1],
      ],
    ],
    ['staging_*: 3', [['staging_*', ['staging_*'], 3]]],
    [
      '*: 3; *: 3',
      [
        [null, ['*'], 3],
        [null, ['*'], 3],
      ],
    ],
    ['critical, *', [['critical', ['critical', '*'], 5]]],
    [
      'a, b; b, a',
      [
        ['a', ['a', 'b'], 5],
        ['b', ['b', 'a'], 5],
      ],
    ],
  ]
  for (const [text, entries] of cases)
    t.test(`when it is ${JSON.stringify(text)}, then it is read`, async t => {
      t.strictSame(
        parseWorkers(text).map(entry => [entry.name, entry.queues, entry.concurrency]),
        entries,
      )
    })

  const broken: [text: unknown, message: RegExp][] = [
    [5, /must be a string .*got number/],
    ['', /is blank/],
    ['  ', /is blank/],
    [';a', /empty worker/],
    ['a;;b', /empty worker/],
    [': 5', /": 5" names no queue/],
    ['a:', /"a:" has no number/],
    ['a: many', /"a: many": "many" is not a number/],
    ['a: -1', /not a number/],
    ['a: 0', /at least one/],
    ['a:b: 5', /queue "a:b" may contain only/],
    ['a-b', /queue "a-b" may contain only/],
    ['a,,b', /empty queue name/],
    ['a, b, a', /lists "a" twice/],
    ['a*b', /queue "a\*b" may contain only .* and end with \*/],
    ['**', /queue "\*\*" may contain only/],
    ['*, *', /lists "\*" twice/],
  ]
  for (const [text, message] of broken)
    t.test(`when it is ${JSON.stringify(text)}, then the part at fault is named`, async t => {
      t.throws(() => parseWorkers(text as string), {
        name: 'CapsuleParseError',
        code: 'PGBUS_ERR_CAPSULE_PARSE',
        message,
      })
    })

  t.test('when it is broken in a configuration, then it is one issue with the message as hint', async t => {
    const { issues } = validateConfig({ workers: 'a: 0' })
    t.equal(issues.length, 1)
    t.match(issues[0], { path: 'workers', hint: /at least one job/ })
  })

  t.test('when queues overlap, then that is no problem', async t => {
    t.strictSame(validateConfig({ workers: 'critical, default: 5; default: 10' }).issues, [])
    t.equal(resolveConfig({ workers: 'default: 5; default: 3' }, {}).workers.length, 2)
  })

  t.test('when a connection URL stands there by mistake, then its password is not shown', async t => {
    t.notMatch(JSON.stringify(validateConfig({ workers: 'postgres://u:hunter2@h/d' })), /hunter2/)
  })
})

t.test('given entries', async t => {
  t.test('when they come from JSON, then they are as good as literals', async t => {
    const workers = JSON.parse('[{"queues":["Mail"],"name":"m","concurrency":2,"processes":3}]') as []
    t.match(resolveConfig({ workers }, {}).workers, [
      { queues: ['mail'], name: 'm', concurrency: 2, processes: 3 },
    ])
  })

  t.test('when they say how to claim, then each option is kept', async t => {
    const workers = [
      {
        queues: ['Mail_*', '*'],
        order: 'fair',
        prefetchLimit: 3,
        groupMode: 'round_robin',
        singleActiveConsumer: true,
        consumerPriority: -1,
      },
    ]
    t.match(resolveConfig({ workers: JSON.parse(JSON.stringify(workers)) }, {}).workers, [
      { ...workers[0], queues: ['mail_*', '*'], groupMode: 'roundRobin' },
    ])
  })

  t.test('when they do not say it, then the keys of the whole configuration hold', async t => {
    const config = { prefetchLimit: 2, groupMode: 'fifo' as const }
    const workers = [{ queues: ['a'] }, { queues: ['b'], prefetchLimit: null, groupMode: null }]
    t.match(resolveConfig({ ...config, workers }, {}).workers, [
      config,
      { prefetchLimit: null, groupMode: null },
    ])
  })

  const broken: [workers: unknown, path: string, rule: string | RegExp][] = [
    [5, 'workers', 'must be a string, an array of entries, or null'],
    [{ queues: ['a'] }, 'workers', 'must be a string, an array of entries, or null'],
    [['a: 5'], 'workers', 'entry 0 must be an object'],
    [[{}], 'workers[0].queues', 'must be a non-empty array'],
    [[{ queues: 'a' }], 'workers[0].queues', 'must be a non-empty array'],
    [[{ queues: ['a'] }, { queues: ['b', ''] }], 'workers[1].queues[1]', 'must be a non-empty string'],
    [[{ queues: ['a', 'A'] }], 'workers[0].queues', 'lists "a" twice'],
    [[{ queues: ['a*b'] }], 'workers[0].queues[0]', /may contain only .* and end with \*/],
    [[{ queues: ['a-b'] }], 'workers[0].queues[0]', /may contain only letters, digits and underscores/],
    [[{ queues: ['a'], order: 'first' }], 'workers[0].order', 'must be one of strict, fair'],
    [[{ queues: ['a'], prefetchLimit: 0 }], 'workers[0].prefetchLimit', /positive integer or null/],
    [[{ queues: ['a'], groupMode: 'both' }], 'workers[0].groupMode', /fifo, roundRobin/],
    [[{ queues: ['a'], singleActiveConsumer: 1 }], 'workers[0].singleActiveConsumer', /true or false/],
    [[{ queues: ['a'], consumerPriority: 0.5 }], 'workers[0].consumerPriority', 'must be an integer'],
    [[{ queues: ['a'], concurrency: 0 }], 'workers[0].concurrency', 'must be a positive integer'],
    [[{ queues: ['a'], concurrency: '5' }], 'workers[0].concurrency', 'must be a positive integer'],
    [[{ queues: ['a'], processes: 1.5 }], 'workers[0].processes', 'must be a positive integer'],
    [[{ queues: ['a'], name: ' ' }], 'workers[0].name', 'must be a non-empty string'],
    [[{ queues: ['a'], threads: 5 }], 'workers[0].threads', 'unknown key'],
    [
      [
        { queues: ['a'], name: 'n' },
        { queues: ['b'], name: 'n' },
      ],
      'workers',
      'duplicate worker name "n"',
    ],
    [
      [
        { queues: ['a', 'c'], name: 'x' },
        { queues: ['b', 'c'], name: 'y' },
      ],
      'workers',
      'worker "y" overlaps worker "x" on queue "c"',
    ],
  ]
  for (const [workers, path, rule] of broken)
    t.test(`when they are ${JSON.stringify(workers)}, then the entry is named`, async t => {
      const { issues } = validateConfig({ workers })
      t.equal(issues.length, 1)
      t.match(issues[0], { path, rule })
    })

  t.test('when one of two that overlap has no name, then that is no problem', async t => {
    const { issues } = validateConfig({ workers: [{ queues: ['a'], name: 'x' }, { queues: ['a'] }] })
    t.strictSame(issues, [])
  })
})
