import { inspect, types } from 'node:util'
import type { Database } from '../db/database.ts'

/** What is kept of an error: readable, and small whatever was thrown. */
export interface ErrorRecord {
  errorClass: string
  errorMessage: string
  backtrace: string | null
}

export const maxMessageLength = 10_000
const maxClassLength = 255
const maxLineLength = 500
const maxStackLines = 30
const maxRelated = 5
const relatedStackLines = 5
const relatedMessageLength = 1_000
const unreadable = '[unreadable error]'

/** The record of whatever was thrown. Never throws. */
export function errorRecord(thrown: unknown): ErrorRecord {
  return {
    errorClass: classOf(thrown),
    errorMessage: messageOf(thrown, maxMessageLength),
    backtrace: backtraceOf(thrown),
  }
}

/**
 * The same as an Error that loggers and reporters can take: the thrown one when it is well-behaved, else a plain
 * copy of its record.
 */
export function reportableError(thrown: unknown, record: ErrorRecord): Error {
  if (isTame(thrown)) return thrown
  const error = new Error(record.errorMessage)
  Object.defineProperty(error, 'name', { value: record.errorClass })
  error.stack = `${record.errorClass}: ${record.errorMessage}${record.backtrace === null ? '' : `\n${record.backtrace}`}`
  return error
}

/** The recorded failure of a message, if there is one. */
export async function readFailure(
  db: Database,
  failedName: string,
  msgId: number,
): Promise<(ErrorRecord & { failedAt: Date }) | undefined> {
  const { rows } = await db.query<{
    error_class: string | null
    error_message: string | null
    failed_at: Date
  }>(
    'SELECT error_class, error_message, failed_at FROM pgbus_failed_events WHERE queue_name = $1 AND msg_id = $2',
    [failedName, msgId],
  )
  const row = rows[0]
  return (
    row && {
      errorClass: row.error_class ?? 'Error',
      errorMessage: row.error_message ?? '',
      backtrace: null,
      failedAt: row.failed_at,
    }
  )
}

function isError(thrown: unknown): thrown is Error {
  // A proxy of an error is no native one, and its traps may throw.
  return types.isNativeError(thrown) || attempt(() => thrown instanceof Error, false)
}

function classOf(thrown: unknown): string {
  const name = isError(thrown) ? attempt<unknown>(() => thrown.name, undefined) : 'Error'
  return typeof name === 'string' && name !== '' ? clean(name, maxClassLength) : 'Error'
}

function messageOf(thrown: unknown, length: number): string {
  if (typeof thrown === 'string')
    return thrown === '' ? 'thrown value: an empty string' : clean(thrown, length)
  return attempt(() => {
    if (typeof thrown !== 'object' || thrown === null) return clean(`thrown value: ${String(thrown)}`, length)
    const { message } = thrown as { message?: unknown }
    if (typeof message === 'string') return clean(message, length)
    if (isError(thrown)) return ''
    const text = inspect(thrown, {
      depth: 1,
      maxArrayLength: 10,
      maxStringLength: relatedMessageLength,
      breakLength: Number.POSITIVE_INFINITY,
      customInspect: false,
    })
    return clean(`thrown value: ${text}`, length)
  }, unreadable)
}

/** Stack lines without the message, which has a field of its own; then those of causes and parts. */
function backtraceOf(thrown: unknown): string | null {
  if (!isError(thrown)) return null
  const lines = stackLines(thrown, maxStackLines)
  const seen = new Set<unknown>([thrown])
  let left = maxRelated
  const relate = (label: string, related: unknown) => {
    left -= 1
    seen.add(related)
    lines.push(`${label}: ${classOf(related)}: ${messageOf(related, relatedMessageLength)}`)
    if (isError(related)) lines.push(...stackLines(related, relatedStackLines))
  }
  for (const part of partsOf(thrown).slice(0, maxRelated)) relate('contains', part)
  let cause = causeOf(thrown)
  while (cause !== undefined && left > 0 && !seen.has(cause)) {
    relate('caused by', cause)
    cause = causeOf(cause)
  }
  return lines.length === 0 ? null : lines.join('\n')
}

function stackLines(error: Error, limit: number): string[] {
  const stack = attempt<unknown>(() => error.stack, undefined)
  if (typeof stack !== 'string') return []
  return stack
    .split('\n', 10_000)
    .filter(line => /^\s+at /.test(line))
    .slice(0, limit)
    .map(line => clean(line, maxLineLength))
}

function causeOf(thrown: unknown): unknown {
  if (typeof thrown !== 'object' || thrown === null) return undefined
  return attempt(() => (thrown as { cause?: unknown }).cause, unreadable)
}

function partsOf(thrown: unknown): unknown[] {
  const parts = attempt<unknown>(() => (thrown as { errors?: unknown }).errors, undefined)
  return Array.isArray(parts) ? parts : []
}

/** Loggers mark the errors that they print and follow every cause and part. */
function isTame(thrown: unknown): thrown is Error {
  return attempt(() => {
    if (!types.isNativeError(thrown) || !Object.isExtensible(thrown)) return false
    if (partsOf(thrown).length > maxRelated) return false
    const seen = new Set<unknown>()
    for (let error: unknown = thrown; error !== undefined; error = causeOf(error)) {
      if (seen.has(error) || seen.size > maxRelated || !isError(error) || !Object.isExtensible(error))
        return false
      seen.add(error)
      const { message, stack } = error
      if (typeof message !== 'string' || message.length > maxMessageLength) return false
      if (stack !== undefined && (typeof stack !== 'string' || stack.length > 2 * maxMessageLength))
        return false
    }
    return true
  }, false)
}

/** Cut, and fit for `text` and `jsonb`: no U+0000, no half of a surrogate pair. */
function clean(text: string, length: number): string {
  const cut = text.length > length ? `${text.slice(0, length - 1)}…` : text
  return (cut.replaceAll('\0', '\uFFFD') as string & { toWellFormed(): string }).toWellFormed()
}

function attempt<T>(read: () => T, otherwise: T): T {
  try {
    return read()
  } catch {
    // Foreign code ran: a getter or a trap. Its error is of no interest.
    return otherwise
  }
}
