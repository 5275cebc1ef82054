import t from 'tap'
import { readEnvironment } from '../../lib/config/env.ts'
import { resolveConfig, resolveLayers } from '../../lib/config/resolve.ts'
import { keys, variableName } from '../../lib/config/schema.ts'

t.test('given key paths', async t => {
  t.test('when their variables are named, then words are split and names are unique', async t => {
    t.equal(variableName('pool.size'), 'PGBUS_POOL_SIZE')
    t.equal(variableName('streams.pool.databaseUrl'), 'PGBUS_STREAMS_POOL_DATABASE_URL')
    t.equal(new Set(keys.map(key => variableName(key.path))).size, keys.length)
  })
})

t.test('given variables of each type', async t => {
  const cases: [variable: string, text: string, path: string, value: unknown][] = [
    ['PGBUS_POOL_SIZE', '7', 'pool.size', 7],
    ['PGBUS_POOL_SIZE', 'null', 'pool.size', null],
    ['PGBUS_RETRY_JITTER', '0.5', 'retry.jitter', 0.5],
    ['PGBUS_DRAIN_TIMEOUT', '45s', 'drainTimeout', '45s'],
    ['PGBUS_DRAIN_TIMEOUT', '4500', 'drainTimeout', 4_500],
    ...['1', 'true', 'YES', 'On'].map(
      text => ['PGBUS_REQUIRE_PRIMARY', text, 'requirePrimary', true] as [string, string, string, boolean],
    ),
    ...['0', 'false', 'No', 'OFF'].map(
      text => ['PGBUS_NOTIFY_ENABLED', text, 'notify.enabled', false] as [string, string, string, boolean],
    ),
    ['PGBUS_CONNECTION_HOST', '[::1]', 'connection.host', '[::1]'],
    ['PGBUS_CONNECTION_PASSWORD', '12345', 'connection.password', '12345'],
    ['PGBUS_IMPORTS', './a.js, ./b.js,', 'imports', ['./a.js', './b.js']],
    ['PGBUS_WORKERS', 'a: 2; b', 'workers', 'a: 2; b'],
    ['PGBUS_WORKERS', '[{"queues":["a"]}]', 'workers', [{ queues: ['a'] }]],
    ['PGBUS_STREAMS_SECRET', 'one, with a comma', 'streams.secret', 'one, with a comma'],
    ['PGBUS_STREAMS_SECRET', '["new","old"]', 'streams.secret', ['new', 'old']],
    ['PGBUS_STREAMS_SECRET', '[no json', 'streams.secret', '[no json'],
    ['PGBUS_STREAMS_DURABLE_PATTERNS', '["a","/b/i"]', 'streams.durablePatterns', ['a', '/b/i']],
    ['PGBUS_WEB_WORKERS', '3', 'web.workers', '3'],
    ['PGBUS_WEB_WORKERS', 'auto', 'web.workers', 'auto'],
  ]
  for (const [variable, text, path, value] of cases)
    t.test(`when ${variable} is ${text}, then ${path} is read`, async t => {
      const { values, issues, warnings } = readEnvironment({ [variable]: text })
      t.strictSame(values, new Map([[path, value]]))
      t.strictSame([...issues, ...warnings], [])
    })

  t.test('when one is empty, then it is not set', async t => {
    t.equal(readEnvironment({ PGBUS_POOL_SIZE: '', PORT: '', WEB_CONCURRENCY: '' }).values.size, 0)
  })
})

t.test('given variables that are wrong', async t => {
  const cases: [variable: string, text: string, rule: string][] = [
    ['PGBUS_POOL_SIZE', 'ten', 'must be a positive integer or null'],
    ['PGBUS_POOL_SIZE', '0x10', 'must be a positive integer or null'],
    ['PGBUS_POOL_SIZE', ' ', 'must be a positive integer or null'],
    ['PGBUS_REQUIRE_PRIMARY', 'maybe', 'must be true or false'],
    ['PGBUS_VISIBILITY_TIMEOUT', '30', 'must be at least 1s'],
    ['PGBUS_STREAMS_DURABLE_PATTERNS', '[', 'must be JSON'],
    ['PORT', 'http', 'must be an integer between 0 and 65535'],
    ['WEB_CONCURRENCY', '-1', 'must be an integer of zero or more or "auto"'],
  ]
  for (const [variable, text, rule] of cases)
    t.test(`when ${variable} is ${JSON.stringify(text)}, then the variable is at fault`, async t => {
      const { issues } = resolveLayers({ overrides: {}, env: { [variable]: text }, file: {} })
      t.equal(issues.length, 1)
      t.match(issues[0], { path: `env ${variable}`, rule })
    })

  t.test('when a secret is too short, then it is not shown', async t => {
    t.throws(() => resolveConfig({}, { PGBUS_STREAMS_SECRET: 'hunter2' }), { message: /got '\[REDACTED\]'/ })
  })
})

t.test('given variables that platforms set', async t => {
  const env = { WEB_CONCURRENCY: '3', PORT: '8080', HOST: '0.0.0.0' }
  const file = { web: { workers: 1, port: 1, host: 'file' } }

  t.test('when the file sets the same, then the variables win', async t => {
    const { config } = resolveLayers({ overrides: {}, env, file })
    t.match(config.web, { workers: 3, port: 8080, host: '0.0.0.0' })
  })

  t.test('when our own variables are set too, then those win', async t => {
    const own = { PGBUS_WEB_WORKERS: '4', PGBUS_WEB_PORT: '4000', PGBUS_WEB_HOST: '::1' }
    const { config } = resolveLayers({ overrides: {}, env: { ...env, ...own }, file })
    t.match(config.web, { workers: 4, port: 4000, host: '::1' })
  })

  t.test('when the options say something else, then those win', async t => {
    t.equal(resolveConfig({ web: { port: 0 } }, env).web.port, 0)
  })

  t.test('when the web cluster names its hub, then it is web.hubSocket', async t => {
    t.equal(resolveConfig({}, { PGBUS_STREAMS_HUB_SOCKET: '/tmp/hub.sock' }).web.hubSocket, '/tmp/hub.sock')
  })
})

t.test('given variables with our prefix that are no key', async t => {
  t.test('when one is misspelt, then there is a warning with the nearest name and not its value', async t => {
    const { warnings, values } = readEnvironment({ PGBUS_POOLSIZE: 'hunter2' })
    t.equal(values.size, 0)
    t.match(warnings, [
      {
        path: 'env PGBUS_POOLSIZE',
        rule: 'is not a configuration key',
        hint: 'did you mean PGBUS_POOL_SIZE?',
      },
    ])
    t.notMatch(JSON.stringify(warnings), /hunter2/)
  })

  t.test('when a key cannot be set by a variable, then that is a warning too', async t => {
    t.match(readEnvironment({ PGBUS_LOG_LOGGER: 'x' }).warnings, [{ path: 'env PGBUS_LOG_LOGGER' }])
  })

  t.test('when they are used for something else, then there is none', async t => {
    const names = ['CONFIG', 'ENV', 'STREAMS_HUB_SOCKET', 'TEST_SERVER_URL', 'WEB_INDEX']
    const env = Object.fromEntries(names.map(name => [`PGBUS_${name}`, 'x']))
    t.strictSame(readEnvironment({ ...env, PATH: 'x' }).warnings, [])
  })
})
