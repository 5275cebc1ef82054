import { createHash } from 'node:crypto'
import { SchemaNotReadyError } from '../core/errors.ts'
import { type Database, type Queryable, type Result, type Statement, sqlState } from '../db/database.ts'
import type { StreamBounds, StreamRow, StreamStore } from './store.ts'

/**
 * All streams in one table, `pgbus_stream_messages`. Appending goes through `pgbus_stream_append()`, which
 * makes the order of ids within a stream the order of commits.
 *
 * Statements are not prepared: the pool may stand behind a pooler that gives each one another session.
 */
export class SharedStore implements StreamStore {
  readonly #db: Database

  constructor(db: Database) {
    this.#db = db
  }

  /** As `pgbus_stream_channel()`: of fixed length, whatever the name. */
  channel(stream: string): string {
    return `pgbus.s.${createHash('sha256').update(stream).digest('hex').slice(0, 32)}`
  }

  async append(stream: string, message: string, tx?: Queryable): Promise<number | null> {
    if (tx) {
      // Becomes a message during the caller's commit, so that the stream is locked only then.
      await tx.query('INSERT INTO pgbus_stream_pending (stream, message) VALUES ($1, $2::jsonb)', [
        stream,
        message,
      ])
      return null
    }
    const { rows } = await this.#query<{ id: number }>({
      text: 'SELECT pgbus_stream_append($1, $2::jsonb) AS id',
      values: [stream, message],
    })
    return rows[0]!.id
  }

  async notify(stream: string, message: string, tx?: Queryable): Promise<void> {
    const text = 'SELECT pg_notify($1, $2)'
    const values = [this.channel(stream), message]
    await (tx ? tx.query(text, values) : this.#query({ text, values }))
  }

  async readAfter(stream: string, id: number, limit: number): Promise<StreamRow[]> {
    const { rows } = await this.#query<{ id: number; created_at: Date; message: string }>({
      text: `SELECT id, created_at, message::text AS message FROM pgbus_stream_messages
WHERE stream = $1 AND id > $2 ORDER BY id LIMIT $3`,
      values: [stream, id, limit],
      idempotent: true,
    })
    return rows.map(row => ({ id: row.id, createdAt: row.created_at, message: row.message }))
  }

  async bounds(stream: string): Promise<StreamBounds> {
    const { rows } = await this.#query<{ pruned_id: number; watermark: number; last: number }>({
      text: 'SELECT pruned_id, watermark, last FROM pgbus_stream_bounds($1)',
      values: [stream],
      idempotent: true,
    })
    const { pruned_id, watermark, last } = rows[0]!
    return { prunedId: pruned_id, watermark, last }
  }

  async watermarks(streams: readonly string[]): Promise<number[]> {
    if (streams.length === 0) return []
    const { rows } = await this.#query<{ watermark: number }>({
      text: `SELECT b.watermark FROM unnest($1::text[]) WITH ORDINALITY AS s(stream, n),
LATERAL pgbus_stream_bounds(s.stream) AS b ORDER BY s.n`,
      values: [streams],
      idempotent: true,
    })
    return rows.map(row => row.watermark)
  }

  async #query<R>(statement: Statement): Promise<Result<R>> {
    try {
      return await this.#db.query<R>(statement)
    } catch (error) {
      if (!isSchemaMissing(error)) throw error
      throw new SchemaNotReadyError(
        `the tables of pgbus are missing in ${this.#db.description} — run \`pgbus migrate\``,
        { cause: error },
      )
    }
  }
}

/** Undefined table or function, and it is one of ours. */
function isSchemaMissing(error: unknown): boolean {
  const code = sqlState(error)
  return (code === '42P01' || code === '42883') && /pgbus_stream_/.test((error as Error).message)
}
