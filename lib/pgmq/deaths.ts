/**
 * Deaths of processes, kept with the messages that they were running. A death is not an attempt: the read that it
 * cost is given back, and the count is kept in a header of its own.
 */
import type { Statement } from '../db/database.ts'
import { queueTable, statementName, type Token, tokenArrays } from './statements.ts'

/** Header of a message during which a process died: `{ count, exit_code, signal, at }`. */
export const deathsHeader = 'pgbus_deaths'

/** How a process ended. */
export interface Death {
  /** Null: it was killed by a signal. */
  exitCode: number | null
  signal: string | null
}

export interface DeathsRow {
  msg_id: number
  deaths: number
}

const deaths = `CASE WHEN jsonb_typeof(m.headers #> '{${deathsHeader},count}') = 'number'
              THEN (m.headers #>> '{${deathsHeader},count}')::numeric::int ELSE 0 END`

/** {@link DeathsRow}s of those that are still these deliveries: how many processes had died before. */
export function readDeaths(physical: string, tokens: readonly Token[]): Statement {
  return {
    name: statementName('deaths', physical),
    idempotent: true,
    text: `SELECT m.msg_id, ${deaths} AS deaths
  FROM ${queueTable(physical)} m JOIN unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
    ON m.msg_id = t.msg_id AND m.read_ct = t.read_ct`,
    values: tokenArrays(tokens),
  }
}

/**
 * Counts one more death and gives the messages back, uncharged, at once. Rows `{ msg_id }` of those that were still
 * these deliveries. Like every release this frees the token: it must not be used, nor this repeated, afterwards.
 */
export function recordDeath(
  physical: string,
  tokens: readonly Token[],
  { exitCode, signal }: Death,
): Statement {
  return {
    name: statementName('died', physical),
    text: `UPDATE ${queueTable(physical)} m
   SET read_ct = greatest(m.read_ct - 1, 0), vt = least(m.vt, clock_timestamp()),
       headers = CASE WHEN jsonb_typeof(m.headers) = 'object' THEN m.headers ELSE '{}' END
         || jsonb_build_object('${deathsHeader}', jsonb_build_object(
              'count', ${deaths} + 1, 'exit_code', $3::int, 'signal', $4::text, 'at', clock_timestamp()))
  FROM unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
 WHERE m.msg_id = t.msg_id AND m.read_ct = t.read_ct
RETURNING m.msg_id`,
    values: [...tokenArrays(tokens), exitCode, signal],
  }
}
