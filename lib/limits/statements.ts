/**
 * Statements of jobs that have company: a lock or a slot that lives as long as their message. They do what the plain ones of
 * `pgmq/statements` do, and what follows from it, at once.
 */
import type { Statement } from '../db/database.ts'
import { type BuryItem, type Token, tokenArrays } from '../pgmq/statements.ts'

/** Marks in a message from whose end something follows, as `pgbus_is_tracked` reads them. */
const marks = ['"pgbus_uniqueness_key"', '"pgbus_concurrency_key"']

/** Marks of messages that take their lock or their slot when they are claimed. */
const runLockMark = '"while_executing"'
const slotMark = '"pgbus_limit"'

/** Whether something may follow from the end of this message: a text search, so that plain jobs pay for no more. */
export function isTracked(message: string | null): boolean {
  if (message === null || !message.includes('"pgbus_')) return false
  return marks.some(mark => message.includes(mark))
}

/** Whether this message may hold a lock while it runs, and no longer. */
export function isLockedWhileRunning(message: string | null): boolean {
  return message?.includes(runLockMark) === true
}

/** Whether a worker has to ask before it runs this message. */
export function needsAdmission(message: string | null): boolean {
  return isLockedWhileRunning(message) || message?.includes(slotMark) === true
}

/** One job for {@link enqueueTracked}; texts are JSON. */
export interface TrackedItem {
  readonly physical: string
  readonly message: string
  readonly headers: string | null
  readonly delayMs: number
  /** Of those that wait for a slot; lower first. */
  readonly rank: number
  readonly unique: { readonly key: string; readonly onConflict: string } | undefined
  readonly slot: { readonly key: string; readonly max: number; readonly onConflict: string } | undefined
}

export interface TrackedRow {
  /** From 1, by the order of the items. */
  ord: number
  status: 'sent' | 'blocked' | 'replaced' | 'duplicate' | 'discarded' | 'taken' | 'undecided' | 'limited'
  msg_id: number | null
  holder_queue: string | null
  holder_id: number | null
}

/**
 * Stores jobs and takes their locks and slots: {@link TrackedRow}s in their order. A single row `taken`, `undecided`
 * or `limited` says which of them was refused; then nothing is stored.
 */
export function enqueueTracked(items: readonly TrackedItem[]): Statement {
  const jobs = items.map(({ physical, message, headers, delayMs, rank, unique, slot }) => {
    const rest = JSON.stringify({
      queue: physical,
      delay_ms: delayMs,
      priority: rank,
      unique: unique && { key: unique.key, on_conflict: unique.onConflict },
      limit: slot && { key: slot.key, max: slot.max, on_conflict: slot.onConflict },
    })
    return `{"message":${message},"headers":${headers},${rest.slice(1)}`
  })
  return {
    name: 'enqueue_tracked',
    text: 'SELECT ord, status, msg_id, holder_queue, holder_id FROM pgbus_enqueue($1::jsonb) ORDER BY ord',
    values: [`[${jobs.join()}]`],
  }
}

/** How {@link finishTracked} ends messages. */
export interface TrackedEnd {
  readonly kind: 'archive' | 'delete'
  /** Given up rather than done. Default false. */
  readonly discarded?: boolean | undefined
  /** In a transaction of somebody else: what others wait for is changed when that commits. Default false. */
  readonly atCommit?: boolean | undefined
}

/** Ends deliveries as `archiveMany` and `deleteMany` do, with what follows from it. Rows `{ msg_id }`. */
export function finishTracked(
  physical: string,
  { kind, discarded = false, atCommit = false }: TrackedEnd,
  tokens: readonly Token[],
  failedName: string,
): Statement {
  return {
    name: 'finish_tracked',
    idempotent: kind === 'archive',
    text: `SELECT msg_id FROM pgbus_finish($1::text, $2::bigint[], $3::int[], $4::text, $5::boolean, $6::text,
  at_commit => $7::boolean) AS msg_id`,
    values: [physical, ...tokenArrays(tokens), kind, discarded, failedName, atCommit],
  }
}

/** Moves hopeless messages to the dead-letter queue as `buryMany` does, with what follows from it. Rows `{ msg_id }`. */
export function buryTracked(
  physical: string,
  deadLetterPhysical: string,
  items: readonly BuryItem[],
  failedName: string,
): Statement {
  const sorted = items.toSorted((a, b) => a.msgId - b.msgId)
  return {
    name: 'bury_tracked',
    text: `SELECT msg_id FROM pgbus_finish($1::text, $2::bigint[], $3::int[], 'bury', true, $4::text, $5::text, $6::text[]) AS msg_id`,
    values: [physical, ...tokenArrays(sorted), failedName, deadLetterPhysical, sorted.map(i => i.deadLetter)],
  }
}

/** What is decided about a message that needs a lock or a slot, `{ answer }`. */
export type Admission =
  /** It has what it needs. */
  | 'run'
  /** Another with its key runs. */
  | 'wait'
  /** There is none, and it is not to wait. */
  | 'discard'
  /** It waits for a slot, outside its queue. */
  | 'parked'
  /** It is no longer this delivery. */
  | 'lost'

/** Takes lock and slot for a delivery, or lets it wait. `rules`: as the definition says now; none: as stored. */
export function admit(
  physical: string,
  { msgId, readCount }: Token,
  rules: {
    readonly unique?: { readonly onConflict: string } | undefined
    readonly concurrency?: { readonly limit: number; readonly onConflict: string } | undefined
  },
  defaultRank: number,
  failedName: string,
): Statement {
  return {
    name: 'admit',
    text: `SELECT pgbus_admit($1::text, $2::bigint, $3::int, $4::text, $5::int, $6::text, $7::int, $8::text) AS answer`,
    values: [
      physical,
      msgId,
      readCount,
      rules.unique?.onConflict ?? null,
      rules.concurrency?.limit ?? null,
      rules.concurrency?.onConflict ?? null,
      defaultRank,
      failedName,
    ],
  }
}
