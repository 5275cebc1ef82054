import { crc32 } from 'node:zlib'
import type pg from 'pg'
import { Backoff } from '../core/backoff.ts'
import { ClosedError, ConfigurationError, PgbusError, ReadTimeoutError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { toError } from '../core/report.ts'
import { exclusiveQueueLock } from '../db/advisory-locks.ts'
import { type Connector, destroyClient } from '../db/connector.ts'
import type { Result, Statement } from '../db/database.ts'

export interface ExclusiveQueuesOptions {
  connector: Connector
  /** Milliseconds; null: none. */
  readTimeout: number | null
  log: Logger
  /** The connection is gone, and with it the right to these queues. */
  onLost: (names: readonly string[]) => void
  /** How often a queue that somebody else holds is tried again, ms. */
  retryMs?: number | undefined
}

const clientGraceMs = 5_000

/**
 * The queues that this worker alone may claim from, held as session locks on a connection of their own.
 *
 * Claims of these queues run on that same connection: without it there is neither a lock nor a claim, so no two
 * workers can both believe that they hold a queue. A worker that ends, or whose connection breaks, lets go at
 * once.
 */
export class ExclusiveQueues {
  readonly #options: ExclusiveQueuesOptions
  readonly #retryMs: number
  readonly #backoff = new Backoff({ base: 250, max: 5_000, random: Math.random })
  readonly #held = new Set<string>()
  #client: pg.Client | undefined
  #connectAt = 0
  #tryAt = 0
  #outage = false
  #closed = false

  constructor(options: ExclusiveQueuesOptions) {
    this.#options = options
    this.#retryMs = options.retryMs ?? 1_000
  }

  holds(name: string): boolean {
    return this.#held.has(name)
  }

  /**
   * Tries to take the queues that it does not hold. Connects where necessary.
   * @throws ConfigurationError behind a pooler that gives each statement another session; else the driver's error.
   */
  async acquire(names: readonly string[]): Promise<void> {
    if (this.#closed) return
    const now = performance.now()
    if (!this.#client && now < this.#connectAt) return
    const client = this.#client ?? (await this.#connect())
    const wanted = names.filter(name => !this.#held.has(name))
    if (wanted.length === 0 || now < this.#tryAt) return
    this.#tryAt = now + this.#retryMs
    const { rows } = await this.query<{ name: string }>({
      text: `SELECT name FROM unnest($1::text[], $2::int[]) AS queue (name, key)
 WHERE pg_try_advisory_lock($3::int, key)`,
      values: [wanted, wanted.map(lockKey), exclusiveQueueLock],
    })
    // Gone meanwhile: then the locks are gone too.
    if (this.#client !== client) return
    for (const { name } of rows) this.#held.add(name)
    if (rows.length > 0) {
      this.#options.log.info(
        { queues: rows.map(row => row.name) },
        'this worker alone reads these queues now',
      )
    }
  }

  /** Runs a statement on the connection that holds the locks. */
  async query<R>(statement: Statement): Promise<Result<R>> {
    const client = this.#client
    if (!client) throw new PgbusError('the connection that holds the queues is gone')
    const { readTimeout } = this.#options
    let timer: NodeJS.Timeout | undefined
    let late = false
    if (readTimeout !== null) {
      timer = setTimeout(() => {
        late = true
        this.#lose(client, new Error('no answer'))
      }, readTimeout + clientGraceMs)
    }
    try {
      const { text, values, name } = statement
      const result = await client.query({ text, ...(values && { values }), ...(name && { name }) })
      return { rows: result.rows as R[], rowCount: result.rowCount ?? 0 }
    } catch (error) {
      if (!late) throw error
      throw new ReadTimeoutError(`a claim ran longer than readTimeout (${readTimeout} ms)`, { cause: error })
    } finally {
      clearTimeout(timer)
    }
  }

  /** Lets go of everything, so that another worker can take over at once. */
  async close(): Promise<void> {
    this.#closed = true
    const client = this.#client
    this.#client = undefined
    this.#held.clear()
    if (client) await destroyClient(client)
  }

  async #connect(): Promise<pg.Client> {
    const { connector, readTimeout, log } = this.#options
    let client: pg.Client | undefined
    try {
      client = await connector.connect({
        target: 'notify',
        applicationName: 'pgbus-lock',
        statementTimeout: readTimeout ?? 0,
        mustBePrimary: true,
        onError: error => client && this.#lose(client, error),
      })
      await assertOneSession(client)
    } catch (error) {
      if (client) await destroyClient(client)
      this.#connectAt = performance.now() + this.#backoff.next()
      if (!this.#outage) {
        log.warn({ err: error }, 'there is no connection to hold queues with; they are left to other workers')
      }
      this.#outage = true
      throw error
    }
    const own = client
    own.once('end', () => this.#lose(own, new Error('the connection ended')))
    if (this.#closed) {
      await destroyClient(own)
      throw new ClosedError('the worker is closed')
    }
    this.#client = own
    this.#tryAt = 0
    this.#backoff.reset()
    if (this.#outage) log.info('there is a connection to hold queues with again')
    this.#outage = false
    return own
  }

  #lose(client: pg.Client, thrown: unknown): void {
    if (this.#client !== client) return
    this.#client = undefined
    const names = [...this.#held]
    this.#held.clear()
    void destroyClient(client)
    this.#outage = true
    this.#options.log.warn(
      { err: toError(thrown), queues: names },
      'the connection that held these queues is gone; others may read them now',
    )
    if (names.length > 0) this.#options.onLost(names)
  }
}

/** Other clients of these tables lock the same number. */
function lockKey(name: string): number {
  return crc32(name) & 0x7fffffff
}

/** A pooler in transaction mode would give the lock to a session that serves somebody else next. */
async function assertOneSession(client: pg.Client): Promise<void> {
  const pids = new Set<number>()
  for (let statement = 0; statement < 3; statement += 1) {
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
    pids.add(rows[0]!.pid)
  }
  if (pids.size === 1) return
  throw new ConfigurationError(
    'singleActiveConsumer needs a session of its own, but statements of one connection run in several (a pooler in transaction mode) — point notify.databaseUrl at the server itself',
  )
}
