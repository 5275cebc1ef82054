/**
 * The bytes between the hub and its workers: a frame is a 4-byte big-endian length and that many bytes of
 * UTF-8 JSON, an object with a type `t`. A frame of an unknown type, and an unknown field, are ignored, because
 * during a release the two ends are of different versions. Anything else that is wrong ends the connection.
 */
import { HubProtocolError } from '../../core/errors.ts'
import { isChannelName } from '../../db/listener.ts'

export const protocolVersion = 1
export const maxFrameBytes = 4 * 1024 * 1024
const headerBytes = 4

/** Worker to hub. `i` numbers a request; its answer carries the same number. */
export type WorkerFrame =
  | { t: 'hello'; v: number; pid: number; index: number; phase: number }
  | { t: 'sub'; q: string; i: number }
  | { t: 'unsub'; q: string }

/** Hub to worker. `q` is a LISTEN channel; `p` null: something durable was stored, else an ephemeral envelope. */
export type HubFrame =
  | { t: 'ack'; q: string; i: number }
  | { t: 'nack'; q: string; i: number; reason: string }
  | { t: 'wake'; q: string; p: string | null }
  | { t: 'status'; healthy: boolean }
  | { t: 'bye'; reason: string }

export type Frame = WorkerFrame | HubFrame

/** @throws HubProtocolError when the frame is larger than 4 MiB. */
export function encodeFrame(frame: Frame): Buffer {
  const text = JSON.stringify(frame)
  const length = Buffer.byteLength(text)
  if (length > maxFrameBytes) {
    throw new HubProtocolError(`a ${frame.t} frame has ${length} bytes, the limit is ${maxFrameBytes}`)
  }
  const bytes = Buffer.allocUnsafe(headerBytes + length)
  bytes.writeUInt32BE(length)
  bytes.write(text, headerBytes)
  return bytes
}

/**
 * Cuts a byte stream into frames, however it was split. Bytes of an unfinished frame when the stream ends are
 * simply not a frame.
 */
export class FrameDecoder {
  readonly #receive: (value: Record<string, unknown>) => void
  readonly #text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  #chunks: Buffer[] = []
  #size = 0
  /** Length of the frame being read; 0 = its header is not complete. */
  #length = 0

  constructor(receive: (value: Record<string, unknown>) => void) {
    this.#receive = receive
  }

  /** @throws HubProtocolError when the bytes cannot be frames; the decoder is of no use afterwards. */
  push(chunk: Buffer): void {
    this.#chunks.push(chunk)
    this.#size += chunk.length
    for (;;) {
      if (this.#length === 0) {
        if (this.#size < headerBytes) return
        this.#length = this.#take(headerBytes).readUInt32BE()
        if (this.#length === 0 || this.#length > maxFrameBytes) {
          throw new HubProtocolError(
            `a frame announces ${this.#length} bytes, allowed are 1 to ${maxFrameBytes}`,
          )
        }
      }
      if (this.#size < this.#length) return
      const body = this.#take(this.#length)
      this.#length = 0
      this.#receive(this.#parse(body))
    }
  }

  #take(length: number): Buffer {
    const bytes = this.#chunks.length === 1 ? this.#chunks[0]! : Buffer.concat(this.#chunks)
    this.#chunks = bytes.length > length ? [bytes.subarray(length)] : []
    this.#size -= length
    return bytes.subarray(0, length)
  }

  #parse(body: Buffer): Record<string, unknown> {
    let value: unknown
    try {
      value = JSON.parse(this.#text.decode(body))
    } catch (cause) {
      throw new HubProtocolError(`a frame of ${body.length} bytes is not JSON in UTF-8`, { cause })
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      throw new HubProtocolError('a frame is not a JSON object')
    }
    return value as Record<string, unknown>
  }
}

/**
 * The frame that a decoded object stands for; null when its type is unknown.
 * @throws HubProtocolError when a field of a known type is missing or wrong.
 */
export function parseFrame(value: Record<string, unknown>): Frame | null {
  const { t } = value
  switch (t) {
    case 'hello':
      return {
        t,
        v: count(value, 'v'),
        pid: count(value, 'pid'),
        index: count(value, 'index'),
        phase: count(value, 'phase'),
      }
    case 'sub':
      return { t, q: channel(value), i: count(value, 'i') }
    case 'unsub':
      return { t, q: channel(value) }
    case 'ack':
      return { t, q: channel(value), i: count(value, 'i') }
    case 'nack':
      return { t, q: channel(value), i: count(value, 'i'), reason: text(value, 'reason') }
    case 'wake':
      return { t, q: channel(value), p: value.p === null ? null : text(value, 'p') }
    case 'status':
      return { t, healthy: flag(value, 'healthy') }
    case 'bye':
      return { t, reason: text(value, 'reason') }
    default:
      if (typeof t !== 'string') throw new HubProtocolError('a frame has no type')
      return null
  }
}

function count(frame: Record<string, unknown>, key: string): number {
  const value = frame[key]
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number
  throw wrongField(frame, key)
}

function text(frame: Record<string, unknown>, key: string): string {
  const value = frame[key]
  if (typeof value === 'string') return value
  throw wrongField(frame, key)
}

function flag(frame: Record<string, unknown>, key: string): boolean {
  const value = frame[key]
  if (typeof value === 'boolean') return value
  throw wrongField(frame, key)
}

function channel(frame: Record<string, unknown>): string {
  const name = text(frame, 'q')
  if (isChannelName(name)) return name
  throw wrongField(frame, 'q')
}

function wrongField(frame: Record<string, unknown>, key: string): HubProtocolError {
  return new HubProtocolError(`field ${key} of a ${String(frame.t)} frame is missing or wrong`)
}
