import { availableParallelism } from 'node:os'
import { inspect } from 'node:util'
import { pino } from 'pino'
import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig, resolveLayers, validateConfig } from '../../lib/config/resolve.ts'
import { ConfigurationError } from '../../lib/core/errors.ts'
import { Connector } from '../../lib/db/connector.ts'

const fromShell = 'postgres://shell/d'
const explicit = 'postgres://explicit/d'

function failure(config: unknown, env: NodeJS.ProcessEnv = {}): ConfigurationError {
  try {
    resolveConfig(config as PgbusConfig, env)
  } catch (error) {
    if (error instanceof ConfigurationError) return error
    throw error
  }
  throw new Error('the configuration was accepted')
}

t.test('given nothing', async t => {
  t.test('when it is resolved, then every key has its default', async t => {
    const config = resolveConfig({}, {})
    t.match(config, {
      databaseUrl: null,
      databaseWait: 120_000,
      visibilityTimeout: 30_000,
      maxRetries: 5,
      retry: { base: 5_000, max: 300_000, jitter: 0.15 },
      pollingInterval: 100,
      groupMode: null,
      prefetchLimit: null,
      zombieDetection: true,
      circuitBreaker: { enabled: true, threshold: 5, baseBackoff: 30_000, maxBackoff: 600_000 },
      drainTimeout: 30_000,
      shutdownTimeout: 35_000,
      streams: {
        secret: [],
        defaultMode: 'durable',
        listenHealthCheck: 5_000,
        ackTimeout: 2_000,
        degradedPoll: 2_000,
        maxPayloadBytes: 1_048_576,
        maxAge: null,
      },
      web: { workers: availableParallelism(), bootTimeout: 60_000, hubSocket: null },
    })
    t.strictSame(config.workers, [
      {
        name: null,
        queues: ['default'],
        concurrency: 5,
        processes: 1,
        order: 'strict',
        prefetchLimit: null,
        groupMode: null,
        singleActiveConsumer: false,
        consumerPriority: 0,
      },
    ])
  })

  t.test('when keys are undefined, then they have their defaults too', async t => {
    const config = resolveConfig({ maxRetries: undefined, streams: { host: undefined }, pool: undefined }, {})
    t.equal(config.maxRetries, 5)
    t.equal(config.pool.timeout, 5_000)
  })

  t.test('when no workers are wanted, then there are none', async t => {
    t.strictSame(resolveConfig({ workers: null }, {}).workers, [])
  })

  t.test('when only the default queue is named, then the default worker serves it', async t => {
    t.strictSame(resolveConfig({ defaultQueue: 'Mail' }, {}).workers[0]?.queues, ['mail'])
  })
})

t.test('given many problems', async t => {
  const config = {
    pool: { size: 'ten' },
    visibilityTimeout: 30,
    maxRetrys: 3,
    priority: { levels: 99, default: -1 },
    workers: [{ queues: [] }],
  }

  t.test('when it is resolved, then one error lists them all', async t => {
    const error = failure(config)
    t.equal(error.code, 'PGBUS_ERR_CONFIG')
    t.equal(error.issues.length, 6)
    const lines = error.message.split('\n')
    t.equal(lines[0], 'Invalid pgbus configuration (6 problems)')
    t.ok(lines.includes("  pool.size: must be a positive integer or null (got 'ten')"))
    t.ok(
      lines.includes(
        '  visibilityTimeout: must be at least 1s (got 30; numbers are milliseconds, write "30s")',
      ),
    )
    t.ok(lines.includes('  maxRetrys: unknown key (did you mean maxRetries?)'))
    t.ok(lines.includes('  workers[0].queues: must be a non-empty array (got [])'))
  })

  t.test('when there is one, then the heading says so', async t => {
    t.match(
      failure({ visibilityTimeout: 0 }).message,
      /^Invalid pgbus configuration \(1 problem\)\n {2}visib/,
    )
  })

  t.test('when it is only validated, then nothing is thrown', async t => {
    t.equal(validateConfig(config).issues.length, 6)
  })

  t.test('when what is validated is no configuration at all, then that is the issue', async t => {
    const looped: Record<string, unknown> = { pool: {} }
    looped.pool = { size: looped }
    const odd = [
      null,
      undefined,
      5,
      'x',
      [],
      looped,
      { streams: null },
      { pool: [] },
      { connection: 'postgres://u:pw@h' },
    ]
    const hostile = [
      {
        get pool() {
          throw new TypeError('no')
        },
      },
      new Proxy(
        {},
        {
          ownKeys: () => {
            throw new TypeError('no')
          },
        },
      ),
    ]
    for (const value of [...odd, ...hostile]) {
      const { issues } = validateConfig(value)
      t.equal(issues.length, 1)
      t.notMatch(JSON.stringify(issues), /pw/)
    }
  })
})

t.test('given a key that does not exist', async t => {
  const hints: [config: object, path: string, meant: string | undefined][] = [
    [{ maxRetrys: 1 }, 'maxRetrys', 'maxRetries'],
    [{ max_retries: 1 }, 'max_retries', 'maxRetries'],
    [{ pool: { tiemout: 1 } }, 'pool.tiemout', 'pool.timeout'],
    [{ streams: { heartbeat_interval: 1 } }, 'streams.heartbeat_interval', 'streams.heartbeatInterval'],
    [{ streams: { pool: { sise: 1 } } }, 'streams.pool.sise', 'streams.pool.size'],
    [{ pool_size: 1 }, 'pool_size', 'pool.size'],
    [{ webPort: 1 }, 'webPort', 'web.port'],
    [{ retry_backoff: 1 }, 'retry_backoff', 'retry.base'],
    [{ heartbeatInterval: 1 }, 'heartbeatInterval', 'streams.heartbeatInterval'],
    [{ streams_queue_prefix: 'x' }, 'streams_queue_prefix', undefined],
    [{ skip_recurring: true }, 'skip_recurring', undefined],
    [{ dashboard_filter_parameters: [] }, 'dashboard_filter_parameters', undefined],
    [{ embedded: { enabled: true } }, 'embedded', undefined],
    [JSON.parse('{"__proto__": {"polluted": 1}}') as object, '__proto__', undefined],
    [{ toString: 1 }, 'toString', undefined],
  ]

  for (const [config, path, meant] of hints) {
    t.test(`when it is ${path}, then it is an error${meant ? ` and ${meant} is suggested` : ''}`, async t => {
      const { issues } = validateConfig(config)
      t.equal(issues.length, 1)
      t.match(issues[0], { path, rule: 'unknown key' })
      t.equal(issues[0]?.hint, meant && `did you mean ${meant}?`)
    })
  }
})

t.test('given several places that name the database', async t => {
  const cases: [
    title: string,
    options: PgbusConfig,
    env: NodeJS.ProcessEnv,
    file: PgbusConfig,
    url: string | null,
  ][] = [
    [
      'options and PGBUS_DATABASE_URL',
      { databaseUrl: explicit },
      { PGBUS_DATABASE_URL: fromShell },
      {},
      explicit,
    ],
    [
      'PGBUS_DATABASE_URL and the file',
      {},
      { PGBUS_DATABASE_URL: fromShell },
      { databaseUrl: explicit },
      fromShell,
    ],
    ['the file and DATABASE_URL', {}, { DATABASE_URL: fromShell }, { databaseUrl: explicit }, explicit],
    ['a host and DATABASE_URL', { connection: { host: 'h' } }, { DATABASE_URL: fromShell }, {}, null],
    ['only DATABASE_URL', {}, { DATABASE_URL: fromShell }, {}, fromShell],
    ['a null and DATABASE_URL', { databaseUrl: null }, { DATABASE_URL: fromShell }, {}, fromShell],
    [
      'variables and DATABASE_URL',
      { connection: { variables: { a: 1 } } },
      { DATABASE_URL: fromShell },
      {},
      fromShell,
    ],
  ]

  for (const [title, overrides, env, file, url] of cases) {
    t.test(`when there is ${title}, then the higher one counts`, async t => {
      const { config, issues } = resolveLayers({ overrides, env, file })
      t.strictSame(issues, [])
      t.equal(config.databaseUrl, url)
    })
  }

  t.test('when DATABASE_URL belongs to another database, then the variable is named', async t => {
    t.match(failure({}, { DATABASE_URL: 'mysql://u:hunter2@h/d' }).issues[0], {
      path: 'env DATABASE_URL',
      rule: 'must be a postgres:// URL',
    })
    t.notMatch(failure({}, { DATABASE_URL: 'mysql://u:hunter2@h/d' }).message, /hunter2/)
  })

  t.test('when a URL and its parts are both given, then each duplicated part is an issue', async t => {
    const { issues } = failure({
      databaseUrl: explicit,
      connection: { host: 'h', port: 5432, password: 'hunter2', gucMode: 'session' },
    })
    t.strictSame(
      issues.map(issue => [issue.path, issue.rule]),
      ['host', 'port', 'password'].map(part => [`connection.${part}`, 'conflicts with databaseUrl']),
    )
    t.notMatch(JSON.stringify(issues), /hunter2/)
  })
})

t.test('given all layers', async t => {
  const { config, sources } = resolveLayers({
    overrides: { maxRetries: 1, imports: ['c'] },
    env: { PGBUS_MAX_RETRIES: '2', PGBUS_POOL_SIZE: '2', PGBUS_IMPORTS: 'b' },
    file: { maxRetries: 3, pool: { size: 3, timeout: '3s' }, imports: ['a', 'a2'], retry: { max: '3m' } },
  })

  t.test('when a key is in several, then the highest one counts, key by key', async t => {
    t.equal(config.maxRetries, 1)
    t.strictSame(config.pool, { size: 2, timeout: 3_000 })
    t.strictSame(config.imports, ['c'])
    t.strictSame(config.retry, { base: 5_000, max: 180_000, jitter: 0.15 })
  })

  t.test('when it is asked where a value came from, then each key knows', async t => {
    t.equal(sources.get('maxRetries'), 'overrides')
    t.equal(sources.get('pool.size'), 'environment')
    t.equal(sources.get('pool.timeout'), 'file')
    t.equal(sources.get('readTimeout'), 'default')
  })

  t.test(
    'when a lower layer is wrong, then a higher one hides its value but not its unknown keys',
    async t => {
      const hidden = resolveLayers({
        overrides: { maxRetries: 1 },
        env: {},
        file: { maxRetries: -1, nope: 1 },
      })
      t.strictSame(
        hidden.issues.map(issue => issue.path),
        ['nope'],
      )
    },
  )
})

t.test('given a resolved configuration', async t => {
  t.test('when something is changed, then a TypeError is thrown, at any depth', async t => {
    const config = resolveConfig({ connection: { variables: { a: 1 } }, workers: 'a; b' }, {}) as never as {
      maxRetries: number
      streams: { pool: { size: number } }
      connection: { variables: { a: number } }
      workers: { queues: string[] }[]
    }
    t.throws(() => (config.maxRetries = 1), TypeError)
    t.throws(() => (config.streams.pool.size = 1), TypeError)
    t.throws(() => (config.connection.variables.a = 2), TypeError)
    t.throws(() => config.workers[0]?.queues.push('c'), TypeError)
  })

  t.test("when the caller's own objects are looked at, then they are not frozen", async t => {
    const logger = pino({ enabled: false })
    const pattern = /a/g
    const options = { imports: ['a'], connection: { variables: { a: 1 } }, log: { logger } }
    const config = resolveConfig({ ...options, streams: { durablePatterns: [pattern] } }, {})
    options.imports.push('b')
    options.connection.variables.a = 2
    t.strictSame(config.imports, ['a'])
    t.equal(config.connection.variables.a, 1)
    t.equal(config.log.logger, logger)
    t.notOk(Object.isFrozen(logger))
    t.equal(config.streams.durablePatterns[0], pattern)
    t.notOk(Object.isFrozen(pattern))
  })

  t.test('when the driver gets the TLS options, then it may change its copy', async t => {
    const config = resolveConfig(
      { connection: { host: 'h', ssl: { key: 'PEM', ca: Buffer.from('CA') } } },
      {},
    )
    const { default: pg } = await import('pg')
    const connect = { target: 'base', applicationName: 'a', statementTimeout: 0 } as const
    t.doesNotThrow(() => new pg.Client(new Connector(config).clientConfig(connect)))
    t.strictSame(Object.keys(config.connection.ssl as object), ['key', 'ca'])
  })

  t.test('when it is printed or written as JSON, then no secret is in it', async t => {
    const config = resolveConfig(
      {
        databaseUrl: 'postgres://app:hunter2@db/app',
        streams: { secret: 'hunter2-hunter2-hunter2', databaseUrl: 'postgres://s:hunter2@db/s' },
        connection: { ssl: { key: 'hunter2', passphrase: 'hunter2', pfx: 'hunter2' } },
      },
      {},
    )
    for (const text of [JSON.stringify(config), inspect(config), `${inspect({ config }, { depth: 9 })}`]) {
      t.notMatch(text, /hunter2/)
      t.match(text, /postgres:\/\/app:\[REDACTED\]@db\/app/)
    }
  })
})
