import type { ResolvedConfig } from '../config/options.ts'
import { type JsonValue, stringify } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import type { Database, Statement } from '../db/database.ts'
import { matchesStream } from './broadcast.ts'
import type { Connection } from './connection.ts'

export interface PresenceTrackerOptions {
  db(): Database
  config: ResolvedConfig['streams']['presence']
  /** Sends on a stream, when joins and leaves are told. */
  broadcast(stream: string, payload: object): Promise<unknown>
  log: Logger
  /** Milliseconds between two signs of life. */
  touchInterval: number
}

interface Member {
  id: string
  metadata: Record<string, unknown>
}

interface Entry {
  member: Member
  stream: string
  /** What is written about a connection is written in order: a leave never overtakes its join. */
  written: Promise<void>
}

/** Event name of what is told about joins and leaves. */
export const presenceEvent = 'presence'

/**
 * Presence that follows connections: a member is there while one of its connections is. Whatever the database
 * does, no connection is touched by it; a process that dies leaves rows that a later sweep removes.
 */
export class PresenceTracker {
  readonly #options: PresenceTrackerOptions
  readonly #entries = new Map<string, Entry>()
  readonly #leaving = new Set<Promise<void>>()
  #touching: NodeJS.Timeout | undefined
  #sweeping: NodeJS.Timeout | undefined
  #failing = false
  #closed = false

  constructor(options: PresenceTrackerOptions) {
    this.#options = options
    if (options.config.patterns.length === 0) return
    this.#touching = setInterval(() => void this.#touch(), options.touchInterval).unref()
    this.#sweeping = setInterval(() => void this.#sweep(), options.config.sweepInterval).unref()
  }

  /** A connection has become live for the first time. */
  enter(connection: Connection): void {
    const { id, stream } = connection
    if (this.#closed || this.#entries.has(id) || !matchesStream(stream, this.#options.config.patterns)) return
    const member = this.#memberOf(connection)
    if (!member) return
    const entry: Entry = { member, stream, written: Promise.resolve() }
    this.#entries.set(id, entry)
    entry.written = this.#attempt(async () => {
      const joined = await this.#write({
        text: `WITH connected AS (
  INSERT INTO pgbus_presence_connections (connection_id, stream_name, member_id) VALUES ($1, $2, $3)
  ON CONFLICT (connection_id) DO NOTHING
)
INSERT INTO pgbus_presence_members AS m (stream_name, member_id, metadata) VALUES ($2, $3, $4::jsonb)
ON CONFLICT (stream_name, member_id) DO UPDATE
SET metadata = excluded.metadata, last_seen_at = clock_timestamp() AT TIME ZONE 'UTC'
RETURNING xmax = 0 AS is_new`,
        values: [id, stream, member.id, stringify(member.metadata as JsonValue, { root: 'metadata' })],
      })
      if (joined[0]?.is_new === true) await this.#tell('join', entry)
    })
  }

  /** A connection has ended. */
  leave(connectionId: string): void {
    const entry = this.#entries.get(connectionId)
    if (!entry) return
    this.#entries.delete(connectionId)
    entry.written = entry.written.then(() => this.#attempt(() => this.#depart(connectionId, entry)))
    this.#leaving.add(entry.written)
    void entry.written.then(() => this.#leaving.delete(entry.written))
  }

  /** Resolves when everything that is known is written. The connections have ended before. */
  async close(): Promise<void> {
    this.#closed = true
    clearInterval(this.#touching)
    clearInterval(this.#sweeping)
    await Promise.all(this.#leaving)
  }

  /**
   * Locks the member before it looks whether a connection is left: one that enters meanwhile either is seen, or
   * waits, and puts the member back.
   */
  async #depart(connectionId: string, entry: Entry): Promise<void> {
    const { stream, member } = entry
    const hasLeft = await this.#options.db().transaction(async tx => {
      await tx.query('DELETE FROM pgbus_presence_connections WHERE connection_id = $1', [connectionId])
      const values = [stream, member.id]
      await tx.query(
        'SELECT FROM pgbus_presence_members WHERE stream_name = $1 AND member_id = $2 FOR UPDATE',
        values,
      )
      const { rowCount } = await tx.query(
        `DELETE FROM pgbus_presence_members AS m WHERE stream_name = $1 AND member_id = $2
AND NOT EXISTS (SELECT FROM pgbus_presence_connections AS c
  WHERE c.stream_name = m.stream_name AND c.member_id = m.member_id)`,
        values,
      )
      return rowCount > 0
    })
    if (hasLeft) await this.#tell('leave', entry)
  }

  /** One statement for all connections of the process; what a sweep took by mistake is put back. */
  async #touch(): Promise<void> {
    if (this.#entries.size === 0) return
    const entries = [...this.#entries]
    await this.#attempt(async () => {
      await this.#write({
        text: `WITH mine AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) AS t(connection_id, stream_name, member_id, metadata)
), touched AS (
  INSERT INTO pgbus_presence_connections (connection_id, stream_name, member_id)
  SELECT connection_id, stream_name, member_id FROM mine ORDER BY connection_id
  ON CONFLICT (connection_id) DO UPDATE SET last_seen_at = clock_timestamp()
)
INSERT INTO pgbus_presence_members (stream_name, member_id, metadata)
SELECT DISTINCT ON (stream_name, member_id) stream_name, member_id, metadata FROM mine ORDER BY stream_name, member_id
ON CONFLICT (stream_name, member_id) DO UPDATE SET last_seen_at = clock_timestamp() AT TIME ZONE 'UTC'`,
        values: [
          entries.map(([id]) => id),
          entries.map(([, { stream }]) => stream),
          entries.map(([, { member }]) => member.id),
          entries.map(([, { member }]) => stringify(member.metadata as JsonValue, { root: 'metadata' })),
        ],
      })
      // Closed while it was written: then the statement has put back what was removed.
      for (const [id, entry] of entries) if (!this.#entries.has(id)) await this.#depart(id, entry)
    })
  }

  /** Removes what a killed process has left, of streams whose presence follows connections. */
  async #sweep(): Promise<void> {
    await this.#attempt(async () => {
      const gone = await this.#write({
        text: `DELETE FROM pgbus_presence_connections
WHERE connection_id IN (
  SELECT connection_id FROM pgbus_presence_connections
  WHERE last_seen_at < clock_timestamp() - $1::float8 * interval '1 ms' FOR UPDATE SKIP LOCKED
) RETURNING connection_id, stream_name, member_id`,
        values: [this.#options.config.timeout],
      })
      for (const row of gone) {
        await this.#depart(String(row.connection_id), {
          stream: String(row.stream_name),
          member: { id: String(row.member_id), metadata: {} },
          written: Promise.resolve(),
        })
      }
    })
  }

  #memberOf({ context, stream }: Connection): Member | undefined {
    try {
      return readMember((this.#options.config.member ?? ownMember)(context))
    } catch (error) {
      this.#options.log.warn({ err: error, stream }, 'presence: the member of a connection cannot be told')
      return undefined
    }
  }

  async #tell(type: 'join' | 'leave', { stream, member }: Entry): Promise<void> {
    if (!this.#options.config.broadcast) return
    const [row] = await this.#write({
      text: 'SELECT count(*)::int AS count FROM pgbus_presence_members WHERE stream_name = $1',
      values: [stream],
    })
    const metadata = type === 'join' ? { metadata: member.metadata } : {}
    await this.#options.broadcast(stream, { type, id: member.id, ...metadata, count: row?.count })
  }

  async #write(statement: Statement): Promise<Record<string, unknown>[]> {
    return (await this.#options.db().query({ ...statement, idempotent: true })).rows
  }

  async #attempt(work: () => Promise<void>): Promise<void> {
    try {
      await work()
      this.#failing = false
    } catch (error) {
      if (!this.#failing)
        this.#options.log.warn(
          { err: error },
          'presence cannot be written at the moment; it is put right later',
        )
      this.#failing = true
    }
  }
}

/** The built-in member of a context: its `memberId`, `member_id` or `id`, and its `metadata`. */
function ownMember(context: unknown): unknown {
  if (typeof context !== 'object' || context === null) return undefined
  const { memberId, member_id, id, metadata } = context as Record<string, unknown>
  return { id: memberId ?? member_id ?? id, metadata }
}

/** Undefined: nobody in particular. */
function readMember(value: unknown): Member | undefined {
  const { id, metadata } =
    typeof value === 'object' && value !== null
      ? (value as Record<string, unknown>)
      : { id: value, metadata: {} }
  if (typeof id !== 'string' && typeof id !== 'number') return undefined
  const text = String(id).trim()
  if (text === '' || Buffer.byteLength(text) > 255 || text.includes('\0')) return undefined
  const isObject = typeof metadata === 'object' && metadata !== null && !Array.isArray(metadata)
  return { id: text, metadata: isObject ? (metadata as Record<string, unknown>) : {} }
}
