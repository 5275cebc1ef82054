import { availableParallelism } from 'node:os'
import { parseBind } from './binds.ts'
import { consumerList } from './consumers.ts'
import { recurringTasks } from './recurring-tasks.ts'
import { roleList } from './roles.ts'
import {
  boolean,
  type Checked,
  custom,
  databaseUrl,
  duration,
  durationsByPattern,
  groupMode,
  integer,
  integerOrZero,
  number,
  oneOf,
  patterns,
  portOrNull,
  positiveInteger,
  positiveIntegerOrNull,
  type Rule,
  stringList,
  text,
} from './rules.ts'

/** One configuration key. This table is the single source of checks, variable names and documentation. */
export interface Key {
  readonly path: string
  readonly rule: Rule
  /** As a user would write it. */
  readonly default: unknown
  /** May be set by `PGBUS_<PATH>`. */
  readonly env: boolean
  /** Effect, in one sentence. */
  readonly doc: string
  /** Heading in the documentation. */
  readonly section: string
}

const namePattern = (value: string): string | undefined =>
  /^[A-Za-z0-9_]+$/.test(value) ? undefined : 'may contain only letters, digits and underscores'
const atMostBytes = (limit: number) => (value: string) =>
  Buffer.byteLength(value) <= limit ? undefined : `must be at most ${limit} bytes`
const functionOr = (value: unknown): boolean => typeof value === 'function'

const password = custom('string, function or null', 'text', value =>
  value === null || functionOr(value) || (typeof value === 'string' && value !== '')
    ? { value }
    : { rule: 'must be a non-empty string or a function' },
)
const ssl = custom('boolean, TLS options or null', 'json', value =>
  value === null || typeof value === 'boolean' || (typeof value === 'object' && !Array.isArray(value))
    ? { value }
    : { rule: 'must be an object or true or false' },
)
const variables = custom('record of settings', 'json', value => {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return { rule: 'must be an object of settings' }
  for (const [name, setting] of Object.entries(value)) {
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) return { rule: `"${name}" is not a PostgreSQL setting name` }
    if (!['string', 'number', 'boolean'].includes(typeof setting))
      return { rule: `"${name}" must be a string, a number or a boolean` }
  }
  return { value }
})
const secrets = custom('string of at least 16 characters, array of them, or null', 'textOrJson', value => {
  const list = value === null ? [] : Array.isArray(value) ? value : [value]
  const good = list.every(secret => typeof secret === 'string' && secret.length >= 16)
  return good ? { value: list } : { rule: 'must be at least 16 characters' }
})
const webWorkers = custom('integer ≥ 0 or `auto`', 'text', (value): Checked => {
  if (value === 'auto') return { value: availableParallelism() }
  const count = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value
  return Number.isSafeInteger(count) && (count as number) >= 0
    ? { value: count }
    : { rule: 'must be an integer of zero or more or "auto"' }
})
const binds = custom('array of addresses', 'list', (value): Checked => {
  if (!Array.isArray(value)) return { rule: 'must be an array of addresses such as "tcp://0.0.0.0:3000"' }
  for (const item of value) {
    const parsed = typeof item === 'string' ? parseBind(item) : { rule: 'must be an address' }
    if ('rule' in parsed) return { rule: `${JSON.stringify(item)} ${parsed.rule}` }
  }
  return { value }
})
const tlsKeys = ['key', 'cert', 'ca', 'passphrase']
const tls = custom('{ key, cert, ca?, passphrase?, http2? } or null', 'json', (value): Checked => {
  if (value === null) return { value }
  if (typeof value !== 'object' || Array.isArray(value)) return { rule: 'must be { key, cert } or null' }
  const { http2, ...texts } = value as Record<string, unknown>
  if (http2 !== undefined && typeof http2 !== 'boolean') return { rule: 'http2 must be true or false' }
  for (const [name, text] of Object.entries(texts)) {
    if (!tlsKeys.includes(name))
      return { rule: `has no key "${name}"; there are ${tlsKeys.join(', ')} and http2` }
    if (typeof text !== 'string' || text === '') return { rule: `${name} must be a path or PEM` }
  }
  return 'key' in texts && 'cert' in texts ? { value } : { rule: 'must have key and cert' }
})
const surge = custom('integer ≥ 0 or `all`', 'text', (value): Checked => {
  const count = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value
  return value === 'all' || (Number.isSafeInteger(count) && (count as number) >= 0)
    ? { value: count }
    : { rule: 'must be an integer of zero or more or "all"' }
})
function checkCors(value: unknown): string | undefined {
  if (value === false) return undefined
  if (typeof value !== 'object' || value === null) return 'must be false or { origin, credentials? }'
  const { origin, credentials, ...rest } = value as Record<string, unknown>
  const [unknown] = Object.keys(rest)
  if (unknown !== undefined) return `has no key "${unknown}"; there are origin and credentials`
  if (credentials !== undefined && typeof credentials !== 'boolean')
    return 'credentials must be true or false'
  const parts = Array.isArray(origin) ? origin : [origin]
  const good = (part: unknown) => (typeof part === 'string' && part !== '') || part instanceof RegExp
  if (typeof origin !== 'function' && (parts.length === 0 || !parts.every(good)))
    return 'origin must be a string, a regular expression, a list of these, or a function'
  if (credentials === true && parts.includes('*')) return 'must name its origins when credentials are allowed'
  return undefined
}

const memberOf = custom('function or null', 'text', value =>
  value === null || functionOr(value) ? { value } : { rule: 'must be a function' },
)
const cors = custom('false or { origin, credentials? }', 'json', value => {
  const rule = checkCors(value)
  return rule === undefined ? { value } : { rule }
})
const logger = custom('pino-like logger or null', 'text', value => {
  if (value === null) return { value }
  const candidate = value as Record<string, unknown>
  const fits =
    typeof value === 'object' &&
    ['debug', 'info', 'warn', 'error', 'child'].every(name => functionOr(candidate[name]))
  return fits ? { value } : { rule: 'must be a pino-compatible logger' }
})
const reporters = custom('array of functions', 'json', value =>
  Array.isArray(value) && value.every(functionOr) ? { value } : { rule: 'must be an array of functions' },
)
const socketPath = text({
  nullable: true,
  also: value => (Buffer.byteLength(value) <= 100 ? undefined : 'is too long for a Unix socket path'),
})

const seconds = duration({ timer: true, seconds: true })
const positiveNumberOrNull = custom('number > 0 or null', 'number', value =>
  value === null || (typeof value === 'number' && Number.isFinite(value) && value > 0)
    ? { value }
    : { rule: 'must be a positive number or null to disable' },
)
const hostText = text({ nullable: true })

type Row = [path: string, rule: Rule, fallback: unknown, env: boolean, doc: string]

const sections: [title: string, rows: Row[]][] = [
  [
    'Connection',
    [
      [
        'databaseUrl',
        databaseUrl,
        null,
        true,
        'Base connection of everything. `PGBUS_DATABASE_URL`, then `DATABASE_URL`, set it too.',
      ],
      [
        'connection.host',
        hostText,
        null,
        true,
        'Host of the base connection; absent means the driver’s own default (`PGHOST`, then the Unix socket).',
      ],
      ['connection.port', portOrNull, null, true, 'Port of the base connection.'],
      ['connection.database', hostText, null, true, 'Database of the base connection.'],
      ['connection.user', hostText, null, true, 'User of the base connection.'],
      [
        'connection.password',
        password,
        null,
        true,
        'Password, or a function that gives one (or a promise of one) for each new connection.',
      ],
      ['connection.ssl', ssl, null, false, 'Passed to the driver; `sslmode=` in the URL works too.'],
      ['connection.variables', variables, {}, false, 'Settings of every connection, pooled or dedicated.'],
      [
        'connection.gucMode',
        oneOf(['options', 'session']),
        'options',
        true,
        '`options`: settings travel in the start-up packet. `session`: `SET` after connecting, for poolers that refuse start-up options.',
      ],
      [
        'connection.applicationName',
        text({ also: atMostBytes(63) }),
        'pgbus',
        true,
        '`application_name` of pooled connections, unless the URL names one. LISTEN connections are called `pgbus-listen`.',
      ],
      [
        'pool.size',
        positiveIntegerOrNull,
        null,
        true,
        'Connections per process; null: the concurrency of a job worker (at least 2), else 5.',
      ],
      [
        'pool.timeout',
        duration({ timer: true, seconds: true }),
        '5s',
        true,
        'Longest wait for a free connection.',
      ],
      ['requirePrimary', boolean, false, true, 'Refuse connections to a standby.'],
      [
        'readTimeout',
        duration({ timer: true, nullable: true, seconds: true }),
        '30s',
        true,
        'Limit of one statement on pooled connections; the client gives up 5 s later.',
      ],
      [
        'databaseWait',
        duration({ timer: true, zero: true, seconds: true }),
        '2m',
        true,
        'How long a booting supervisor waits for a database that is not there yet; 0: fail at once.',
      ],
    ],
  ],
  [
    'Queues and retries',
    [
      ['queuePrefix', text({ also: namePattern }), 'pgbus', true, 'First part of every physical queue name.'],
      ['defaultQueue', text({ also: namePattern }), 'default', true, 'Queue of a job that names none.'],
      [
        'priority.levels',
        integer({ min: 1, max: 10, nullable: true, rule: 'must be an integer between 1 and 10 or null' }),
        null,
        true,
        'More than 1: each queue becomes that many tables, lowest number first.',
      ],
      ['priority.default', integerOrZero, 1, true, 'Level of a job without a priority.'],
      [
        'visibilityTimeout',
        duration({ wholeSeconds: true, seconds: true }),
        '30s',
        true,
        'How long a claim hides a message; it is renewed while the job runs.',
      ],
      [
        'renewVisibility',
        boolean,
        true,
        true,
        'Renew the lease of running jobs. Without it a job that runs longer than `visibilityTimeout` runs twice.',
      ],
      [
        'maxRetries',
        integerOrZero,
        5,
        true,
        'Executions of a job before it is a dead letter; 0 counts as 1.',
      ],
      [
        'retry.base',
        duration({ wholeSeconds: true, seconds: true }),
        '5s',
        true,
        'Delay before the first retry; doubles each time.',
      ],
      ['retry.max', duration({ wholeSeconds: true, seconds: true }), '5m', true, 'Ceiling of the delay.'],
      [
        'retry.jitter',
        number({ min: 0, max: 1, rule: 'must be between 0 and 1' }),
        0.15,
        true,
        'Random share by which a delay may differ.',
      ],
      [
        'jobTimeout',
        duration({ timer: true, nullable: true, seconds: true }),
        null,
        true,
        'Aborts `ctx.signal` of a job after this long and counts it as failed.',
      ],
      [
        'groupMode',
        groupMode,
        null,
        true,
        'Jobs of one `group` run one at a time and in order. `fifo`: the group that waited longest first; `roundRobin`: groups take turns. Jobs without a group form one of their own.',
      ],
      [
        'zombieDetection',
        boolean,
        true,
        true,
        'Log a warning for a job that comes again although no failure of it was recorded.',
      ],
      [
        'circuitBreaker.enabled',
        boolean,
        true,
        true,
        'Pause a queue by itself whose jobs fail one after the other.',
      ],
      ['circuitBreaker.threshold', positiveInteger, 5, true, 'Different jobs in a row that have to fail.'],
      [
        'circuitBreaker.baseBackoff',
        duration({ seconds: true }),
        '30s',
        true,
        'First such pause; doubles with each failed try after it.',
      ],
      ['circuitBreaker.maxBackoff', duration({ seconds: true }), '10m', true, 'Longest such pause.'],
    ],
  ],
  [
    'Workers',
    [
      [
        'workers',
        custom('string, array of entries, or null', 'textOrJson', value => ({ value })),
        undefined,
        true,
        'Job workers: `"critical: 5; default, mail_*: 10"`, or `[{ name?, queues, concurrency?, processes?, order?, prefetchLimit?, groupMode?, singleActiveConsumer?, consumerPriority? }]`. Unset: the default queue with concurrency 5.',
      ],
      [
        'consumers',
        consumerList,
        null,
        true,
        'Event consumers: `[{ topics, concurrency? }]`, one process each, for the handlers that those topics can reach.',
      ],
      [
        'roles',
        roleList,
        null,
        true,
        'What `pgbus start` runs: `workers`, `consumers`, `dispatcher`, which deletes what is old, `scheduler`, which enqueues recurring tasks, and `outbox`, which publishes what the outbox holds; null: everything, the scheduler only with `recurring.tasks`, the outbox only with `outbox.enabled`.',
      ],
      [
        'imports',
        stringList,
        [],
        true,
        'Modules that define jobs and event handlers, relative to the configuration file; imported by every worker and consumer before it claims anything.',
      ],
      [
        'pollingInterval',
        duration({ timer: true }),
        '100ms',
        true,
        'Pause between claims while notifications do not arrive.',
      ],
      [
        'prefetchLimit',
        positiveIntegerOrNull,
        null,
        true,
        'Jobs that a worker may have claimed and not finished; null: its concurrency.',
      ],
      [
        'recycle.maxJobs',
        integer({ min: 1, nullable: true, rule: 'must be a positive integer or null to disable' }),
        null,
        true,
        'Replace a worker process that has handled so many jobs, however they ended.',
      ],
      [
        'recycle.maxMemoryMb',
        positiveNumberOrNull,
        null,
        true,
        'Replace a worker process whose resident memory is above this many MiB.',
      ],
      [
        'recycle.maxLifetime',
        duration({ nullable: true, seconds: true }),
        null,
        true,
        'Replace a worker process of this age, or up to a tenth older.',
      ],
      [
        'recycle.overlap',
        boolean,
        true,
        true,
        'The replacement is ready before the old process is told to finish; off: it comes when the old one has ended.',
      ],
      [
        'stallThreshold',
        duration({ nullable: true, seconds: true }),
        '90s',
        true,
        'A child that gives no sign of life, or whose claim loop stands still, for this long is killed and replaced; null: never.',
      ],
      ['drainTimeout', seconds, '30s', true, 'Grace for running jobs at shutdown; then their signal aborts.'],
      [
        'shutdownTimeout',
        duration({ timer: true, nullable: true, seconds: true }),
        null,
        true,
        'Longest time from the stop signal to the end of every child; null: `drainTimeout + 5s`.',
      ],
    ],
  ],
  [
    'Notifications',
    [
      [
        'notify.enabled',
        boolean,
        true,
        true,
        'Create insert triggers and LISTEN on them; off: workers poll.',
      ],
      [
        'notify.scope',
        oneOf(['supervisor', 'fork']),
        'supervisor',
        true,
        '`supervisor`: one LISTEN connection per job host. `fork`: one per worker process.',
      ],
      [
        'notify.databaseUrl',
        databaseUrl,
        null,
        true,
        'Target of the job side’s LISTEN connection and of migrations, when the base goes through a pooler.',
      ],
      [
        'notify.host',
        hostText,
        null,
        true,
        'Replaces the host of the base connection for LISTEN and migrations.',
      ],
      [
        'notify.port',
        portOrNull,
        null,
        true,
        'Replaces the port of the base connection for LISTEN and migrations.',
      ],
    ],
  ],
  [
    'Streams',
    [
      ['streams.enabled', boolean, true, true, 'Serve streams; broadcasting works either way.'],
      [
        'streams.path',
        text({ nullable: true, also: value => (value.startsWith('/') ? undefined : 'must start with "/"') }),
        null,
        true,
        'Public path of the endpoint when it differs from where the plugin is mounted.',
      ],
      [
        'streams.secret',
        secrets,
        null,
        true,
        'Key of signed stream names; in an array the first signs and all verify. Required to serve streams.',
      ],
      [
        'streams.listenScope',
        oneOf(['master', 'process']),
        'master',
        true,
        '`master`: one LISTEN connection per web host. `process`: one per web worker.',
      ],
      [
        'streams.databaseUrl',
        databaseUrl,
        null,
        true,
        'Target of the streams’ LISTEN connection and, unless it has its own, of the streams pool.',
      ],
      ['streams.host', hostText, null, true, 'Replaces the host of the base connection for streams.'],
      ['streams.port', portOrNull, null, true, 'Replaces the port of the base connection for streams.'],
      [
        'streams.pool.size',
        positiveInteger,
        5,
        true,
        'Connections for broadcasts and replay, apart from the job pool.',
      ],
      [
        'streams.pool.timeout',
        duration({ timer: true, seconds: true }),
        '5s',
        true,
        'Longest wait for one of them.',
      ],
      ['streams.pool.databaseUrl', databaseUrl, null, true, 'Target of that pool.'],
      ['streams.pool.host', hostText, null, true, 'Replaces the host for that pool.'],
      ['streams.pool.port', portOrNull, null, true, 'Replaces the port for that pool.'],
      [
        'streams.applicationName',
        text({ also: atMostBytes(50) }),
        'pgbus_streams',
        true,
        '`application_name` of that pool; the process id is added.',
      ],
      [
        'streams.defaultMode',
        oneOf(['durable', 'ephemeral']),
        'durable',
        true,
        'Mode of a broadcast when nothing else decides.',
      ],
      [
        'streams.durablePatterns',
        patterns,
        [],
        true,
        'Streams that are durable by name, when the default is ephemeral.',
      ],
      [
        'streams.ephemeralPatterns',
        patterns,
        [],
        true,
        'Streams that are ephemeral by name, when the default is durable.',
      ],
      [
        'streams.retention.default',
        duration({ zero: true, seconds: true }),
        '5m',
        true,
        'How long durable broadcasts can be replayed; older ones are deleted. 0: for ever.',
      ],
      [
        'streams.retention.perStream',
        durationsByPattern,
        {},
        false,
        'Other retentions by stream, as `{ name: duration }` or `[[pattern, duration], …]`; the first that matches counts.',
      ],
      [
        'streams.heartbeatInterval',
        seconds,
        '15s',
        true,
        'Interval of keep-alive comments on open connections.',
      ],
      [
        'streams.maxConnections',
        positiveInteger,
        2_000,
        true,
        'Open connections per web process; more are answered 503.',
      ],
      [
        'streams.idleTimeout',
        seconds,
        '1h',
        true,
        'A connection without a message for so long is closed; the page returns when it wants.',
      ],
      [
        'streams.maxAge',
        duration({ timer: true, nullable: true, seconds: true }),
        null,
        true,
        'Closes a connection after this long, so that it is authorised again.',
      ],
      [
        'streams.listenHealthCheck',
        seconds,
        '5s',
        true,
        'Silence after which the streams’ LISTEN connection is checked.',
      ],
      ['streams.ackTimeout', seconds, '2s', true, 'Longest wait for the hub to confirm a subscription.'],
      [
        'streams.degradedPoll',
        seconds,
        '2s',
        true,
        'Interval of reads while notifications are known not to arrive.',
      ],
      [
        'streams.writeDeadline',
        seconds,
        '5s',
        true,
        'A client that reads nothing for so long is disconnected.',
      ],
      [
        'streams.maxBufferedBytes',
        integerOrZero,
        1_048_576,
        true,
        'Unsent bytes after which a client is set aside and catches up later; 0: no limit.',
      ],
      [
        'streams.broadcastQueue',
        text({ nullable: true, also: namePattern }),
        null,
        true,
        'Queue of `broadcastLater`; null: `defaultQueue`. With a worker of its own, broadcasts do not wait behind long jobs.',
      ],
      [
        'streams.cors',
        cors,
        false,
        true,
        'Pages of which other origins may follow streams: a string, a regular expression, a list, or a function of the origin.',
      ],
      [
        'streams.presence.patterns',
        patterns,
        [],
        true,
        'Streams, by name or expression, on which a member is present while one of its connections is.',
      ],
      [
        'streams.presence.member',
        memberOf,
        null,
        false,
        'Function of what `authorize` answered that gives `{ id, metadata? }` or null; null: its `memberId`, `member_id` or `id`, and `metadata`.',
      ],
      [
        'streams.presence.timeout',
        seconds,
        '60s',
        true,
        'A connection whose process gave no sign of life for so long is gone.',
      ],
      [
        'streams.presence.sweepInterval',
        seconds,
        '60s',
        true,
        'How often a web process looks for connections that are gone.',
      ],
      [
        'streams.presence.broadcast',
        boolean,
        false,
        true,
        'Tell joins and leaves on the stream, as event `presence`: `{ type, id, metadata?, count }`.',
      ],
      [
        'streams.testMode',
        boolean,
        false,
        true,
        'Signature and authorisation are checked, then the stream ends: no connection, no LISTEN, no database.',
      ],
      ['streams.maxPayloadBytes', positiveInteger, 1_048_576, true, 'Largest broadcast, as stored.'],
    ],
  ],
  [
    'Maintenance',
    [
      [
        'archiveRetention',
        duration({ nullable: true, seconds: true }),
        '7d',
        true,
        'Age at which archived jobs and records of old failures are deleted; null: never.',
      ],
      [
        'dispatchInterval',
        seconds,
        '1s',
        true,
        'How often the maintenance process looks whether a task is due.',
      ],
    ],
  ],
  [
    'Recurring tasks',
    [
      [
        'recurring.tasks',
        recurringTasks,
        null,
        false,
        'Tasks by key: `{ job, schedule, timeZone?, args?, queue?, priority?, description?, enabled?, catchUp?, catchUpWindow? }`. `{}` removes those of an earlier configuration; null leaves the table alone.',
      ],
      [
        'recurring.interval',
        seconds,
        '1s',
        true,
        'Longest time between two looks of the scheduler at its tasks.',
      ],
      [
        'recurring.executionRetention',
        duration({ nullable: true, seconds: true }),
        '7d',
        true,
        'Age at which records of past runs are deleted; the newest of each task stays. Null: never.',
      ],
    ],
  ],
  [
    'Events',
    [
      [
        'idempotencyTtl',
        duration({ nullable: true, seconds: true }),
        '7d',
        true,
        'Age at which it is forgotten which idempotent handler has handled which event; null: never. An event that is delivered after that is handled again.',
      ],
    ],
  ],
  [
    'Outbox',
    [
      [
        'outbox.enabled',
        boolean,
        false,
        true,
        'Publish what the outbox holds: a poller in the maintenance process of `pgbus start`, with the role `outbox`.',
      ],
      [
        'outbox.pollInterval',
        duration({ timer: true }),
        '1s',
        true,
        'Pause of the poller while notifications do not arrive.',
      ],
      ['outbox.batchSize', positiveInteger, 100, true, 'Entries that are published in one transaction.'],
      [
        'outbox.retention',
        duration({ nullable: true, seconds: true }),
        '1d',
        true,
        'Age at which published entries are deleted; null: never.',
      ],
    ],
  ],
  [
    'Schema',
    [
      [
        'pgmq.schemaMode',
        oneOf(['auto', 'extension', 'embedded']),
        'auto',
        true,
        'Where the `pgmq` schema comes from: an installed extension, or the SQL that comes with pgbus.',
      ],
      [
        'migrations.onBoot',
        oneOf(['off', 'check', 'apply']),
        'check',
        true,
        '`check`: the supervisor warns about pending migrations. `apply`: it runs them first.',
      ],
      ['migrations.lockTimeout', seconds, '30s', true, 'Longest wait for another process that migrates.'],
    ],
  ],
  [
    'Web cluster',
    [
      ['web.app', hostText, null, true, 'Module that exports the web application.'],
      ['web.host', text(), '127.0.0.1', true, 'Address that `pgbus-web` listens on; `HOST` sets it too.'],
      [
        'web.port',
        integer({ min: 0, max: 65_535, rule: 'must be an integer between 0 and 65535' }),
        3_000,
        true,
        'Port that `pgbus-web` listens on, 0: a free one; `PORT` sets it too.',
      ],
      [
        'web.bind',
        binds,
        [],
        true,
        'Addresses instead of host and port: `tcp://host:port`, `ssl://host:port`, `unix:///path?mode=0660`, `fd://3`.',
      ],
      [
        'web.tls',
        tls,
        null,
        false,
        'Certificate of `ssl://` addresses; `key`, `cert` and `ca` are paths or PEM, `http2: true` adds HTTP/2.',
      ],
      [
        'web.workers',
        webWorkers,
        'auto',
        true,
        'Cluster workers, `auto`: one per CPU; 0: one process without a cluster. `WEB_CONCURRENCY` sets it too.',
      ],
      ['web.shutdownTimeout', seconds, '30s', true, 'Grace of a web worker at shutdown.'],
      ['web.bootTimeout', seconds, '60s', true, 'A web worker that is not ready after so long is replaced.'],
      ['web.checkInterval', seconds, '5s', true, 'How often a web worker says that it is alive.'],
      [
        'web.workerTimeout',
        seconds,
        '60s',
        true,
        'A web worker that has said nothing for so long is killed and replaced: its event loop stands still.',
      ],
      [
        'web.recycle.maxMemoryMb',
        positiveNumberOrNull,
        null,
        true,
        'A web worker that uses more MiB (resident set) is replaced.',
      ],
      [
        'web.recycle.maxLifetime',
        duration({ nullable: true, seconds: true }),
        null,
        true,
        'A web worker that is older, give or take 10 %, is replaced.',
      ],
      [
        'web.recycle.maxRequests',
        positiveIntegerOrNull,
        null,
        true,
        'A web worker that has received more requests is replaced.',
      ],
      [
        'web.restart.surge',
        surge,
        1,
        true,
        'Workers more than usual during a rolling restart, `all`: a new one for each old one at once; 0: each old one goes first.',
      ],
      [
        'web.directory',
        hostText,
        null,
        true,
        'Working directory of workers, which may be a symbolic link that a deployment moves; null: that of `pgbus-web`.',
      ],
      [
        'web.hubSocket',
        socketPath,
        null,
        true,
        'Path of the streams hub’s socket; null: in the temporary folder, named after the primary.',
      ],
    ],
  ],
  [
    'Health',
    [
      [
        'health.port',
        portOrNull,
        null,
        true,
        'Port of `/livez` and `/readyz` of `pgbus start`; null: none. `pgbus-health` reads the same variable.',
      ],
      ['health.bind', text(), '127.0.0.1', true, 'Address that the health port listens on.'],
      ['health.timeout', seconds, '5s', true, 'Longest time that a verdict on the whole cluster may take.'],
      [
        'health.cacheTtl',
        duration({ timer: true, zero: true, seconds: true }),
        '1s',
        true,
        'How long a mounted `/readyz` answers with the verdict it has; 0: one per request that finds none under way.',
      ],
      [
        'health.unreadGrace',
        duration({ zero: true, nullable: true, seconds: true }),
        null,
        true,
        'How long a message may be claimable and claimed by nobody before its queue stands still; null: `stallThreshold`, or 90 s without one.',
      ],
    ],
  ],
  [
    'Log and errors',
    [
      [
        'log.logger',
        logger,
        null,
        false,
        'A logger of the host (pino, `fastify.log`); its format and level stay as they are.',
      ],
      [
        'log.format',
        oneOf(['auto', 'text', 'json']),
        'auto',
        true,
        '`auto`: text on a terminal, else JSON lines.',
      ],
      [
        'log.level',
        oneOf(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']),
        'info',
        true,
        'Least severe level that is written.',
      ],
      [
        'errorReporters',
        reporters,
        [],
        false,
        'Functions `(error, context)` that are told each error nobody can catch.',
      ],
    ],
  ],
]

export const keys: readonly Key[] = sections.flatMap(([section, rows]) =>
  rows.map(([path, rule, fallback, env, doc]) => ({ path, rule, default: fallback, env, doc, section })),
)
export const keyByPath: ReadonlyMap<string, Key> = new Map(keys.map(key => [key.path, key]))

/** Paths whose value is a whole to the table: their own content is not a level of keys. */
export function isGroup(path: string): boolean {
  return keys.some(key => key.path.startsWith(`${path}.`))
}

/** `pool.size` → `PGBUS_POOL_SIZE`. */
export function variableName(path: string): string {
  return `PGBUS_${path
    .replaceAll('.', '_')
    .replace(/([a-z0-9])([A-Z])/g, '$1_$2')
    .toUpperCase()}`
}
