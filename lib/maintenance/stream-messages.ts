import type { ResolvedConfig } from '../config/options.ts'
import { matchesStream } from '../streams/broadcast.ts'
import { type MaintenanceTask, removeInChunks, type TaskContext } from './task.ts'

type Retention = ResolvedConfig['streams']['retention']

/** Ms that messages of this stream are kept; 0: for ever. */
export function retentionOf(stream: string, retention: Retention): number {
  const own = retention.perStream.find(([pattern]) => matchesStream(stream, [pattern]))
  return own ? own[1] : retention.default
}

/**
 * Deletes broadcasts that nobody can ask for any more. The mark that tells a reader of its gap is raised in the
 * same statement, so there is no moment in which something is missing and nobody knows. It also keeps the
 * stream's watermark where it was when all messages are gone.
 */
export function oldStreamMessages(retention: Retention): MaintenanceTask | null {
  const shortest = Math.min(
    ...[retention.default, ...retention.perStream.map(([, ms]) => ms)].filter(ms => ms > 0),
  )
  if (!Number.isFinite(shortest)) return null
  return {
    name: 'old_stream_messages',
    lock: 15,
    every: 3_600_000,
    async run(context) {
      // Ids are in the order of time, so the old ones come first. Those of streams that keep longer are passed over.
      let position = 0
      const source = {
        name: 'pgbus_stream_messages',
        async removeChunk(limit: number): Promise<number> {
          const page = await readPage(context, { position, limit, shortest })
          await remove(context, page.streams, page.ids, retention)
          position = page.ids.at(-1) ?? position
          return page.ids.length
        },
      }
      return removeInChunks(context, [source])
    },
  }
}

async function readPage(
  { query }: TaskContext,
  { position, limit, shortest }: { position: number; limit: number; shortest: number },
): Promise<{ ids: number[]; streams: string[] }> {
  const { rows } = await query<{ id: number; stream: string }>(
    `SELECT id, stream FROM pgbus_stream_messages
 WHERE id > $1 AND created_at < clock_timestamp() - $2::float8 * interval '1 millisecond' ORDER BY id LIMIT $3`,
    [position, shortest, limit],
  )
  return { ids: rows.map(row => row.id), streams: [...new Set(rows.map(row => row.stream))] }
}

async function remove(
  { query }: TaskContext,
  streams: readonly string[],
  ids: readonly number[],
  retention: Retention,
): Promise<void> {
  const limited = streams
    .map(stream => ({ stream, ms: retentionOf(stream, retention) }))
    .filter(({ ms }) => ms > 0)
  if (limited.length === 0) return
  await query(
    `WITH gone AS (
  DELETE FROM pgbus_stream_messages m USING unnest($1::text[], $2::float8[]) AS kept (stream, ms)
   WHERE m.id = ANY ($3::bigint[]) AND m.stream = kept.stream
     AND m.created_at < clock_timestamp() - kept.ms * interval '1 millisecond'
  RETURNING m.stream, m.id
)
INSERT INTO pgbus_stream_marks AS mark (stream, pruned_id)
SELECT stream, max(id) FROM gone GROUP BY stream ORDER BY stream
    ON CONFLICT (stream) DO UPDATE SET pruned_id = greatest(mark.pruned_id, excluded.pruned_id)`,
    [limited.map(({ stream }) => stream), limited.map(({ ms }) => ms), ids],
  )
}
