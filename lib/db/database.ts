import pg from 'pg'
import { ClosedError, PoolTimeoutError, ReadTimeoutError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { sleep } from '../core/sleep.ts'
import { type ConnectOptions, type Connector, withPoolerHint } from './connector.ts'

/**
 * Anything with a `query` that runs SQL on **one** connection: a `pg.Client`, a pooled client, or an adapter.
 * Passed as `{ tx }`, it makes an enqueue or a broadcast part of the caller's own transaction.
 */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

export interface Result<R> {
  rows: R[]
  rowCount: number
}

export interface Statement {
  text: string
  values?: unknown[] | undefined
  /** Name of a prepared statement: parsed and planned once per connection. */
  name?: string | undefined
  /** The statement may run twice without harm, so a connection lost in the middle of it is no reason to give up. */
  idempotent?: boolean | undefined
}

/** A transaction of ours, on a pooled client. */
export interface Transaction extends Queryable {
  query<R = Record<string, unknown>>(text: string, values?: unknown[]): Promise<Result<R>>
}

export interface PoolStats {
  size: number
  total: number
  available: number
  waiting: number
}

export interface DatabaseOptions {
  connector: Connector
  connect: ConnectOptions
  size: number
  /** Configuration key of `size`, for the advice in errors. */
  sizeKey: 'pool.size' | 'streams.pool.size'
  /** Longest wait for a free connection, ms. */
  timeout: number
  /** Server-side limit of a statement, ms; the client gives up 5 s later. Null: no limit. */
  readTimeout: number | null
  requirePrimary: boolean
  log: Logger
}

const retryDelaysMs = [100, 500]
const idleTimeoutMs = 30_000
const maxLifetimeSeconds = 1_800
const clientGraceMs = 5_000
/** A connection unused for longer is looked at before it is used; a busy one was looked at just now. */
const idleCheckMs = 2

/**
 * One pool of connections. Two safe retries (after 100 and 500 ms) when a failure proves that nothing was
 * sent; a statement marked `idempotent` is also repeated once after its connection died under it.
 */
export class Database {
  readonly #pool: pg.Pool
  readonly #options: DatabaseOptions
  readonly #idleSince = new WeakMap<pg.PoolClient, number>()
  /** A pooler gives each transaction another session: what was prepared is not there, or was by somebody else. */
  #unnamed = false
  #closed: Promise<void> | undefined

  constructor(options: DatabaseOptions) {
    this.#options = options
    const { connector, connect } = options
    this.#pool = new pg.Pool({
      ...connector.clientConfig(connect),
      max: options.size,
      connectionTimeoutMillis: options.timeout,
      idleTimeoutMillis: idleTimeoutMs,
      // A spread of ten percent, so that the connections of a fleet do not all end together.
      maxLifetimeSeconds: Math.round(maxLifetimeSeconds * (0.9 + Math.random() * 0.2)),
      allowExitOnIdle: true,
      // The pool waits for the promise; its types do not say so.
      onConnect: (client =>
        connector.prepare(client, connect, options.requirePrimary)) as pg.PoolConfig['onConnect'] & object,
    })
    // An idle client that the server ended emits here; without a handler the process would end.
    this.#pool.on('error', error =>
      options.log.info(
        { err: error },
        'an idle database connection was closed; the pool reconnects on its next use',
      ),
    )
  }

  get stats(): PoolStats {
    const { totalCount, idleCount, waitingCount } = this.#pool
    return { size: this.#options.size, total: totalCount, available: idleCount, waiting: waitingCount }
  }

  /** Where this pool connects, as `host/database`. */
  get description(): string {
    return this.#options.connector.describe(this.#options.connect.target)
  }

  /**
   * Runs one statement.
   * @throws PoolTimeoutError when no connection became free, ReadTimeoutError when the statement ran too long,
   * else the driver's error, unchanged.
   */
  async query<R = Record<string, unknown>>(
    statement: Statement | string,
    values?: unknown[],
  ): Promise<Result<R>> {
    const query: Statement = typeof statement === 'string' ? { text: statement, values } : statement
    for (let attempt = 0; ; attempt += 1) {
      let sent = false
      try {
        return await this.#withClient(client => {
          sent = true
          return this.#send<R>(client, query)
        })
      } catch (error) {
        if (query.name !== undefined && namesAnotherSession(error)) {
          // Refused before anything ran. The next try is the first that counts.
          this.#useUnnamed(error)
          return this.query<R>({ ...query, name: undefined })
        }
        const delay = retryDelaysMs[attempt]
        const safe =
          provesNothingRan(error) ||
          (sent && query.idempotent === true && attempt === 0 && isConnectionError(error))
        if (delay === undefined || this.#closed || !safe || error instanceof PoolTimeoutError) throw error
        await sleep(delay)
      }
    }
  }

  /** Runs `fn` between BEGIN and COMMIT; an error rolls back and is rethrown. */
  async transaction<T>(fn: (tx: Transaction) => Promise<T>): Promise<T> {
    for (let attempt = 0; ; attempt += 1) {
      let begun = false
      try {
        return await this.#withClient(async client => {
          await this.#send(client, { text: 'BEGIN' })
          begun = true
          return await this.#finish(client, fn)
        })
      } catch (error) {
        // Before BEGIN was answered nothing of the caller's has run.
        const delay = retryDelaysMs[attempt]
        if (begun || delay === undefined || this.#closed || !isConnectionError(error)) throw error
        await sleep(delay)
      }
    }
  }

  async #finish<T>(client: pg.PoolClient, fn: (tx: Transaction) => Promise<T>): Promise<T> {
    try {
      const result = await fn({ query: (text, values) => this.#send(client, { text, values }) })
      await this.#send(client, { text: 'COMMIT' })
      return result
    } catch (error) {
      // The connection may be gone, which rolls back just as well.
      await this.#send(client, { text: 'ROLLBACK' }).catch(() => undefined)
      throw error
    }
  }

  /** Ends all connections; resolves when they are closed. Waits for running statements for at most `timeout` ms. */
  close(timeout = 5_000): Promise<void> {
    this.#closed ??= this.#close(timeout)
    return this.#closed
  }

  async #close(timeout: number): Promise<void> {
    const ended = this.#pool.end()
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<'late'>(resolve => {
      timer = setTimeout(() => resolve('late'), timeout)
    })
    if ((await Promise.race([ended, late])) === 'late') {
      for (const client of (this.#pool as unknown as { _clients: pg.PoolClient[] })._clients)
        destroySocket(client)
      await ended.catch(() => undefined)
    }
    clearTimeout(timer)
  }

  async #withClient<T>(fn: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#checkoutAlive()
    // A client in use is not covered by the pool's own handler.
    let broken: Error | undefined
    const onError = (error: Error) => {
      broken = error
    }
    client.on('error', onError)
    try {
      return await fn(client)
    } catch (error) {
      if (isConnectionError(error)) broken = error as Error
      throw error
    } finally {
      client.removeListener('error', onError)
      this.#idleSince.set(client, performance.now())
      client.release(broken)
    }
  }

  /**
   * A client whose connection is not known to be dead. The server's goodbye to an idle connection may lie
   * unread in the socket: a whole turn of the event loop reads it, so that nothing is sent into a closed
   * connection and its outcome stays certain.
   */
  async #checkoutAlive(): Promise<pg.PoolClient> {
    for (;;) {
      const client = await this.#checkout()
      const idleSince = this.#idleSince.get(client)
      if (idleSince === undefined || performance.now() - idleSince < idleCheckMs) return client
      let dead: Error | undefined
      const onError = (error: Error) => {
        dead = error
      }
      client.on('error', onError)
      // The first may come before sockets are read in this turn, the second comes after they were in the next.
      for (let turn = 0; turn < 2; turn += 1) await new Promise(resolve => setImmediate(resolve))
      client.removeListener('error', onError)
      if (dead === undefined) return client
      client.release(dead)
    }
  }

  async #checkout(): Promise<pg.PoolClient> {
    try {
      return await this.#pool.connect()
    } catch (error) {
      if (this.#closed) throw new ClosedError('this pgbus instance was closed meanwhile', { cause: error })
      if (error instanceof Error && error.message === 'timeout exceeded when trying to connect') {
        const { size, available, waiting } = this.stats
        throw new PoolTimeoutError(
          `no database connection became free (size ${size}, available ${available}, waiting ${waiting}, timeout ${this.#options.timeout} ms) — raise ${this.#options.sizeKey} or lower concurrency`,
          { cause: error },
        )
      }
      throw withPoolerHint(error)
    }
  }

  /** For good: the pooler will not change under a running process. */
  #useUnnamed(error: unknown): void {
    if (this.#unnamed) return
    this.#unnamed = true
    this.#options.log.warn(
      { err: error },
      'a pooler in transaction mode does not keep prepared statements; this pool goes on without them. PgBouncer 1.21 and newer keeps them when max_prepared_statements is set',
    )
  }

  async #send<R>(client: pg.PoolClient, query: Statement): Promise<Result<R>> {
    const { readTimeout } = this.#options
    const config: pg.QueryConfig = { text: query.text }
    if (query.values !== undefined) config.values = query.values
    if (query.name !== undefined && !this.#unnamed) config.name = query.name
    let timer: NodeJS.Timeout | undefined
    let timedOut = false
    if (readTimeout !== null) {
      // The server's own limit comes first; this one covers a peer that vanished. The socket is destroyed,
      // because a connection cut in the middle of a reply must never serve the next caller.
      timer = setTimeout(() => {
        timedOut = true
        destroySocket(client)
      }, readTimeout + clientGraceMs)
    }
    try {
      const result = await client.query(config)
      return { rows: result.rows as R[], rowCount: result.rowCount ?? 0 }
    } catch (error) {
      if (
        timedOut ||
        (sqlState(error) === '57014' && error instanceof Error && error.message.includes('statement timeout'))
      ) {
        throw new ReadTimeoutError(`a statement ran longer than readTimeout (${readTimeout} ms)`, {
          cause: error,
        })
      }
      throw error
    } finally {
      clearTimeout(timer)
    }
  }
}

function destroySocket(client: pg.ClientBase): void {
  ;(client as unknown as { connection?: { stream?: { destroy(): void } } }).connection?.stream?.destroy()
}

/** The SQLSTATE or system error code of an error, or `''`. */
export function sqlState(error: unknown): string {
  if (typeof error !== 'object' || error === null) return ''
  const code = (error as { code?: unknown }).code
  return typeof code === 'string' ? code : ''
}

/** No connection was made, so nothing was sent. `ENOENT` is a missing Unix socket. */
const unreachableCodes = new Set([
  'ECONNREFUSED',
  'ENOENT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'EHOSTDOWN',
  'ENETUNREACH',
  'EADDRNOTAVAIL',
])
/** The server answered that it takes nobody now. */
const refusedCodes = new Set(['57P03', '53300'])
/** A connection that existed is gone; what it was doing may have been done. */
const lostCodes = new Set(['ECONNRESET', 'ETIMEDOUT', 'EPIPE', '57P01', '57P02', '57P05'])

/** The connection is gone or was never there; says nothing about whether a statement ran. */
export function isConnectionError(error: unknown): boolean {
  const code = sqlState(error)
  if (unreachableCodes.has(code) || refusedCodes.has(code) || lostCodes.has(code) || code.startsWith('08'))
    return true
  return (
    error instanceof Error &&
    /Connection terminated|Client has encountered a connection error/.test(error.message)
  )
}

/** A failure after which it is certain that the server never saw the statement. */
export function provesNothingRan(error: unknown): boolean {
  if (error instanceof PoolTimeoutError || error instanceof ClosedError) return true
  const code = sqlState(error)
  if (unreachableCodes.has(code) || code === '57P03') return true
  return (
    error instanceof Error &&
    /Client has encountered a connection error and is not queryable|Client was closed and is not queryable/.test(
      error.message,
    )
  )
}

/** The statement lost against another, and would do if it were run again. */
export function isConflict(error: unknown): boolean {
  return sqlState(error) === '40001' || sqlState(error) === '40P01'
}

/** Preparing or binding a named statement met a session that is not the one of last time. */
function namesAnotherSession(error: unknown): boolean {
  const code = sqlState(error)
  return code === '26000' || code === '42P05'
}

/** The database cannot be reached *yet*: worth waiting for. A wrong password or database name is not. */
export function isNotThereYet(error: unknown): boolean {
  const code = sqlState(error)
  if (unreachableCodes.has(code) || refusedCodes.has(code)) return true
  return (
    code === 'ECONNRESET' ||
    code === 'ETIMEDOUT' ||
    (error instanceof Error && /Connection terminated/.test(error.message))
  )
}
