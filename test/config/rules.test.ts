import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { validateConfig } from '../../lib/config/resolve.ts'
import { keyByPath } from '../../lib/config/schema.ts'

/** A configuration with one key. */
function at(path: string, value: unknown): PgbusConfig {
  return path.split('.').reduceRight<unknown>((inner, part) => ({ [part]: inner }), value) as PgbusConfig
}

const positive = 'must be a positive duration such as "30s" or a number of milliseconds'
const zeroOrMore = 'must be a duration of zero or more'
const orNull = 'must be a positive duration or null to disable'
const tooLong = 'must be at most 2147483647 milliseconds (24 days)'

const accepted: [path: string, given: unknown, resolved: unknown][] = [
  ['drainTimeout', '250ms', 250],
  ['drainTimeout', '1.5s', 1_500],
  ['drainTimeout', '30 S', 30_000],
  ['drainTimeout', '5m', 300_000],
  ['drainTimeout', '1h', 3_600_000],
  ['drainTimeout', '2d', 172_800_000],
  ['drainTimeout', '1w', 604_800_000],
  ['drainTimeout', 2_147_483_647, 2_147_483_647],
  ['visibilityTimeout', '52w', 31_449_600_000],
  ['visibilityTimeout', 1_200, 2_000],
  ['retry.base', '1s', 1_000],
  ['databaseWait', 0, 0],
  ['readTimeout', null, null],
  ['pollingInterval', 10, 10],
  ['pool.size', 1, 1],
  ['pool.size', null, null],
  ['maxRetries', 0, 0],
  ['priority.levels', 10, 10],
  ['priority.levels', null, null],
  ['priority.default', 0, 0],
  ['retry.jitter', 0, 0],
  ['retry.jitter', 1, 1],
  ['connection.port', 65_535, 65_535],
  ['connection.port', null, null],
  ['web.port', 0, 0],
  ['web.workers', 0, 0],
  ['connection.host', '/var/run/postgresql', '/var/run/postgresql'],
  ['connection.ssl', { rejectUnauthorized: false }, { rejectUnauthorized: false }],
  ['connection.variables', { 'app.tenant': 'a', work_mem: 4 }, { 'app.tenant': 'a', work_mem: 4 }],
  ['databaseUrl', 'postgres://h/d', 'postgres://h/d'],
  ['databaseUrl', 'POSTGRESQL://h/d', 'POSTGRESQL://h/d'],
  ['databaseUrl', 'postgres:///d?host=/tmp', 'postgres:///d?host=/tmp'],
  ['databaseUrl', 'postgres://u:p@/d?host=/tmp', 'postgres://u:p@/d?host=/tmp'],
  ['requirePrimary', true, true],
  ['log.level', 'silent', 'silent'],
  ['streams.secret', 'sixteen-letters!', ['sixteen-letters!']],
  ['streams.secret', ['sixteen-letters!', 'another-sixteen!'], ['sixteen-letters!', 'another-sixteen!']],
  ['streams.secret', null, []],
  ['streams.durablePatterns', ['orders', '/^news/i', /x/], ['orders', /^news/i, /x/]],
  ['streams.maxBufferedBytes', 0, 0],
  ['imports', ['./jobs.ts'], ['./jobs.ts']],
]

const refused: [path: string, given: unknown, rule: string][] = [
  ...[
    0,
    -1,
    Number.NaN,
    Number.POSITIVE_INFINITY,
    10n,
    true,
    new Date(0),
    '',
    '5',
    '5 s m',
    '-5s',
    's',
    [],
    null,
  ].map(value => ['drainTimeout', value, positive] as [string, unknown, string]),
  ['drainTimeout', '0s', positive],
  ['drainTimeout', 2_147_483_648, tooLong],
  ['streams.idleTimeout', '52w', tooLong],
  ['shutdownTimeout', Number.POSITIVE_INFINITY, orNull],
  ['shutdownTimeout', Number.NaN, orNull],
  ['readTimeout', 0, orNull],
  ['databaseWait', -1, zeroOrMore],
  ['visibilityTimeout', 0, positive],
  ['visibilityTimeout', '999ms', 'must be at least 1s'],
  ['retry.base', 5, 'must be at least 1s'],
  ...[0, -1, 1.5, '5', Number.NaN, 2 ** 53].map(
    value => ['pool.size', value, 'must be a positive integer or null'] as [string, unknown, string],
  ),
  ['streams.pool.size', null, 'must be a positive integer'],
  ['maxRetries', -1, 'must be an integer of zero or more'],
  ['priority.levels', 0, 'must be an integer between 1 and 10 or null'],
  ['priority.levels', 11, 'must be an integer between 1 and 10 or null'],
  ['retry.jitter', 1.1, 'must be between 0 and 1'],
  ['retry.jitter', '0.1', 'must be between 0 and 1'],
  ['connection.port', 0, 'must be an integer between 1 and 65535 or null'],
  ['connection.port', '5432', 'must be an integer between 1 and 65535 or null'],
  ['web.port', 65_536, 'must be an integer between 0 and 65535'],
  ['web.workers', -1, 'must be an integer of zero or more or "auto"'],
  ['web.workers', 'many', 'must be an integer of zero or more or "auto"'],
  ['queuePrefix', '', 'must be a non-empty string'],
  ['queuePrefix', ' ', 'must be a non-empty string'],
  ['queuePrefix', 'my-app', 'may contain only letters, digits and underscores'],
  ['defaultQueue', 'a b', 'may contain only letters, digits and underscores'],
  ['connection.applicationName', 'a'.repeat(64), 'must be at most 63 bytes'],
  ['streams.applicationName', 'é'.repeat(26), 'must be at most 50 bytes'],
  ['streams.path', 'events', 'must start with "/"'],
  ['web.hubSocket', `/${'a'.repeat(100)}`, 'is too long for a Unix socket path'],
  ['requirePrimary', 1, 'must be true or false'],
  ['requirePrimary', 'true', 'must be true or false'],
  ['requirePrimary', null, 'must be true or false'],
  ['connection.gucMode', 'plain', 'must be one of: options, session'],
  ['log.format', null, 'must be one of: auto, text, json'],
  ['databaseUrl', 'mysql://h/d', 'must be a postgres:// URL'],
  ['databaseUrl', 'host=h dbname=d', 'must be a postgres:// URL'],
  ['databaseUrl', 'postgres://u:p/w@h/d', 'must be a postgres:// URL'],
  ['databaseUrl', '', 'must be a non-empty string'],
  ['connection.password', 5, 'must be a non-empty string or a function'],
  ['connection.ssl', 'require', 'must be an object or true or false'],
  ['connection.variables', { 'bad name': 1 }, '"bad name" is not a PostgreSQL setting name'],
  ['connection.variables', { work_mem: null }, '"work_mem" must be a string, a number or a boolean'],
  ['streams.secret', 'short', 'must be at least 16 characters'],
  ['streams.secret', ['sixteen-letters!', 'short'], 'must be at least 16 characters'],
  ['streams.durablePatterns', 'orders', 'must be an array of strings or regular expressions'],
  ['streams.durablePatterns', ['/(/'], 'must be an array of strings or regular expressions'],
  ['imports', './jobs.ts', 'must be an array of non-empty strings'],
  ['log.logger', { info() {} }, 'must be a pino-compatible logger'],
  ['errorReporters', [1], 'must be an array of functions'],
]

t.test('given a value that a key takes', async t => {
  for (const [path, given, resolved] of accepted) {
    t.test(`when ${path} is ${String(JSON.stringify(given))}, then nothing is wrong`, async t => {
      t.strictSame(validateConfig(at(path, given)).issues, [])
      const checked = keyByPath.get(path)?.rule.check(given)
      t.strictSame(checked && 'value' in checked && checked.value, resolved)
    })
  }
})

t.test('given a value that a key does not take', async t => {
  for (const [path, given, rule] of refused) {
    t.test(`when ${path} is ${typeof given} ${String(given)}, then it is refused by name`, async t => {
      const { issues } = validateConfig(at(path, given))
      t.equal(issues.length, 1)
      t.match(issues[0], { path, rule })
    })
  }
})

t.test('given numbers that are probably seconds', async t => {
  t.test('when a whole second is required, then the hint writes it out', async t => {
    const { issues } = validateConfig({ visibilityTimeout: 30 })
    t.equal(issues[0]?.hint, 'numbers are milliseconds, write "30s"')
  })

  t.test('when the default is a second or more, then there is a warning and the value counts', async t => {
    const { issues, warnings } = validateConfig({ drainTimeout: 30 })
    t.strictSame(issues, [])
    t.match(warnings[0], {
      path: 'drainTimeout',
      rule: 'is 30 milliseconds; numbers are milliseconds, write "30s" if you meant seconds',
    })
  })

  t.test('when the default is below a second, or the value is a string, then there is none', async t => {
    t.strictSame(validateConfig({ pollingInterval: 50, drainTimeout: '50ms', databaseWait: 0 }).warnings, [])
  })
})

t.test('given connection settings as one string', async t => {
  t.test('when they stand in databaseUrl, then the hint names the other key', async t => {
    const { issues } = validateConfig({ databaseUrl: 'host=h password=hunter2' })
    t.equal(issues[0]?.hint, 'use connection: { … }')
    t.notMatch(JSON.stringify(issues), /hunter2/)
  })
})
