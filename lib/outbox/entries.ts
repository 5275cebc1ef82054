import { PgbusError } from '../core/errors.ts'
import type { Database } from '../db/database.ts'
import { type PageOptions, readPage } from '../jobs/paging.ts'

/** An entry that is not published yet, without its content. */
export interface OutboxEntry {
  id: number
  /** Logical name; null: it is an event. */
  queue: string | null
  /** Null: it is a message of a queue. */
  routingKey: string | null
  /** How often it could not be sent. */
  attempts: number
  lastError: string | null
  createdAt: Date
  /** When it is tried again; null: as soon as possible. */
  availableAt: Date | null
}

export interface OutboxPage {
  /** Of all pages. */
  total: number
  entries: OutboxEntry[]
}

export interface OutboxStats {
  /** Not published yet, those that failed included. */
  waiting: number
  /** Of these, those that could not be sent at least once. */
  failing: number
  /** Age of the oldest of them, ms; null: there is none. */
  oldestAge: number | null
}

/** What waits in the outbox: look at it, try it again, throw it away. */
export class Entries {
  readonly #db: Database

  /** @internal */
  constructor(db: Database) {
    this.#db = db
  }

  /** Entries that are not published, oldest first. `failing`: only those that could not be sent. */
  async list({
    failing = false,
    ...pageOptions
  }: PageOptions & { failing?: boolean | undefined } = {}): Promise<OutboxPage> {
    const { page, perPage } = readPage(pageOptions)
    const { rows } = await this.#db.query<{
      id: number
      queue_name: string | null
      routing_key: string | null
      attempts: number
      last_error: string | null
      created_at: Date
      available_at: Date | null
      total: number
    }>(
      `SELECT id, queue_name, routing_key, attempts, last_error, created_at, available_at, count(*) OVER () AS total
  FROM pgbus_outbox_entries WHERE published_at IS NULL AND (NOT $1::boolean OR attempts > 0)
 ORDER BY id LIMIT $2::int OFFSET $3::int`,
      [failing, perPage, (page - 1) * perPage],
    )
    return {
      total: rows[0]?.total ?? 0,
      entries: rows.map(row => ({
        id: row.id,
        queue: row.queue_name,
        routingKey: row.routing_key,
        attempts: row.attempts,
        lastError: row.last_error,
        createdAt: row.created_at,
        availableAt: row.available_at,
      })),
    }
  }

  async stats(): Promise<OutboxStats> {
    const { rows } = await this.#db.query<{ waiting: number; failing: number; age: number | null }>(
      `SELECT count(*) AS waiting, count(*) FILTER (WHERE attempts > 0) AS failing,
       (extract(epoch FROM (clock_timestamp() AT TIME ZONE 'UTC') - min(created_at)) * 1000)::float8 AS age
  FROM pgbus_outbox_entries WHERE published_at IS NULL`,
    )
    const { waiting, failing, age } = rows[0]!
    return { waiting, failing, oldestAge: age === null ? null : Math.max(0, Math.round(age)) }
  }

  /**
   * Lets one entry that failed be tried at the next look of a poller.
   * @throws PgbusError when there is none that waits.
   */
  async retry(id: number): Promise<void> {
    const { rowCount } = await this.#db.query(
      'UPDATE pgbus_outbox_entries SET available_at = NULL WHERE id = $1 AND published_at IS NULL',
      [checkId(id)],
    )
    if (rowCount === 0) throw missing(id)
  }

  /** Lets all entries that failed be tried at the next look of a poller; resolves to how many. */
  async retryAll(): Promise<number> {
    const { rowCount } = await this.#db.query(
      'UPDATE pgbus_outbox_entries SET available_at = NULL WHERE published_at IS NULL AND available_at IS NOT NULL',
    )
    return rowCount
  }

  /** Deletes one entry that is not published. @throws PgbusError when there is none. */
  async discard(id: number): Promise<void> {
    const { rowCount } = await this.#db.query(
      'DELETE FROM pgbus_outbox_entries WHERE id = $1 AND published_at IS NULL',
      [checkId(id)],
    )
    if (rowCount === 0) throw missing(id)
  }
}

function checkId(id: number): number {
  if (Number.isSafeInteger(id) && id > 0) return id
  throw new TypeError(`the id of an outbox entry must be a positive integer, got ${String(id)}`)
}

function missing(id: number): PgbusError {
  return new PgbusError(`no entry ${id} waits in the outbox (any more)`)
}
