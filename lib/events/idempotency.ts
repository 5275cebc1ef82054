import { createHash } from 'node:crypto'
import { SchemaNotReadyError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type Database, type Queryable, type Statement, sqlState } from '../db/database.ts'
import type { Delivery } from '../jobs/claim.ts'
import type { OwnEnding } from '../jobs/outcome.ts'
import { archiveTable, queueTable, statementName, type Token, tokenArrays } from '../pgmq/statements.ts'
import { CompletedEvents } from './completed-events.ts'

/** What is to be done about an event: `busy`, somebody else is at it. */
export type ClaimState = 'run' | 'done' | 'busy'

/** The end of one delivery, with what its idempotent handlers have completed. */
export interface CompletedToken extends Token {
  readonly event: string
  readonly handlers: readonly string[]
}

/**
 * Which handler has handled which event, in two phases: a claim before the handler, its completion in the statement
 * that archives the message. Whoever dies in between leaves a claim without completion, and the next delivery runs
 * the handler again. Two messages of one event never run a handler at the same time, except when the first has
 * outlived its lease.
 *
 * A table that an older client made, and that was not migrated, has no completion: there the first claim wins, and a
 * process that dies in a handler loses its event. That is warned of once.
 */
export class Idempotency {
  readonly #db: Database
  readonly #log: Logger
  readonly #completed = new Map<string, CompletedEvents>()
  /** Undefined: not known yet. A look that failed is not remembered. */
  #twoPhases: boolean | undefined

  constructor(options: { db: Database; log: Logger }) {
    this.#db = options.db
    this.#log = options.log
  }

  /** Whether this process knows, without asking, that a handler has completed an event. */
  knows(handler: string, event: string): boolean {
    return this.#completed.get(handler)?.has(keyOf(event)) ?? false
  }

  /** To be called once the completion is in the database. */
  remember(handler: string, event: string): void {
    let completed = this.#completed.get(handler)
    if (!completed) {
      completed = new CompletedEvents()
      this.#completed.set(handler, completed)
    }
    completed.add(keyOf(event))
  }

  /** Claims an event for handlers of its queue. When one is busy, nothing was claimed. */
  async claim(
    event: string,
    handlers: readonly string[],
    { physical, msgId }: Delivery,
  ): Promise<ReadonlyMap<string, ClaimState>> {
    if (!(await this.#hasTwoPhases())) return this.#claimOnce(this.#db, event, handlers)
    const { rows } = await this.#ask<{ handler: string; state: ClaimState }>(this.#db, {
      name: 'claim_event',
      text: 'SELECT handler, state FROM pgbus_claim_event($1::text, $2::text[], $3::text, $4::bigint)',
      values: [keyOf(event), handlers.map(keyOf), physical, msgId],
    })
    const states = new Map(rows.map(row => [row.handler, row.state]))
    const isBusy = rows.some(row => row.state === 'busy')
    return new Map(
      handlers.map(handler => [handler, isBusy ? 'busy' : (states.get(keyOf(handler)) ?? 'busy')]),
    )
  }

  /**
   * Finds out what the table can do. Before a transaction: within one, that would take a second connection.
   * @throws SchemaNotReadyError
   */
  async prepare(): Promise<void> {
    await this.#hasTwoPhases()
  }

  /** Claims an event within the transaction in which its handler is going to run. */
  async claimIn(
    tx: Queryable,
    event: string,
    handler: string,
    { physical, msgId }: Delivery,
  ): Promise<ClaimState> {
    if (!(await this.#hasTwoPhases())) {
      return (await this.#claimOnce(tx, event, [handler])).get(handler)!
    }
    const { rows } = await this.#ask<{ state: ClaimState }>(tx, {
      text: 'SELECT pgbus_lock_event($1::text, $2::text, $3::text, $4::bigint) AS state',
      values: [keyOf(event), keyOf(handler), physical, msgId],
    })
    return rows[0]!.state
  }

  /** Takes a claim back whose handler has failed. */
  async unclaim(event: string, handler: string): Promise<void> {
    await this.#db.query(
      `DELETE FROM pgbus_processed_events WHERE event_id = $1::text AND handler_class = $2::text`,
      [keyOf(event), keyOf(handler)],
    )
  }

  /** Whether completions can be recorded. Only after a claim. */
  get completes(): boolean {
    return this.#twoPhases === true
  }

  /** The token of a delivery with what it completes. */
  tokenOf({ msgId, readCount }: Delivery, event: string, handlers: readonly string[]): CompletedToken {
    return { msgId, readCount, event: keyOf(event), handlers: handlers.map(keyOf) }
  }

  async #claimOnce(
    on: Queryable,
    event: string,
    handlers: readonly string[],
  ): Promise<ReadonlyMap<string, ClaimState>> {
    const { rows } = await this.#ask<{ handler: string }>(on, {
      text: `INSERT INTO pgbus_processed_events (event_id, handler_class, processed_at)
SELECT $1::text, h, clock_timestamp() AT TIME ZONE 'UTC' FROM unnest($2::text[]) h ORDER BY h
ON CONFLICT (event_id, handler_class) DO NOTHING RETURNING handler_class AS handler`,
      values: [keyOf(event), handlers.map(keyOf)],
    })
    const mine = new Set(rows.map(row => row.handler))
    return new Map(handlers.map(handler => [handler, mine.has(keyOf(handler)) ? 'run' : 'done']))
  }

  async #hasTwoPhases(): Promise<boolean> {
    if (this.#twoPhases !== undefined) return this.#twoPhases
    const { rows } = await this.#db.query<{ exists: boolean; completes: boolean }>(
      `SELECT to_regclass('pgbus_processed_events') IS NOT NULL AS exists,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('pgbus_processed_events')
                  AND attname = 'completed_at' AND NOT attisdropped) AS completes`,
    )
    const { exists, completes } = rows[0]!
    if (!exists) throw notReady('table pgbus_processed_events')
    if (!completes && this.#twoPhases === undefined) {
      this.#log.warn(
        'pgbus_processed_events has no completed_at: a crash inside a handler can skip its event; run "pgbus migrate" (006_events.sql)',
      )
    }
    this.#twoPhases = completes
    return completes
  }

  async #ask<R>(on: Queryable | Database, statement: Statement): Promise<{ rows: R[] }> {
    try {
      if (on === this.#db) return await this.#db.query<R>(statement)
      return (await (on as Queryable).query(statement.text, statement.values)) as { rows: R[] }
    } catch (error) {
      if (sqlState(error) === '42883') throw notReady('function pgbus_claim_event', error)
      throw error
    }
  }
}

/** Archives the message and records what was completed, or neither. A repeat finds the message in the archive. */
export const completion: OwnEnding<CompletedToken> = { name: 'complete', statement: completeMany }

function completeMany(physical: string, tokens: readonly CompletedToken[], failedName: string): Statement {
  const archive = archiveTable(physical)
  const claims = tokens.flatMap(({ msgId, event, handlers }) =>
    handlers.map(handler => ({ msgId, event, handler })),
  )
  return {
    name: statementName('complete', physical),
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
), completed AS (
  INSERT INTO pgbus_processed_events (event_id, handler_class, processed_at, completed_at)
  SELECT DISTINCT c.event, c.handler, clock.now, clock.now
    FROM unnest($4::bigint[], $5::text[], $6::text[]) AS c (msg_id, event, handler)
    JOIN gone g ON g.msg_id = c.msg_id
   CROSS JOIN (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS clock
   ORDER BY 1, 2
  ON CONFLICT (event_id, handler_class) DO UPDATE SET completed_at = excluded.completed_at
)
SELECT t.msg_id FROM token t
 WHERE coalesce(
   (SELECT true FROM kept k WHERE k.msg_id = t.msg_id),
   (SELECT true FROM ${archive} a WHERE a.msg_id = t.msg_id AND a.read_ct = t.read_ct))`,
    values: [
      ...tokenArrays(tokens),
      failedName,
      claims.map(claim => claim.msgId),
      claims.map(claim => claim.event),
      claims.map(claim => claim.handler),
    ],
  }
}

/**
 * Records a completion in a transaction that the message does not end in. It fails where the handler has broken that
 * transaction, which would otherwise be noticed by nobody.
 */
export function completeIn(event: string, handler: string, completes: boolean): Statement {
  const column = completes ? 'completed_at' : 'processed_at'
  return {
    text: `UPDATE pgbus_processed_events SET ${column} = clock_timestamp() AT TIME ZONE 'UTC'
 WHERE event_id = $1::text AND handler_class = $2::text`,
    values: [keyOf(event), keyOf(handler)],
  }
}

function notReady(what: string, cause?: unknown): SchemaNotReadyError {
  return new SchemaNotReadyError(`${what} is missing — run "pgbus migrate" (006_events.sql)`, { cause })
}

const maxKeyBytes = 255
const keptBytes = 180

/** An index cannot hold a text of any length: a long one is stored as its beginning and its SHA-256. */
export function keyOf(text: string): string {
  const bytes = Buffer.from(text)
  if (bytes.length <= maxKeyBytes) return text
  // A character that the cut halves is left out.
  const kept = bytes
    .subarray(0, keptBytes)
    .toString()
    .replace(/\uFFFD+$/, '')
  return `${kept}:${createHash('sha256').update(bytes).digest('hex')}`
}
