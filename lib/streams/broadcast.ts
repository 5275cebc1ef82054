import { randomBytes } from 'node:crypto'
import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import type { Queryable } from '../db/database.ts'
import { type BroadcastPayload, encodeEnvelope } from './envelope.ts'
import type { StreamStore } from './store.ts'

export interface BroadcastOptions {
  /** Event name in the browser. Default: `turbo-stream` for text, `json` for everything else. */
  event?: string | undefined
  /** Stored and replayed, or only notified. Default: the handle's mode, then the patterns, then `streams.defaultMode`. */
  durable?: boolean | undefined
  /** The caller's own client, inside its transaction: the broadcast happens if and only if that commits. */
  tx?: Queryable | undefined
}

export interface BroadcasterOptions {
  store(): StreamStore
  config: Pick<
    ResolvedConfig['streams'],
    'defaultMode' | 'durablePatterns' | 'ephemeralPatterns' | 'maxPayloadBytes'
  >
  log: Logger
  /** Milliseconds, monotonic. */
  now?: (() => number) | undefined
}

/** PostgreSQL refuses a longer payload of NOTIFY. */
const maxNotifyBytes = 7_999
const warningPauseMs = 60_000
const optionNames = ['event', 'durable', 'tx']

/** Sends broadcasts. Which stream and which mode a handle has is told with each. */
export class Broadcaster {
  readonly #options: BroadcasterOptions
  readonly #now: () => number
  /** Stream → when its last warning was logged. Holds at most the streams of one pause. */
  readonly #warned = new Map<string, number>()

  constructor(options: BroadcasterOptions) {
    this.#options = options
    this.#now = options.now ?? (() => performance.now())
  }

  /** Resolves to the message id, or to null when there is none (ephemeral) or none yet (`tx`). */
  async broadcast(
    stream: string,
    payload: BroadcastPayload,
    options: BroadcastOptions,
    handleDurable: boolean | undefined,
  ): Promise<number | null> {
    checkOptions(options)
    const { config } = this.#options
    const store = this.#options.store()
    const { event, tx } = options
    const durable = options.durable ?? handleDurable ?? isDurable(stream, config)
    const nonce = !durable && tx ? randomBytes(4).toString('hex') : undefined
    const message = encodeEnvelope({ stream, payload, event, nonce }, config.maxPayloadBytes)
    if (durable) return await store.append(stream, message, tx)
    const bytes = Buffer.byteLength(message)
    if (bytes > maxNotifyBytes) {
      this.#warn(stream, bytes)
      return await store.append(stream, message, tx)
    }
    await store.notify(stream, message, tx)
    return null
  }

  #warn(stream: string, bytes: number): void {
    const now = this.#now()
    for (const [name, at] of this.#warned) if (now - at >= warningPauseMs) this.#warned.delete(name)
    if (this.#warned.has(stream)) return
    this.#warned.set(stream, now)
    this.#options.log.warn(
      { stream, bytes },
      `ephemeral broadcast on "${stream}" is ${bytes} bytes (limit ${maxNotifyBytes}); sent durably`,
    )
  }
}

/** What a stream is when neither the call nor the handle says so. */
export function isDurable(
  stream: string,
  config: Pick<ResolvedConfig['streams'], 'defaultMode' | 'durablePatterns' | 'ephemeralPatterns'>,
): boolean {
  // `search` takes no notice of where a global expression stopped last time.
  const matches = (pattern: string | RegExp) =>
    typeof pattern === 'string' ? pattern === stream : stream.search(pattern) !== -1
  if (config.durablePatterns.some(matches)) return true
  if (config.ephemeralPatterns.some(matches)) return false
  return config.defaultMode === 'durable'
}

function checkOptions(options: BroadcastOptions): void {
  const unknown = Object.keys(options).find(name => !optionNames.includes(name))
  if (unknown !== undefined)
    throw new TypeError(`broadcast has no option "${unknown}"; there are ${optionNames.join(', ')}`)
  const { durable, tx } = options
  if (durable !== undefined && typeof durable !== 'boolean')
    throw new TypeError(`durable should be true or false, instead got ${JSON.stringify(durable)}`)
  if (tx !== undefined && typeof (tx as Queryable | null)?.query !== 'function')
    throw new TypeError('tx should be a database client with a query function')
}
