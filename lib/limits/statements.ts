/**
 * Statements of jobs that have company: a lock that lives as long as their message. They do what the plain ones of
 * `pgmq/statements` do, and what follows from it, at once.
 */
import type { Statement } from '../db/database.ts'
import { type BuryItem, type Token, tokenArrays } from '../pgmq/statements.ts'

/** Marks in a message from whose end something follows, as `pgbus_is_tracked` reads them. */
const marks = ['"pgbus_uniqueness_key"']

/** Whether something may follow from the end of this message: a text search, so that plain jobs pay for no more. */
export function isTracked(message: string | null): boolean {
  if (message === null || !message.includes('"pgbus_')) return false
  return marks.some(mark => message.includes(mark))
}

/** One job for {@link enqueueTracked}; texts are JSON. */
export interface TrackedItem {
  readonly physical: string
  readonly message: string
  readonly headers: string | null
  readonly delayMs: number
  readonly unique: { readonly key: string; readonly onConflict: string } | undefined
}

export interface TrackedRow {
  /** From 1, by the order of the items. */
  ord: number
  status: 'sent' | 'replaced' | 'duplicate' | 'taken' | 'undecided'
  msg_id: number | null
  holder_queue: string | null
  holder_id: number | null
}

/**
 * Stores jobs and takes their locks: {@link TrackedRow}s in their order. A single row `taken` or `undecided` says
 * which of them was refused; then nothing is stored.
 */
export function enqueueTracked(items: readonly TrackedItem[]): Statement {
  const jobs = items.map(({ physical, message, headers, delayMs, unique }) => {
    const rules = unique && `,"unique":${JSON.stringify({ key: unique.key, on_conflict: unique.onConflict })}`
    return `{"queue":${JSON.stringify(physical)},"message":${message},"headers":${headers},"delay_ms":${delayMs}${rules ?? ''}}`
  })
  return {
    name: 'enqueue_tracked',
    text: 'SELECT ord, status, msg_id, holder_queue, holder_id FROM pgbus_enqueue($1::jsonb) ORDER BY ord',
    values: [`[${jobs.join()}]`],
  }
}

/** How {@link finishTracked} ends messages. */
export type TrackedEnd = 'archive' | 'delete'

/** Ends deliveries as `archiveMany` and `deleteMany` do, with what follows from it. Rows `{ msg_id }`. */
export function finishTracked(
  physical: string,
  end: TrackedEnd,
  tokens: readonly Token[],
  failedName: string,
): Statement {
  return {
    name: 'finish_tracked',
    idempotent: end === 'archive',
    text: 'SELECT msg_id FROM pgbus_finish($1::text, $2::bigint[], $3::int[], $4::text, $5::text) AS msg_id',
    values: [physical, ...tokenArrays(tokens), end, failedName],
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
    text: `SELECT msg_id FROM pgbus_finish($1::text, $2::bigint[], $3::int[], 'bury', $4::text, $5::text, $6::text[]) AS msg_id`,
    values: [physical, ...tokenArrays(sorted), failedName, deadLetterPhysical, sorted.map(i => i.deadLetter)],
  }
}
