import { randomBytes } from 'node:crypto'
import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { maxTimerMs } from '../core/sleep.ts'
import type { Queryable } from '../db/database.ts'
import { Coalescer } from './coalescer.ts'
import { type BroadcastPayload, encodeEnvelope } from './envelope.ts'
import type { StreamStore } from './store.ts'

export interface BroadcastOptions {
  /** Event name in the browser. Default: `turbo-stream` for text, `json` for everything else. */
  event?: string | undefined
  /** Stored and replayed, or only notified. Default: the handle's mode, then the patterns, then `streams.defaultMode`. */
  durable?: boolean | undefined
  /** Label of a filter: only connections that its predicate lets through get it. Default: everybody. */
  visibleTo?: string | undefined
  /** Id of a connection that does not get it, usually the one that caused it. Null or empty: nobody. */
  exclude?: string | null | undefined
  /**
   * Sends only the latest of what is broadcast to this `target` within so many milliseconds (true: 50). For
   * broadcasts that replace each other; not together with `tx`. The promise resolves at once, to null.
   */
  coalesce?: boolean | number | undefined
  /** What the broadcast replaces; needed by `coalesce`. */
  target?: string | undefined
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
  report: Report
  /** Milliseconds, monotonic. */
  now?: (() => number) | undefined
}

/** PostgreSQL refuses a longer payload of NOTIFY. */
const maxNotifyBytes = 7_999
const warningPauseMs = 60_000
const defaultWindowMs = 50
const optionNames = ['event', 'durable', 'visibleTo', 'exclude', 'coalesce', 'target', 'tx']

/** Sends broadcasts. Which stream and which mode a handle has is told with each. */
export class Broadcaster {
  readonly #options: BroadcasterOptions
  readonly #now: () => number
  readonly #coalescer: Coalescer
  /** Stream → when its last warning was logged. Holds at most the streams of one pause. */
  readonly #warned = new Map<string, number>()

  constructor(options: BroadcasterOptions) {
    this.#options = options
    this.#now = options.now ?? (() => performance.now())
    this.#coalescer = new Coalescer(options.report)
  }

  /** Resolves to the message id, or to null when there is none (ephemeral) or none yet (`tx`, `coalesce`). */
  async broadcast(
    stream: string,
    payload: BroadcastPayload,
    options: BroadcastOptions,
    handleDurable: boolean | undefined,
  ): Promise<number | null> {
    checkOptions(options)
    const { config } = this.#options
    const { event, visibleTo, exclude, coalesce, target, tx } = options
    const durable = options.durable ?? handleDurable ?? isDurable(stream, config)
    const nonce = !durable && tx ? randomBytes(4).toString('hex') : undefined
    const message = encodeEnvelope(
      { stream, payload, event, visibleTo, exclude, nonce },
      config.maxPayloadBytes,
    )
    if (!coalesce) return await this.#send(stream, message, durable, tx)
    // Mode and text are settled now; only the moment is not.
    const windowMs = coalesce === true ? defaultWindowMs : coalesce
    this.#coalescer.submit(stream, target!, windowMs, () => this.#send(stream, message, durable, undefined))
    return null
  }

  /** Sends what waits for its window to end. */
  flush(): Promise<void> {
    return this.#coalescer.flush()
  }

  async #send(
    stream: string,
    message: string,
    durable: boolean,
    tx: Queryable | undefined,
  ): Promise<number | null> {
    const store = this.#options.store()
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
  if (matchesStream(stream, config.durablePatterns)) return true
  if (matchesStream(stream, config.ephemeralPatterns)) return false
  return config.defaultMode === 'durable'
}

/** Whether one of the patterns means the stream: a string its whole name, an expression any part of it. */
export function matchesStream(stream: string, patterns: readonly (string | RegExp)[]): boolean {
  // `search` takes no notice of where a global expression stopped last time.
  return patterns.some(pattern =>
    typeof pattern === 'string' ? pattern === stream : stream.search(pattern) !== -1,
  )
}

/** @throws TypeError */
export function checkOptions(options: BroadcastOptions): void {
  const unknown = Object.keys(options).find(name => !optionNames.includes(name))
  if (unknown !== undefined)
    throw new TypeError(`broadcast has no option "${unknown}"; there are ${optionNames.join(', ')}`)
  const { durable, visibleTo, exclude, tx } = options
  if (durable !== undefined && typeof durable !== 'boolean')
    throw new TypeError(`durable should be true or false, instead got ${JSON.stringify(durable)}`)
  if (visibleTo !== undefined && (typeof visibleTo !== 'string' || visibleTo === ''))
    throw new TypeError(`visibleTo should be the label of a filter, instead got ${JSON.stringify(visibleTo)}`)
  if (exclude !== undefined && exclude !== null && typeof exclude !== 'string')
    throw new TypeError(`exclude should be the id of a connection, instead got ${JSON.stringify(exclude)}`)
  checkCoalesce(options)
  if (tx !== undefined && typeof (tx as Queryable | null)?.query !== 'function')
    throw new TypeError('tx should be a database client with a query function')
}

function checkCoalesce({ coalesce, target, tx }: BroadcastOptions): void {
  if (target !== undefined && (typeof target !== 'string' || target === '' || target.includes('\0')))
    throw new TypeError(`target should be the id of an element, instead got ${JSON.stringify(target)}`)
  if (coalesce === undefined || coalesce === false) return
  if (coalesce !== true && !(typeof coalesce === 'number' && coalesce > 0 && coalesce <= maxTimerMs))
    throw new TypeError(
      `coalesce should be true or a number of milliseconds, instead got ${String(coalesce)}`,
    )
  if (target === undefined)
    throw new TypeError('coalesce needs target: broadcasts to one target replace each other')
  if (tx !== undefined)
    throw new TypeError('coalesce cannot be used with tx: it sends later, on a connection of its own')
}
