/** What has to be true before the first child is forked. Each step leaves at once when `signal` aborts. */
import type { LoadedConfig } from '../../config/load.ts'
import { isWildcard } from '../../config/queue-names.ts'
import { Backoff } from '../../core/backoff.ts'
import { SchemaNotReadyError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import type { Report } from '../../core/report.ts'
import { sleep } from '../../core/sleep.ts'
import { type Connector, destroyClient } from '../../db/connector.ts'
import type { Database } from '../../db/database.ts'
import { assertSchema, type MigrationStatus } from '../../db/migrate.ts'
import type { Schema } from '../../pgbus.ts'
import type { Queues } from '../../pgmq/queues.ts'
import { mayCome, unreachable } from '../unreachable.ts'
import { activeWorkers } from './roles.ts'

export interface DatabaseWaitOptions {
  loaded: Pick<LoadedConfig, 'config' | 'sources'>
  connector: Connector
  log: Logger
  signal: AbortSignal
  /** Connects once; default: a connection that is closed again. */
  connect?: (() => Promise<void>) | undefined
  /** Monotonic milliseconds. */
  now?: (() => number) | undefined
  wait?: ((ms: number, signal: AbortSignal) => Promise<void>) | undefined
}

const retryBaseMs = 1_000
const retryMaxMs = 5_000

/**
 * Resolves when the database answers. One that is not there *yet* is waited for, for `databaseWait`; a wrong
 * password or name fails at once.
 * @throws BootError naming source, host and database.
 */
export async function waitForDatabase(options: DatabaseWaitOptions): Promise<void> {
  const { loaded, connector, log, signal, now = () => performance.now(), wait = sleep } = options
  const connect = options.connect ?? (() => connectOnce(loaded, connector))
  const { databaseWait } = loaded.config
  const backoff = new Backoff({ base: retryBaseMs, max: retryMaxMs })
  const until = now() + databaseWait
  let warned = false
  while (!signal.aborted) {
    try {
      await orAborted(connect(), signal)
      if (warned && !signal.aborted) log.info('the database answers')
      return
    } catch (error) {
      if (signal.aborted) return
      const failure = unreachable(error, loaded, connector)
      const left = until - now()
      if (!mayCome(error) || left <= 0) throw failure
      if (!warned) log.warn(`${failure.message}; trying again for ${Math.ceil(databaseWait / 1000)} s`)
      warned = true
      await wait(Math.min(backoff.next(), left), signal)
    }
  }
}

async function connectOnce({ config }: Pick<LoadedConfig, 'config'>, connector: Connector): Promise<void> {
  const client = await connector.connect({
    target: 'base',
    applicationName: config.connection.applicationName,
    statementTimeout: config.readTimeout ?? 0,
    mustBePrimary: config.requirePrimary,
  })
  try {
    await client.query('SELECT 1')
  } finally {
    await destroyClient(client)
  }
}

/** Follows `migrations.onBoot`, then makes sure that the schema is there. */
export async function prepareSchema(options: {
  loaded: Pick<LoadedConfig, 'config'>
  schema: Schema
  db: Pick<Database, 'query'>
  log: Logger
}): Promise<MigrationStatus | undefined> {
  const { loaded, schema, db, log } = options
  const { onBoot } = loaded.config.migrations
  if (onBoot === 'apply') await schema.migrate({ log: line => log.info(`migrations: ${line}`) })
  await assertSchema(db)
  if (onBoot !== 'check') return undefined
  const status = await schema.status()
  if (status.pending.length > 0) {
    log.warn(
      { pending: status.pending },
      `${status.pending.length} migrations are pending — run "pgbus migrate"`,
    )
  }
  return status
}

/** Creates the queues that the configuration names. Only a missing schema is fatal: children try again. */
export async function ensureQueues(options: {
  config: LoadedConfig['config']
  queues: Pick<Queues, 'ensure'>
  report: Report
  signal: AbortSignal
}): Promise<void> {
  const { config, queues, report, signal } = options
  const named = activeWorkers(config)
    .flatMap(entry => entry.queues)
    .filter(queue => !isWildcard(queue))
  const names = new Set([config.defaultQueue, ...named])
  for (const name of names) {
    if (signal.aborted) return
    try {
      await queues.ensure(name)
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof SchemaNotReadyError || error instanceof TypeError) throw error
      report(error, { action: 'bootstrap_queues', queue: name })
    }
  }
}

/** The promise's outcome, or undefined as soon as `signal` aborts. What comes later is nobody's concern. */
export async function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T | undefined> {
  promise.catch(() => undefined)
  if (signal.aborted) return undefined
  let leave: () => void = () => undefined
  const aborted = new Promise<undefined>(resolve => {
    leave = () => resolve(undefined)
    signal.addEventListener('abort', leave, { once: true })
  })
  try {
    return await Promise.race([promise, aborted])
  } finally {
    signal.removeEventListener('abort', leave)
  }
}
