import { type Duration, parseDuration } from '../core/duration.ts'
import { type JsonValue, stringify } from '../core/json.ts'
import type { Queryable } from '../db/database.ts'
import type { Stream } from './stream.ts'

/** Somebody who is there. */
export interface PresenceMember {
  id: string
  metadata: Record<string, unknown>
  joinedAt: Date
  lastSeenAt: Date
}

export interface PresenceOptions {
  /** The caller's own client: the change, and its broadcast, happen if and only if its transaction commits. */
  tx?: Queryable | undefined
}

/** HTML to broadcast about a member; anything but a non-empty string broadcasts nothing. */
export type PresenceRender = (member: PresenceMember) => unknown

interface MemberRow {
  member_id: string
  metadata: string
  joined_ms: number | string
  seen_ms: number | string
}

/** As text and numbers: a caller's client may parse timestamps in its own way. */
const columns = `member_id, metadata::text AS metadata,
  extract(epoch FROM joined_at) * 1000 AS joined_ms, extract(epoch FROM last_seen_at) * 1000 AS seen_ms`

/** Who is on one stream. Kept by hand here; connections of `streams.presence.patterns` keep it by themselves. */
export class Presence {
  readonly #stream: Pick<Stream, 'name' | 'broadcast'>
  readonly #db: () => Queryable

  /** @internal */
  constructor(stream: Pick<Stream, 'name' | 'broadcast'>, db: () => Queryable) {
    this.#stream = stream
    this.#db = db
  }

  /** Enters a member, or replaces its metadata; what `render` gives is broadcast on the stream. */
  async join(
    member: { memberId: string | number; metadata?: Record<string, unknown> | undefined },
    render?: PresenceRender,
    { tx }: PresenceOptions = {},
  ): Promise<PresenceMember> {
    const { metadata = {} } = member
    const [joined] = await this.#query(
      `INSERT INTO pgbus_presence_members (stream_name, member_id, metadata) VALUES ($1, $2, $3::jsonb)
ON CONFLICT (stream_name, member_id) DO UPDATE
SET metadata = excluded.metadata, last_seen_at = clock_timestamp() AT TIME ZONE 'UTC'
RETURNING ${columns}`,
      [this.#stream.name, memberId(member.memberId), stringify(metadata as JsonValue, { root: 'metadata' })],
      tx,
    )
    await this.#tell(joined!, render, tx)
    return joined!
  }

  /** Removes a member; null: it was not there, and nothing is broadcast. */
  async leave(
    member: { memberId: string | number },
    render?: PresenceRender,
    { tx }: PresenceOptions = {},
  ): Promise<PresenceMember | null> {
    const [left] = await this.#query(
      `DELETE FROM pgbus_presence_members WHERE stream_name = $1 AND member_id = $2 RETURNING ${columns}`,
      [this.#stream.name, memberId(member.memberId)],
      tx,
    )
    if (!left) return null
    await this.#tell(left, render, tx)
    return left
  }

  /** Notes that a member is still there; false: it is not. */
  async touch(member: { memberId: string | number }, { tx }: PresenceOptions = {}): Promise<boolean> {
    const touched = await this.#query(
      `UPDATE pgbus_presence_members SET last_seen_at = clock_timestamp() AT TIME ZONE 'UTC'
WHERE stream_name = $1 AND member_id = $2 RETURNING ${columns}`,
      [this.#stream.name, memberId(member.memberId)],
      tx,
    )
    return touched.length > 0
  }

  /** Everybody who is there, who came first first. */
  async members({ tx }: PresenceOptions = {}): Promise<PresenceMember[]> {
    return await this.#query(
      `SELECT ${columns} FROM pgbus_presence_members WHERE stream_name = $1 ORDER BY joined_at, member_id`,
      [this.#stream.name],
      tx,
    )
  }

  async count({ tx }: PresenceOptions = {}): Promise<number> {
    const { rows } = await (tx ?? this.#db()).query(
      'SELECT count(*)::int AS count FROM pgbus_presence_members WHERE stream_name = $1',
      [this.#stream.name],
    )
    return (rows[0] as { count: number }).count
  }

  /** Removes who was not seen for so long. However many sweep at once, each member is returned to one of them. */
  async sweep({ olderThan, tx }: { olderThan: Duration } & PresenceOptions): Promise<PresenceMember[]> {
    const ms = parseDuration(olderThan)
    if (ms === undefined)
      throw new TypeError(`olderThan should be a duration such as "1m", instead got ${String(olderThan)}`)
    return await this.#query(
      `DELETE FROM pgbus_presence_members
WHERE stream_name = $1 AND last_seen_at < (clock_timestamp() - $2::float8 * interval '1 ms') AT TIME ZONE 'UTC'
RETURNING ${columns}`,
      [this.#stream.name, ms],
      tx,
    )
  }

  async #tell(
    member: PresenceMember,
    render: PresenceRender | undefined,
    tx: Queryable | undefined,
  ): Promise<void> {
    const html = await render?.(member)
    if (typeof html === 'string' && html !== '') await this.#stream.broadcast(html, { tx })
  }

  async #query(text: string, values: unknown[], tx: Queryable | undefined): Promise<PresenceMember[]> {
    const { rows } = await (tx ?? this.#db()).query(text, values)
    return (rows as MemberRow[]).map(row => ({
      id: row.member_id,
      metadata: asObject(row.metadata),
      joinedAt: new Date(Number(row.joined_ms)),
      lastSeenAt: new Date(Number(row.seen_ms)),
    }))
  }
}

function memberId(id: unknown): string {
  if ((typeof id === 'string' && id.trim() !== '') || typeof id === 'number') {
    const text = String(id)
    if (Buffer.byteLength(text) <= 255 && !text.includes('\0')) return text
  }
  throw new TypeError(
    `memberId should be a text of 1 to 255 bytes or a number, instead got ${JSON.stringify(id)}`,
  )
}

/** Another client may have stored anything. */
function asObject(text: string): Record<string, unknown> {
  const value: unknown = JSON.parse(text)
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {}
}
