import type { Database } from '../db/database.ts'
import { type ProcessStatus, processStatus, type StatusRules } from './process-status.ts'

/** One row of `pgbus_processes`, for people. */
export interface ListedProcess {
  kind: string
  host: string | null
  pid: number | null
  /** Seconds since its last heartbeat; null: it has written none. */
  heartbeatAge: number | null
  status: ProcessStatus
  metadata: Record<string, unknown>
}

/** Seconds since the last heartbeat, by the clock of the database; of a row without one, since it was made. */
export const silenceSql = `extract(epoch FROM (clock_timestamp() AT TIME ZONE 'UTC') - coalesce(last_heartbeat_at, created_at))`

/** Seconds that lay between a loop's last round and the last heartbeat. Other clients write what they like. */
export const loopAgeSql = `CASE WHEN jsonb_typeof(metadata->'loop_tick_at') = 'number'
  THEN extract(epoch FROM last_heartbeat_at) - (metadata->>'loop_tick_at')::numeric END`

/** Every process that has a row, by host, kind and process id. */
export async function listProcesses(
  db: Pick<Database, 'query'>,
  rules: StatusRules,
): Promise<ListedProcess[]> {
  const { rows } = await db.query<{
    kind: string
    host: string | null
    pid: number | null
    silence: number
    loopAge: number | null
    hasBeaten: boolean
    metadata: Record<string, unknown> | null
  }>(`SELECT kind, hostname AS host, pid, metadata, ${silenceSql}::float8 AS silence, (${loopAgeSql})::float8 AS "loopAge",
       last_heartbeat_at IS NOT NULL AS "hasBeaten"
  FROM pgbus_processes ORDER BY hostname, kind, pid`)
  return rows.map(({ silence, loopAge, hasBeaten, metadata, ...row }) => ({
    ...row,
    heartbeatAge: hasBeaten ? Math.max(0, Math.round(silence)) : null,
    status: processStatus({ kind: row.kind, silence, loopAge }, rules),
    metadata: metadata ?? {},
  }))
}
