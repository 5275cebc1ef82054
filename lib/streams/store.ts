import type { Queryable } from '../db/database.ts'

/** One stored broadcast. */
export interface StreamRow {
  id: number
  createdAt: Date
  /** JSON text of the envelope, exactly as stored. */
  message: string
}

export interface StreamBounds {
  /** Highest id that retention deleted from this stream; 0 = none. A cursor below it has a gap. */
  prunedId: number
  /** Highest id of this stream, stored or pruned; 0 = nothing was ever broadcast. */
  watermark: number
  /** Last value of the id sequence. A cursor above it comes from another database. */
  last: number
}

/** Storage of durable broadcasts. Reading never consumes. */
export interface StreamStore {
  /** LISTEN channel of a stream. */
  channel(stream: string): string
  /** Stores an envelope and notifies. With `tx`: in the caller's transaction, id unknown (null) until it commits. */
  append(stream: string, message: string, tx?: Queryable): Promise<number | null>
  /** Notifies without storing. */
  notify(stream: string, message: string, tx?: Queryable): Promise<void>
  /** Rows above `id`, oldest first, at most `limit`. Fewer than `limit`: that was all. */
  readAfter(stream: string, id: number, limit: number): Promise<StreamRow[]>
  bounds(stream: string): Promise<StreamBounds>
  /** Highest id of each stream, in the order given; 0 for one without messages. */
  watermarks(streams: readonly string[]): Promise<number[]>
}
