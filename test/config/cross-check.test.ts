import { pino } from 'pino'
import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig, resolveLayers, validateConfig } from '../../lib/config/resolve.ts'

const warningsOf = (config: PgbusConfig, env: NodeJS.ProcessEnv = {}) =>
  resolveLayers({ overrides: config, env, file: {} }).warnings.map(({ path, rule }) => `${path} ${rule}`)

t.test('given the timeouts of a shutdown', async t => {
  t.test('when only drainTimeout is raised, then shutdownTimeout follows', async t => {
    t.equal(resolveConfig({ drainTimeout: '120s' }, {}).shutdownTimeout, 125_000)
    t.equal(resolveConfig({ drainTimeout: '120s', shutdownTimeout: null }, {}).shutdownTimeout, 125_000)
  })

  t.test('when shutdownTimeout is below drainTimeout, then there is one warning', async t => {
    t.strictSame(warningsOf({ drainTimeout: '60s', shutdownTimeout: '10s' }), [
      'shutdownTimeout is below drainTimeout; workers will be killed while they drain',
    ])
    t.strictSame(warningsOf({ drainTimeout: '60s' }), [])
  })
})

t.test('given values that fit each other badly', async t => {
  const cases: [config: PgbusConfig, warning: string][] = [
    [{ retry: { base: '10m' } }, 'retry.base is greater than retry.max'],
    [{ priority: { levels: 3, default: 3 } }, 'priority.default is clamped to 2'],
    [
      { pool: { size: 2 }, workers: 'a: 4; b: 8' },
      'pool.size is below a concurrency of 8; work will queue for connections',
    ],
    [
      { workers: [{ queues: ['a'], concurrency: 100 }] },
      'pool.size is automatic; the workers of one host may open 100 connections',
    ],
    [
      { workers: [{ queues: ['a'], concurrency: 20, processes: 3 }] },
      'pool.size is automatic; the workers of one host may open 60 connections',
    ],
    [
      { log: { format: 'json', logger: pino({ enabled: false }) } },
      'log.format is ignored, because log.logger is given',
    ],
  ]
  for (const [config, warning] of cases)
    t.test(`when ${warning.split(' ')[0]} is one, then it is only a warning`, async t => {
      t.strictSame(warningsOf(config), [warning])
    })

  t.test('when they fit, then there is none', async t => {
    t.strictSame(warningsOf({ priority: { levels: 1, default: 5 } }), [])
    t.strictSame(warningsOf({ priority: { levels: 3, default: 0 }, workers: 'a: 50' }), [])
    t.strictSame(warningsOf({ pool: { size: 100 }, workers: 'a: 100' }), [])
  })
})

t.test('given no secret for streams', async t => {
  t.test('when it is production, then there is a warning unless streams are off', async t => {
    const env = { NODE_ENV: 'production' }
    t.strictSame(warningsOf({}, env), ['streams.secret is not set; streams cannot be served'])
    t.strictSame(warningsOf({ streams: { enabled: false } }, env), [])
    t.strictSame(warningsOf({ streams: { secret: 'sixteen-letters!' } }, env), [])
    t.strictSame(warningsOf({}), [])
  })
})

t.test('given queue names', async t => {
  t.test('when one is too long with its prefix and suffix, then both lengths are said', async t => {
    const name = 'a'.repeat(38)
    const [issue, ...others] = validateConfig({ workers: [{ queues: ['ok', name] }] }).issues
    t.strictSame(others, [])
    t.match(issue, {
      path: 'workers[0].queues',
      rule: `queue "${name}" becomes "pgbus_${name}_dlq" (48 characters, the limit is 47)`,
    })
  })

  t.test('when one has the longest length, then it is accepted', async t => {
    t.strictSame(validateConfig({ defaultQueue: 'a'.repeat(37) }).issues, [])
  })

  t.test('when it is the default queue of the default worker, then it is one issue', async t => {
    const { issues } = validateConfig({ defaultQueue: 'a'.repeat(38) })
    t.strictSame(
      issues.map(issue => issue.path),
      ['defaultQueue'],
    )
  })

  t.test('when the prefix is long, then it counts', async t => {
    t.match(validateConfig({ queuePrefix: 'p'.repeat(40) }).issues, [{ path: 'defaultQueue' }])
  })

  t.test('when one ends like a table of ours, then nobody would work on it', async t => {
    t.match(validateConfig({ workers: 'mail_dlq' }).issues[0]?.rule, /ends like a dead-letter queue/)
    t.match(
      validateConfig({ workers: 'mail_p1', priority: { levels: 3 } }).issues[0]?.rule,
      /ends like a priority level/,
    )
    t.strictSame(validateConfig({ workers: 'mail_p1' }).issues, [])
  })
})
