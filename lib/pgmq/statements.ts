import { createHash } from 'node:crypto'
import { maxPhysicalLength } from '../config/queue-names.ts'
import { InvalidQueueNameError } from '../core/errors.ts'
import type { Statement } from '../db/database.ts'
import { quoteIdentifier } from '../db/identifier.ts'

/** Header whose value messages of one group have in common. */
export const groupHeader = 'x-pgmq-group'

/** Header of an archived message that was cancelled: `{ reason, at }`. */
export const cancelledHeader = 'pgbus_cancelled'

/** Channel that tells processes of a cancelled message that somebody may be working on; JSON, {@link Cancelled}. */
export const cancelChannel = 'pgbus_cancel'

/** Channel on which `pgbus_create_queue` tells of a new queue. */
export const createdChannel = 'pgbus_queues'

/**
 * The SQL of the hot path, straight on the queue tables. The `pgmq.*` functions do the same for other clients.
 *
 * A delivery is identified by table, id and read count. Every statement that ends or changes one compares both
 * numbers, so a worker whose message was handed on changes nothing and can tell by the ids that are missing.
 */

/** One delivery within a known table. */
export interface Token {
  msgId: number
  readCount: number
}

export interface SendItem {
  /** JSON text. */
  message: string
  /** JSON text of an object. */
  headers: string | null
  delayMs: number
}

/** A claimed message; or, with `msg_id` null, what an empty claim has to tell. */
export interface ClaimRow {
  msg_id: number | null
  read_ct: number | null
  enqueued_at: Date | null
  /** JSON text. Null: another client sent SQL NULL. */
  message: string | null
  headers: string | null
  /**
   * Milliseconds until the next message that is not due yet, at most a day; null when there is none, or when as
   * many rows as asked for were claimed (then more may be due now).
   */
  due_in_ms: number | null
}

export interface ClaimManyRow extends ClaimRow {
  physical: string | null
  /**
   * `probe`: the one message of a queue whose pause ran out. Without a message: this table is `missing`, or its
   * queue `paused`; the others were read all the same.
   */
  state: 'ok' | 'probe' | 'missing' | 'paused'
  /** Groups: whose turn it was, for the cursor of the next claim. */
  turn: string | null
  /** Read before, and no failure was recorded; null when that was not asked. */
  unrecorded: boolean | null
}

/** How a claim of several tables chooses. */
export interface ClaimChoice {
  /** The queue behind each table, by which it is paused. Default: the tables themselves. */
  names?: readonly string[]
  /** Messages that each queue may give before all others were asked. Default: as many as are wanted. */
  share?: number | null
  /** `fifo` and `roundRobin`: one message in progress per group. Default `plain`. */
  mode?: 'plain' | 'fifo' | 'roundRobin'
  /** `roundRobin`: the last `turn` of each table. */
  cursors?: readonly (string | null)[]
  /** Names under which failures of each table are recorded; given, {@link ClaimManyRow.unrecorded} is told. */
  failedNames?: readonly string[] | null
}

export interface MessageIdRow {
  msg_id: number
}

export interface ExtendRow {
  msg_id: number
  /** `locked`: still this delivery, but somebody holds the row; try again. A token without a row is lost. */
  state: 'extended' | 'locked'
}

export interface RetryItem extends Token {
  delayMs: number
  errorClass: string
  errorMessage: string
  backtrace: string | null
}

/** Of messages that go on later. */
export interface Unlocking {
  /** Free the locks that they hold while they run. Default false. */
  unlock?: boolean | undefined
}

export interface BuryItem extends Token {
  /** JSON text of what is stored under the header `pgbus_dead_letter`. */
  deadLetter: string
}

/** Longest insert of one statement. */
export const maxSendRows = 1_000
export const maxSendBytes = 8 * 1024 * 1024

/** Splits a list into pieces that one {@link sendMany} takes each; the order stays. */
export function sendChunks<T extends Pick<SendItem, 'message' | 'headers'>>(items: readonly T[]): T[][] {
  const chunks: T[][] = []
  let chunk: T[] = []
  let bytes = 0
  for (const item of items) {
    const size =
      Buffer.byteLength(item.message) + (item.headers === null ? 0 : Buffer.byteLength(item.headers))
    if (chunk.length === maxSendRows || (chunk.length > 0 && bytes + size > maxSendBytes)) {
      chunks.push(chunk)
      chunk = []
      bytes = 0
    }
    chunk.push(item)
    bytes += size
  }
  if (chunk.length > 0) chunks.push(chunk)
  return chunks
}

/**
 * Stores messages; rows `{ msg_id }` in the order of `items`. The messages travel as one JSON array: parsing that
 * costs both sides less than an array of texts.
 */
export function sendMany(physical: string, items: readonly SendItem[]): Statement {
  const delayed = items.some(i => i.delayMs > 0)
  const headed = items.some(i => i.headers !== null)
  return {
    name: statementName('send', physical),
    // One timestamp for the batch: equally due rows are then claimed in id order.
    text: `INSERT INTO ${queueTable(physical)} (vt, message, headers)
SELECT sent.at + coalesce(($3::float8[])[i.position], 0) * interval '1 millisecond', i.message,
       nullif($2::jsonb -> (i.position - 1)::int, 'null')
  FROM (SELECT clock_timestamp() AS at OFFSET 0) AS sent,
       jsonb_array_elements($1::jsonb) WITH ORDINALITY AS i (message, position)
 ORDER BY i.position
RETURNING msg_id`,
    values: [
      `[${items.map(i => i.message).join()}]`,
      headed ? `[${items.map(i => i.headers ?? 'null').join()}]` : null,
      delayed ? items.map(i => i.delayMs) : null,
    ],
  }
}

/** Claims up to `quantity` due messages of one table, longest due first. Always at least one {@link ClaimRow}. */
export function claim(physical: string, visibilityMs: number, quantity: number): Statement {
  const table = queueTable(physical)
  return {
    name: statementName('claim', physical),
    text: `WITH picked AS MATERIALIZED (
  SELECT msg_id, vt FROM ${table} WHERE vt <= statement_timestamp()
   ORDER BY vt, msg_id LIMIT $2::int FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE ${table} m
     SET vt = clock_timestamp() + $1::float8 * interval '1 millisecond', read_ct = m.read_ct + 1, last_read_at = clock_timestamp()
    FROM picked WHERE m.msg_id = picked.msg_id
  RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.message::text, m.headers::text, picked.vt AS due_at
)
SELECT t.msg_id, t.read_ct, t.enqueued_at, t.message, t.headers,
       CASE WHEN (SELECT count(*) FROM taken) < $2::int THEN (
         SELECT ceil(extract(epoch FROM least(vt, clock_timestamp() + interval '1 day') - clock_timestamp()) * 1000)::int
           FROM ${table} WHERE vt > statement_timestamp() ORDER BY vt LIMIT 1
       ) END AS due_in_ms
  FROM (SELECT) AS always LEFT JOIN taken t ON true
 ORDER BY t.due_at, t.msg_id`,
    values: [visibilityMs, quantity],
  }
}

/**
 * Claims from several tables in list order, in one round trip: an earlier table is emptied first, and nothing is
 * claimed beyond `quantity`. Rows are {@link ClaimManyRow}; one without `physical` carries `due_in_ms` when fewer
 * than `quantity` were claimed.
 */
export function claimMany(
  tables: readonly string[],
  quantity: number,
  visibilityMs: number,
  choice: ClaimChoice = {},
): Statement {
  for (const table of tables) checkLength(table)
  const { names = tables, share = null, mode = 'plain', failedNames = null } = choice
  const cursors = choice.cursors ?? tables.map(() => null)
  return {
    name: 'claim_many',
    text: `SELECT physical, state, msg_id, read_ct, enqueued_at, message, headers, turn, unrecorded, due_in_ms
  FROM pgbus_claim_many($1::text[], $2::text[], $3::int, $4::int, $5::int, $6::text, $7::bigint[], $8::text[])`,
    values: [tables, names, quantity, visibilityMs, share, mode, cursors, failedNames],
  }
}

/**
 * Moves done messages to the archive and forgets their recorded failures (only messages read more than once can
 * have any). Rows `{ msg_id }` of those that are in the archive now. Running it again after a lost reply returns
 * the same ids, because a delivery found in the archive counts as moved.
 */
export function archiveMany(physical: string, tokens: readonly Token[], failedName: string): Statement {
  const archive = archiveTable(physical)
  return {
    name: statementName('archive', physical),
    idempotent: true,
    text: `WITH token AS MATERIALIZED (
  SELECT msg_id, read_ct FROM unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
), gone AS (
  DELETE FROM ${queueTable(physical)} m USING token t WHERE m.msg_id = t.msg_id AND m.read_ct = t.read_ct
  RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
), kept AS (
  INSERT INTO ${archive} (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
  SELECT msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers FROM gone
  RETURNING msg_id
), cleared AS (
  DELETE FROM pgbus_failed_events f USING gone g
   WHERE g.read_ct > 1 AND f.queue_name = $3::text AND f.msg_id = g.msg_id
)
SELECT msg_id FROM kept
UNION ALL
SELECT t.msg_id FROM token t
 WHERE (SELECT count(*) FROM kept) < (SELECT count(*) FROM token)
   AND (SELECT true FROM ${archive} a WHERE a.msg_id = t.msg_id AND a.read_ct = t.read_ct)`,
    values: [...tokenArrays(tokens), failedName],
  }
}

/** What is told on {@link cancelChannel}. */
export interface Cancelled {
  physical: string
  msgId: number
  reason: string | null
}

/** Reads what was told on {@link cancelChannel}; undefined: somebody else wrote it. */
export function readCancelled(payload: string): Cancelled | undefined {
  let told: Partial<Record<keyof Cancelled, unknown>> | null
  try {
    told = JSON.parse(payload)
  } catch {
    return undefined
  }
  const { physical, msgId, reason = null } = told ?? {}
  if (typeof physical !== 'string' || !Number.isSafeInteger(msgId)) return undefined
  return { physical, msgId: msgId as number, reason: typeof reason === 'string' ? reason : null }
}

export interface CancelRow {
  /** Its failure after the newest read is recorded: it waits for its next attempt. */
  failed: boolean
  read_ct: number
  /** It could not be claimed at that moment. */
  hidden: boolean
}

/**
 * Archives one message whoever holds it, and tells so at commit if anybody may. From then on no statement of a worker
 * that still runs it changes anything. One {@link CancelRow}, none: there was no such message.
 */
export function cancelOne(
  physical: string,
  msgId: number,
  reason: string | null,
  failedName: string,
  /** In a transaction of somebody else: what others wait for is changed when that commits. */
  atCommit: boolean,
): Statement {
  return {
    text: `WITH gone AS (
  DELETE FROM ${queueTable(physical)} m WHERE m.msg_id = $1::bigint
  RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers
), kept AS (
  INSERT INTO ${archiveTable(physical)} (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
  SELECT msg_id, read_ct, enqueued_at, last_read_at, vt, message,
         CASE WHEN jsonb_typeof(headers) = 'object' THEN headers ELSE '{}' END
           || jsonb_build_object('${cancelledHeader}', jsonb_build_object('reason', $2::text, 'at', clock_timestamp()))
    FROM gone
), cleared AS (
  DELETE FROM pgbus_failed_events f USING gone g WHERE f.queue_name = $3::text AND f.msg_id = g.msg_id
  RETURNING f.retry_count
)
SELECT g.read_ct, g.vt > clock_timestamp() AS hidden,
       CASE WHEN pgbus_is_tracked(g.message) THEN pgbus_after_end($4::text, ARRAY[g.msg_id], ARRAY[g.message], true, $5::boolean)::text END AS followed,
       coalesce((SELECT retry_count = g.read_ct - 1 FROM cleared), false) AS failed,
       CASE WHEN g.read_ct > 0 THEN
         pg_notify('${cancelChannel}', json_build_object('physical', $4::text, 'msgId', g.msg_id, 'reason', $2::text)::text)
       END AS told
  FROM gone g`,
    values: [msgId, reason, failedName, physical, atCommit],
  }
}

/**
 * Removes done messages without keeping them, and forgets their recorded failures. Rows `{ msg_id }` of those that
 * were still this delivery.
 */
export function deleteMany(physical: string, tokens: readonly Token[], failedName: string): Statement {
  return {
    name: statementName('delete', physical),
    text: `WITH gone AS (
  DELETE FROM ${queueTable(physical)} m USING unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
   WHERE m.msg_id = t.msg_id AND m.read_ct = t.read_ct
  RETURNING m.msg_id, m.read_ct
), cleared AS (
  DELETE FROM pgbus_failed_events f USING gone g
   WHERE g.read_ct > 1 AND f.queue_name = $3::text AND f.msg_id = g.msg_id
)
SELECT msg_id FROM gone`,
    values: [...tokenArrays(tokens), failedName],
  }
}

/**
 * Records failures and hides the messages until their next attempt. One record per message, the newest error
 * wins; payload and headers are recorded as stored. Rows `{ msg_id }` of those that were still this delivery.
 */
export function retryMany(
  physical: string,
  items: readonly RetryItem[],
  failedName: string,
  { unlock = false }: Unlocking = {},
): Statement {
  const sorted = byId(items)
  return {
    name: statementName(unlock ? 'retry+unlock' : 'retry', physical),
    text: `WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::int[], $3::float8[], $4::text[], $5::text[], $6::text[])
    AS i (msg_id, read_ct, delay_ms, error_class, error_message, backtrace)
), mine AS (
  UPDATE ${queueTable(physical)} m SET vt = clock_timestamp() + i.delay_ms * interval '1 millisecond'
    FROM item i WHERE m.msg_id = i.msg_id AND m.read_ct = i.read_ct
  RETURNING m.msg_id, m.read_ct, m.message, m.headers, i.error_class, i.error_message, i.backtrace
), recorded AS (
  INSERT INTO pgbus_failed_events AS f
    (queue_name, msg_id, payload, headers, error_class, error_message, backtrace, retry_count, failed_at)
  SELECT $7::text, msg_id, message, headers, error_class, error_message, backtrace, greatest(read_ct - 1, 0),
         clock_timestamp() AT TIME ZONE 'UTC'
    FROM mine
  ON CONFLICT (queue_name, msg_id) DO UPDATE
    SET payload = excluded.payload, headers = excluded.headers, error_class = excluded.error_class,
        error_message = excluded.error_message, backtrace = excluded.backtrace, retry_count = excluded.retry_count,
        failed_at = excluded.failed_at
)${unlock ? unlocked('$8') : ''}
SELECT msg_id FROM mine`,
    values: [
      ...tokenArrays(sorted),
      sorted.map(i => i.delayMs),
      sorted.map(i => i.errorClass),
      sorted.map(i => i.errorMessage),
      sorted.map(i => i.backtrace),
      failedName,
      ...(unlock ? [physical] : []),
    ],
  }
}

/**
 * Moves hopeless messages to the dead-letter queue, with their story in the header `pgbus_dead_letter`, and
 * removes their failure records. Rows `{ msg_id }` of those that were still this delivery.
 */
export function buryMany(
  physical: string,
  deadLetterPhysical: string,
  items: readonly BuryItem[],
  failedName: string,
): Statement {
  const sorted = byId(items)
  return {
    name: statementName('bury', physical, deadLetterPhysical),
    text: `WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[]) AS i (msg_id, read_ct, dead_letter)
), gone AS (
  DELETE FROM ${queueTable(physical)} m USING item i WHERE m.msg_id = i.msg_id AND m.read_ct = i.read_ct
  RETURNING m.msg_id, m.message, m.headers, i.dead_letter
), buried AS (
  INSERT INTO ${queueTable(deadLetterPhysical)} (vt, message, headers)
  SELECT clock_timestamp(), message,
         CASE WHEN jsonb_typeof(headers) = 'object' THEN headers ELSE '{}' END
           || jsonb_build_object('pgbus_dead_letter', dead_letter::jsonb)
    FROM gone ORDER BY msg_id
), cleared AS (
  DELETE FROM pgbus_failed_events f USING gone g WHERE f.queue_name = $4::text AND f.msg_id = g.msg_id
)
SELECT msg_id FROM gone`,
    values: [...tokenArrays(sorted), sorted.map(i => i.deadLetter), failedName],
  }
}

/**
 * Renews leases; never shortens one. Rows are {@link ExtendRow}; a token without a row is lost. A row that
 * somebody holds is skipped, so that one stuck lock does not delay the others.
 */
export function extend(physical: string, tokens: readonly Token[], visibilityMs: number): Statement {
  const table = queueTable(physical)
  return {
    name: statementName('extend', physical),
    idempotent: true,
    text: `WITH token AS MATERIALIZED (
  SELECT msg_id, read_ct FROM unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
), free AS MATERIALIZED (
  SELECT m.msg_id FROM token t JOIN ${table} m ON m.msg_id = t.msg_id AND m.read_ct = t.read_ct
     FOR UPDATE OF m SKIP LOCKED
), extended AS (
  UPDATE ${table} m SET vt = greatest(m.vt, clock_timestamp() + $3::float8 * interval '1 millisecond')
    FROM free WHERE m.msg_id = free.msg_id
  RETURNING m.msg_id
)
SELECT m.msg_id, CASE WHEN e.msg_id IS NULL THEN 'locked' ELSE 'extended' END AS state
  FROM token t
  JOIN ${table} m ON m.msg_id = t.msg_id AND m.read_ct = t.read_ct
  LEFT JOIN extended e ON e.msg_id = m.msg_id`,
    values: [...tokenArrays(tokens), visibilityMs],
  }
}

/**
 * Gives messages back unrun: the read is not charged. `delayMs` null puts them at the front of the line. Rows
 * `{ msg_id }` of those that were still this delivery.
 *
 * The next claim gets the same token again, so a token must not be used after its release.
 */
export function release(
  physical: string,
  tokens: readonly Token[],
  delayMs: number | null,
  { unlock = false }: Unlocking = {},
): Statement {
  const freed = releaseText(physical)
  return {
    name: statementName(unlock ? 'release+unlock' : 'release', physical),
    text: unlock ? `WITH mine AS (\n${freed}\n)${unlocked('$4')}\nSELECT msg_id FROM mine` : freed,
    values: [...tokenArrays(tokens), delayMs, ...(unlock ? [physical] : [])],
  }
}

function releaseText(physical: string): string {
  return `UPDATE ${queueTable(physical)} m
   SET read_ct = greatest(m.read_ct - 1, 0),
       vt = CASE WHEN $3::float8 IS NULL THEN m.enqueued_at ELSE clock_timestamp() + $3::float8 * interval '1 millisecond' END
  FROM unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
 WHERE m.msg_id = t.msg_id AND m.read_ct = t.read_ct
RETURNING m.msg_id`
}

/** The part that frees the locks which messages `mine` hold while they run. */
function unlocked(physical: string): string {
  return `, unlocked AS (
  DELETE FROM pgbus_uniqueness_keys u USING mine m
   WHERE u.queue_name = ${physical}::text AND u.msg_id = m.msg_id AND u.strategy = 'while_executing'
)`
}

/** Lets others claim the messages of a process that died, now. The read stays charged. Rows `{ msg_id }`. */
export function makeVisible(physical: string, tokens: readonly Token[]): Statement {
  return {
    name: statementName('visible', physical),
    idempotent: true,
    text: `UPDATE ${queueTable(physical)} m SET vt = least(m.vt, clock_timestamp())
  FROM unnest($1::bigint[], $2::int[]) AS t (msg_id, read_ct)
 WHERE m.msg_id = t.msg_id AND m.read_ct = t.read_ct
RETURNING m.msg_id`,
    values: tokenArrays(tokens),
  }
}

/** `pgmq."q_<physical>"`, the table of waiting messages. */
export function queueTable(physical: string): string {
  return `pgmq.${quoteIdentifier(`q_${checkLength(physical)}`)}`
}

/** `pgmq."a_<physical>"`, the table of done messages. */
export function archiveTable(physical: string): string {
  return `pgmq.${quoteIdentifier(`a_${checkLength(physical)}`)}`
}

/** PostgreSQL cuts a longer identifier, which would silently name another table. */
function checkLength(physical: string): string {
  if (Buffer.byteLength(physical) > maxPhysicalLength) {
    throw new InvalidQueueNameError(
      `physical queue name "${physical}" has ${Buffer.byteLength(physical)} bytes, the limit is ${maxPhysicalLength}`,
    )
  }
  return physical
}

/** Id order: two statements over the same rows then lock them in the same order and cannot deadlock. */
function byId<T extends Token>(tokens: readonly T[]): T[] {
  return tokens.toSorted((a, b) => a.msgId - b.msgId)
}

export function tokenArrays(tokens: readonly Token[]): [number[], number[]] {
  const sorted = byId(tokens)
  return [sorted.map(t => t.msgId), sorted.map(t => t.readCount)]
}

/** Unique per kind and queue, and within the 63 bytes that the server keeps. */
export function statementName(kind: string, ...physicals: string[]): string {
  const name = `${kind}:${physicals.join('>')}`
  if (Buffer.byteLength(name) <= 63) return name
  return `${kind}:${createHash('sha256').update(name).digest('hex').slice(0, 48)}`
}
