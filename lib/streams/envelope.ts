import { PayloadTooLargeError, SerializationError } from '../core/errors.ts'
import { defaultEvent } from './frames.ts'

/**
 * The stored form of a broadcast, also the payload of an ephemeral one. Its keys are shared with other pgbus
 * clients: `html` (the payload as text), `stream` (so that a frame can only reach the stream it was meant for),
 * `event` (unless `turbo-stream`), `visible_to` (label of a filter), `exclude` (id of a connection that does not
 * get it), `n` (see {@link EnvelopeParts}).
 */
export interface Envelope {
  html: string
  stream?: unknown
  event?: unknown
  visible_to?: unknown
  exclude?: unknown
}

/** What can be broadcast: text as it is, anything else as its JSON. */
export type BroadcastPayload = string | number | boolean | null | object

export interface EnvelopeParts {
  stream: string
  payload: BroadcastPayload
  event: string | undefined
  visibleTo?: string | undefined
  exclude?: string | null | undefined
  /** Makes the text unique: PostgreSQL merges equal notifications of one transaction. */
  nonce?: string | undefined
}

const reservedEvents = new Set([
  'open',
  'close',
  'error',
  'message',
  'connected',
  'event',
  'shutdown',
  'gap-detected',
  'replay-start',
  'replay-end',
])

/**
 * The JSON text of a broadcast.
 * @throws TypeError for an event name that cannot be used, SerializationError for a payload that cannot be
 * stored, PayloadTooLargeError above `maxBytes`.
 */
export function encodeEnvelope(parts: EnvelopeParts, maxBytes: number): string {
  const { stream, payload, event, visibleTo, exclude, nonce } = parts
  checkEvent(event)
  const name = event ?? (typeof payload === 'string' ? undefined : 'json')
  const text = JSON.stringify({
    html: textOf(payload, stream),
    stream,
    ...(visibleTo === undefined ? {} : { visible_to: visibleTo }),
    ...(exclude ? { exclude } : {}),
    ...(name === undefined || name === defaultEvent ? {} : { event: name }),
    ...(nonce === undefined ? {} : { n: nonce }),
  })
  const bytes = Buffer.byteLength(text)
  if (bytes > maxBytes) {
    throw new PayloadTooLargeError(
      `a broadcast on "${stream}" is ${bytes} bytes, the limit is ${maxBytes} — send a reference, or raise streams.maxPayloadBytes`,
    )
  }
  return text
}

/** The envelope in a stored or notified text, or undefined when it is none. */
export function decodeEnvelope(text: string): Envelope | undefined {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  return typeof (value as Envelope).html === 'string' ? (value as Envelope) : undefined
}

/** Written for this stream, or by a client that does not say for which. */
export function isMeantFor(stream: string, envelope: Envelope): boolean {
  return envelope.stream === undefined || envelope.stream === null || envelope.stream === stream
}

function checkEvent(event: unknown): void {
  if (event === undefined) return
  const usable =
    typeof event === 'string' &&
    /^[A-Za-z0-9_.:-]{1,64}$/.test(event) &&
    !event.startsWith('pgbus:') &&
    !reservedEvents.has(event)
  if (!usable) {
    throw new TypeError(
      `event should be 1 to 64 of A-Z a-z 0-9 _ . : - and no name that browsers or pgbus use, instead got ${JSON.stringify(event)}`,
    )
  }
}

function textOf(payload: unknown, stream: string): string {
  if (typeof payload === 'string') {
    // jsonb refuses U+0000 and NOTIFY does not; the two ways of sending must not differ.
    if (payload.includes('\0'))
      throw new SerializationError(`a broadcast on "${stream}" holds U+0000, which PostgreSQL cannot store`)
    // Node has it; the language level of the types does not.
    return (payload as string & { toWellFormed(): string }).toWellFormed()
  }
  let text: string | undefined
  try {
    text = JSON.stringify(payload)
  } catch (cause) {
    throw new SerializationError(`a broadcast on "${stream}" has no JSON form`, { cause })
  }
  if (text === undefined)
    throw new SerializationError(
      `a broadcast on "${stream}" should be text or JSON, instead got ${typeof payload}`,
    )
  return text
}
