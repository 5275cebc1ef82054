import pg from 'pg'
import type { ResolvedConfig, ResolvedTarget } from '../config/options.ts'
import { ConfigurationError, ReplicaConnectionError } from '../core/errors.ts'
import { quoteIdentifier } from './identifier.ts'

/** Which target of the configuration a connection uses; `notify`, `streams` and `streamsPool` fall back to `base`. */
export type TargetName = 'base' | 'notify' | 'streams' | 'streamsPool'

export interface ConnectOptions {
  target: TargetName
  /** `application_name`, unless the URL names one. */
  applicationName: string
  /** `statement_timeout` in milliseconds; 0 = none. */
  statementTimeout: number
}

const connectTimeoutMs = 10_000
const keepAliveDelayMs = 30_000

/** Parses PostgreSQL's types the way pgbus wants them, without touching the process-wide parsers of `pg`. */
const types: pg.CustomTypesConfig = {
  getTypeParser: ((oid: number, format?: 'text' | 'binary') => {
    if (format !== 'binary') {
      if (oid === pg.types.builtins.INT8) return parseInt8
      if (oid === pg.types.builtins.TIMESTAMP) return parseUtcTimestamp
    }
    return pg.types.getTypeParser(oid, format as 'text')
  }) as typeof pg.types.getTypeParser,
}

/**
 * Builds every connection of an instance: target, TLS, name, session settings and an `error` handler that
 * is there before the first byte. A `pg` client that emits `error` without a handler ends the process.
 */
export class Connector {
  readonly #config: ResolvedConfig

  constructor(config: ResolvedConfig) {
    this.#config = config
  }

  /** `host/database` of a target, for banners and errors. Never holds a credential. */
  describe(target: TargetName): string {
    const { connectionString, host, port, database } = this.#resolve(target)
    const url = connectionString === undefined ? undefined : parseUrl(connectionString)
    const shownHost = url ? url.hostname || 'socket' : (host ?? process.env.PGHOST ?? 'socket')
    const shownPort = url ? url.port : port === undefined ? '' : String(port)
    const shownDatabase = url ? url.pathname.slice(1) : (database ?? process.env.PGDATABASE ?? '')
    return `${decode(shownHost)}${shownPort === '' ? '' : `:${shownPort}`}/${decode(shownDatabase)}`
  }

  /** Options of a client. Session settings that must not travel in the start-up packet are left to {@link prepare}. */
  clientConfig(options: ConnectOptions): pg.ClientConfig {
    const { ssl, variables, gucMode } = this.#config.connection
    const config: pg.ClientConfig = {
      ...this.#resolve(options.target),
      application_name: options.applicationName,
      fallback_application_name: options.applicationName,
      connectionTimeoutMillis: connectTimeoutMs,
      keepAlive: true,
      keepAliveInitialDelayMillis: keepAliveDelayMs,
      types,
    }
    if (
      config.connectionString !== undefined &&
      parseUrl(config.connectionString)?.searchParams.has('application_name')
    ) {
      delete config.application_name
    }
    // A copy: the driver changes the object, and the configuration is frozen.
    if (ssl !== null) config.ssl = typeof ssl === 'object' ? { ...ssl } : ssl
    // The driver would let `options` of the URL replace ours.
    const url = config.connectionString === undefined ? undefined : parseUrl(config.connectionString)
    const ownOptions = url?.searchParams.get('options') ?? ''
    if (url && ownOptions !== '') {
      url.searchParams.delete('options')
      config.connectionString = url.toString()
      config.options = ownOptions
    }
    if (gucMode === 'options') {
      const settings = startupOptions({
        // A plan made while a queue was nearly empty scans the whole table; kept for a queue that has grown to
        // 300 000 rows, it took 460 ms per claim instead of 1. Planning each time costs less than 0.1 ms.
        plan_cache_mode: 'force_custom_plan',
        ...variables,
        timezone: 'UTC',
        statement_timeout: options.statementTimeout,
      })
      config.options = ownOptions === '' ? settings : `${ownOptions} ${settings}`
    }
    return config
  }

  /** Applies what the start-up packet could not carry. On failure the connection is closed before the error is rethrown. */
  async prepare(client: pg.ClientBase, options: ConnectOptions, mustBePrimary: boolean): Promise<void> {
    const { variables, gucMode } = this.#config.connection
    if (gucMode === 'session') {
      // Behind a transaction pooler a plain SET leaks to the next client of the server connection, so only
      // what is the same for every client of ours is set; statement_timeout is left to the client-side deadline.
      for (const [name, value] of Object.entries({ ...variables, TimeZone: 'UTC' })) {
        await client.query(
          `SET ${name.split('.').map(quoteIdentifier).join('.')} = ${pg.escapeLiteral(String(value))}`,
        )
      }
    }
    if (mustBePrimary) {
      const { rows } = await client.query<{ standby: boolean }>('SELECT pg_is_in_recovery() AS standby')
      if (rows[0]?.standby) {
        throw new ReplicaConnectionError(
          `${this.describe(options.target)} is a standby; connect to the primary`,
        )
      }
    }
  }

  /** Opens a connection of its own (LISTEN, locks, migrations). The caller ends it. */
  async connect(
    options: ConnectOptions & { mustBePrimary?: boolean; onError?: (error: Error) => void },
  ): Promise<pg.Client> {
    const client = new pg.Client(this.clientConfig(options))
    // Before connect: an error without a handler would end the process.
    client.on('error', error => options.onError?.(error))
    try {
      await client.connect()
      await this.prepare(client, options, options.mustBePrimary ?? false)
      return client
    } catch (error) {
      await destroyClient(client)
      throw withPoolerHint(error)
    }
  }

  #resolve(target: TargetName): Partial<pg.ClientConfig> {
    const base = this.#baseConfig()
    for (const override of this.#overrides(target)) {
      if (override.databaseUrl !== null) return { connectionString: override.databaseUrl }
      if (override.host !== null || override.port !== null) return replaceAddress(base, override)
    }
    return base
  }

  /** Most specific first (streams pool, then streams, then the base). */
  #overrides(target: TargetName): ResolvedTarget[] {
    const { notify, streams } = this.#config
    if (target === 'notify') return [notify]
    if (target === 'streams') return [streams]
    if (target === 'streamsPool') return [streams.pool, streams]
    return []
  }

  #baseConfig(): Partial<pg.ClientConfig> {
    const { databaseUrl, connection } = this.#config
    if (databaseUrl !== null) return { connectionString: databaseUrl }
    const parts: Partial<pg.ClientConfig> = {}
    // A field that is not set stays absent: the driver then follows libpq's own rules (PGHOST, socket directory).
    if (connection.host !== null) parts.host = connection.host
    if (connection.port !== null) parts.port = connection.port
    if (connection.database !== null) parts.database = connection.database
    if (connection.user !== null) parts.user = connection.user
    if (connection.password !== null) parts.password = connection.password
    if (Object.keys(parts).length === 0 && !process.env.PGHOST && !process.env.PGDATABASE) {
      throw new ConfigurationError(
        'no database configured — set databaseUrl, connection, or PGBUS_DATABASE_URL',
      )
    }
    return parts
  }
}

/** Closes a client that may be half open: politely for a moment, then by its socket. */
export async function destroyClient(client: pg.Client): Promise<void> {
  const socket = (client as unknown as { connection?: { stream?: { destroy(): void } } }).connection?.stream
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<void>(resolve => {
    timer = setTimeout(resolve, 2_000)
  })
  await Promise.race([client.end().catch(() => undefined), limit])
  clearTimeout(timer)
  socket?.destroy()
}

function replaceAddress(base: Partial<pg.ClientConfig>, override: ResolvedTarget): Partial<pg.ClientConfig> {
  if (base.connectionString === undefined) {
    return {
      ...base,
      ...(override.host === null ? {} : { host: override.host }),
      ...(override.port === null ? {} : { port: override.port }),
    }
  }
  const url = new URL(base.connectionString)
  if (override.host !== null) url.hostname = override.host
  if (override.port !== null) url.port = String(override.port)
  return { connectionString: url.toString() }
}

/** For people to read: what is no valid encoding is shown as it is. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

/** `-c name=value` pairs; blanks and backslashes in values are escaped as the server wants them. */
function startupOptions(settings: Record<string, string | number | boolean>): string {
  return Object.entries(settings)
    .map(([name, value]) => `-c ${name}=${String(value).replace(/[\s\\]/g, '\\$&')}`)
    .join(' ')
}

/** A pooler in transaction mode refuses start-up options; its own message does not say what to do. */
export function withPoolerHint(error: unknown): unknown {
  if (error instanceof Error && /unsupported startup parameter(?!.*gucMode)/.test(error.message)) {
    error.message += ' — set connection.gucMode to "session"'
  }
  return error
}

function parseUrl(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}

function parseInt8(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value)) throw new RangeError(`bigint ${text} is above 2^53 - 1`)
  return value
}

/** `timestamp` columns hold UTC; the driver's own parser would read them in the zone of the process. */
function parseUtcTimestamp(text: string): Date | number {
  if (text === 'infinity') return Number.POSITIVE_INFINITY
  if (text === '-infinity') return Number.NEGATIVE_INFINITY
  return new Date(`${text.replace(' ', 'T')}Z`)
}
