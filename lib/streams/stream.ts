import type { Broadcaster, BroadcastOptions } from './broadcast.ts'
import { type BroadcastPayload, decodeEnvelope } from './envelope.ts'
import { defaultEvent } from './frames.ts'
import { type SourceTagOptions, sourceTag } from './source-tag.ts'
import type { StreamStore } from './store.ts'
import type { TokenOptions } from './token.ts'

export interface StreamOptions {
  /** Mode of this handle's broadcasts, where the call does not say. Default: as the configuration says. */
  durable?: boolean | undefined
}

/** One stored broadcast. */
export interface StreamMessage {
  id: number
  createdAt: Date
  event: string
  /** The payload as it is sent: text, or JSON text. */
  data: string
}

/** What a handle needs of the instance that made it. */
export interface StreamContext {
  store(): StreamStore
  broadcaster: Broadcaster
  sign(stream: string, options: TokenOptions | undefined): string
  /** Path of the endpoint, without a slash at its end. */
  basePath(): string
}

const defaultReadLimit = 500

/** A stream by its name: broadcast on it, read it, hand it to a browser. Holds nothing; make as many as you like. */
export class Stream {
  readonly name: string
  readonly #durable: boolean | undefined
  readonly #context: StreamContext

  /** @internal */
  constructor(name: string, options: StreamOptions, context: StreamContext) {
    this.name = name
    this.#durable = options.durable
    this.#context = context
  }

  /**
   * Sends a payload to everybody who follows the stream: text as it is, anything else as JSON.
   *
   * Durable broadcasts are stored, and delivered also to clients that connect later from an older cursor; the
   * promise resolves to their id. Ephemeral ones reach only who is there. An ephemeral one of more than 7999
   * bytes is sent durably. With `tx`, and for ephemeral ones, the promise resolves to null.
   *
   * @throws TypeError, SerializationError, PayloadTooLargeError before any SQL; else the driver's error.
   */
  broadcast(payload: BroadcastPayload, options: BroadcastOptions = {}): Promise<number | null> {
    return this.#context.broadcaster.broadcast(this.name, payload, options, this.#durable)
  }

  /** Highest id of the stream; 0 when nothing was ever broadcast. Take it before the data of a page is read. */
  async watermark(): Promise<number> {
    return (await this.#context.store().bounds(this.name)).watermark
  }

  /** Stored broadcasts above `id`, oldest first, at most `limit` (default 500). */
  async readAfter(id: number, limit: number = defaultReadLimit): Promise<StreamMessage[]> {
    if (!Number.isSafeInteger(id) || id < 0)
      throw new TypeError(`id should be a message id or 0, instead got ${String(id)}`)
    if (!Number.isSafeInteger(limit) || limit < 1)
      throw new TypeError(`limit should be a whole number from 1, instead got ${String(limit)}`)
    const rows = await this.#context.store().readAfter(this.name, id, limit)
    return rows.map(({ id, createdAt, message }) => {
      const envelope = decodeEnvelope(message)
      const event = typeof envelope?.event === 'string' ? envelope.event : defaultEvent
      return { id, createdAt, event, data: envelope?.html ?? message }
    })
  }

  /**
   * A signed form of the name; whoever has it may follow the stream.
   * @throws MissingSecretError
   */
  token(options?: TokenOptions): string {
    return this.#context.sign(this.name, options)
  }

  /** Path of the endpoint for this stream, with a token. */
  url(options?: TokenOptions): string {
    return `${this.#context.basePath()}/${this.token(options)}`
  }

  /** HTML of an element that follows the stream from `since`, by default from now on. */
  async sourceTag(options: SourceTagOptions = {}): Promise<string> {
    const { since = await this.watermark(), ...rest } = options
    return sourceTag({ src: this.url(), script: `${this.#context.basePath()}/client/index.js` }, since, rest)
  }
}
