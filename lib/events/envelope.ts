import { SerializationError } from '../core/errors.ts'
import { decode, encode, type JsonValue, parse, stringify } from '../core/json.ts'

/** The message of an event as it lies in its queues. The keys are shared with clients in other languages. */
export interface EventEnvelope {
  id: string
  /** Null: whoever published it wrote none. */
  routingKey: string | null
  publishedAt: Date | null
  /** When it was to be delivered; null: at once. */
  dueAt: Date | null
  /** As stored; decoded by {@link decodePayload}. */
  rawPayload: unknown
}

export interface NewEvent {
  id: string
  routingKey: string
  payload: unknown
  publishedAt: Date
  dueAt: Date | null
}

/**
 * JSON text of an event's message. A payload that is no plain object is stored, and delivered, as `{ value }`.
 * @throws SerializationError, PayloadTooLargeError
 */
export function writeEvent(event: NewEvent): string {
  const payload = encode(isPlainObject(event.payload) ? event.payload : { value: event.payload }, {
    root: 'payload',
  })
  return stringify({
    event_id: event.id,
    payload,
    published_at: timestamp(event.publishedAt),
    // Nothing else in the database tells by which key a message came.
    routing_key: event.routingKey,
    ...(event.dueAt && { due_at: timestamp(event.dueAt) }),
  })
}

/**
 * Reads an event's message, whoever wrote it.
 * @throws SerializationError when it is none.
 */
export function readEvent(
  message: string | null,
  headers: Readonly<Record<string, JsonValue>>,
): EventEnvelope {
  const body = parse(message ?? 'null')
  if (!isPlainObject(body)) throw malformed('it is no JSON object')
  const { event_id, routing_key, published_at, due_at, payload } = body
  if (typeof event_id !== 'string' || event_id === '') throw malformed('it has no "event_id"')
  const inner = isPlainObject(body.headers) ? body.headers.routing_key : undefined
  const key = [inner, routing_key, headers.routing_key].find(value => typeof value === 'string')
  return {
    id: event_id,
    routingKey: (key as string | undefined) ?? null,
    publishedAt: readTimestamp(published_at),
    dueAt: readTimestamp(due_at),
    rawPayload: payload,
  }
}

/** @throws SerializationError */
export function decodePayload(event: EventEnvelope): unknown {
  return decode(event.rawPayload ?? null, { root: 'payload' })
}

function malformed(why: string): SerializationError {
  return new SerializationError(`malformed event: ${why}`)
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === Object.prototype || prototype === null
}

/** ISO 8601 in UTC with six digits, as clients in other languages write it. */
function timestamp(date: Date): string {
  return date.toISOString().replace(/Z$/, '000Z')
}

function readTimestamp(value: unknown): Date | null {
  if (typeof value !== 'string') return null
  const date = new Date(value)
  return Number.isNaN(date.getTime()) ? null : date
}
