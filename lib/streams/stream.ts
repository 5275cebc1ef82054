import type { JsonValue } from '../core/json.ts'
import type { Queryable } from '../db/database.ts'
import { type Broadcaster, type BroadcastOptions, checkOptions } from './broadcast.ts'
import type { BroadcastJobArgs } from './broadcast-job.ts'
import { type BroadcastPayload, decodeEnvelope } from './envelope.ts'
import { defaultEvent } from './frames.ts'
import { Presence } from './presence.ts'
import { type TurboStreamOptions, turboStream, withoutRender } from './render.ts'
import { type SourceTagOptions, sourceTag } from './source-tag.ts'
import type { StreamStore } from './store.ts'
import type { TokenOptions } from './token.ts'

export interface StreamOptions {
  /** Mode of this handle's broadcasts, where the call does not say. Default: as the configuration says. */
  durable?: boolean | undefined
}

/** Options of {@link Stream.broadcastRender}. */
export type BroadcastRenderOptions = BroadcastOptions & TurboStreamOptions

/** Options of {@link Stream.broadcastLater}. */
export interface BroadcastLaterOptions extends Omit<BroadcastOptions, 'coalesce' | 'target'> {
  /** Name under which the renderer is registered in the job workers. */
  renderer: string
  /** What it is given. Default null. */
  args?: JsonValue | undefined
  /** Id of the element that is changed; without one the HTML is sent as it is. */
  target?: string | undefined
  /** What happens to that element. Default `replace`. */
  action?: string | undefined
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
  /** The streams pool. */
  db(): Queryable
  broadcaster: Broadcaster
  sign(stream: string, options: TokenOptions | undefined): string
  enqueue(args: BroadcastJobArgs, tx: Queryable | undefined): Promise<unknown>
  /** Path of the endpoint, without a slash at its end. */
  basePath(): string
}

const defaultReadLimit = 500

/** A stream by its name: broadcast on it, read it, hand it to a browser. Holds nothing; make as many as you like. */
export class Stream {
  readonly name: string
  /** Who is there. */
  readonly presence: Presence
  readonly #durable: boolean | undefined
  readonly #context: StreamContext

  /** @internal */
  constructor(name: string, options: StreamOptions, context: StreamContext) {
    this.name = name
    this.#durable = options.durable
    this.#context = context
    this.presence = new Presence(this, () => context.db())
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

  /**
   * Sends a `<turbo-stream>` element that changes `target` (`action`, default `replace`) to what `render` gives.
   * @throws TypeError; what `render` throws; as {@link Stream.broadcast}
   */
  async broadcastRender(options: BroadcastRenderOptions): Promise<number | null> {
    const html = await turboStream(options)
    return await this.broadcast(html, { ...withoutRender(options), target: options.target })
  }

  /**
   * Has a job worker make the HTML and send it: the job `pgbus:broadcast` on the queue `streams.broadcastQueue`.
   * Resolves when the job is enqueued; with `tx` it is part of the caller's transaction.
   * @throws TypeError, SerializationError before any SQL.
   */
  async broadcastLater(options: BroadcastLaterOptions): Promise<void> {
    const { renderer, args = null, target, action, tx, event, visibleTo, exclude, ...rest } = options
    if (typeof renderer !== 'string' || renderer === '')
      throw new TypeError(
        `renderer should be the name of a renderer, instead got ${JSON.stringify(renderer)}`,
      )
    if (action !== undefined && target === undefined) throw new TypeError('action needs target')
    if ('coalesce' in rest) throw new TypeError('broadcast has no option "coalesce" when a job sends it')
    checkOptions({ ...rest, event, visibleTo, exclude, target, tx })
    const durable = options.durable ?? this.#durable
    await this.#context.enqueue(
      {
        stream: this.name,
        renderer,
        args,
        ...(target === undefined ? {} : { target }),
        ...(action === undefined ? {} : { action }),
        ...(event === undefined ? {} : { event }),
        ...(visibleTo === undefined ? {} : { visibleTo }),
        ...(exclude ? { exclude } : {}),
        ...(durable === undefined ? {} : { durable }),
      },
      tx,
    )
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
