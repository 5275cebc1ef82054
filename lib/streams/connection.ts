import { randomBytes, randomInt } from 'node:crypto'
import type { ResolvedConfig } from '../config/options.ts'
import { deferred } from '../core/deferred.ts'
import {
  type Gap,
  gapFrame,
  heartbeatFrame,
  openingFrames,
  replayEndFrame,
  replayStartFrame,
  shutdownFrame,
} from './frames.ts'

/**
 * One client, from the opening frames to the end of its response. Knows bytes and limits; what it is given,
 * and when it changes from reading history to being live, is the room's business:
 *
 *   joining ──markReady──▶ ready ──promote──▶ live
 *                            ▲ └─────┐          │ deliver, but the client does not read
 *                            │       ▼          ▼
 *                        markReady ── lagging ◀─┘
 *
 * and from each of them to `closed`, once and for good. Writing never blocks: a client that does not read
 * makes `unsent` grow, and above `maxBufferedBytes` nothing more is written to it.
 */
export type ConnectionState = 'joining' | 'ready' | 'live' | 'lagging' | 'closed'

/** Why a connection ended. The announced ones are told to the client, which then comes back on its own terms. */
const closeReasons = {
  worker_restart: { announced: true },
  idle: { announced: true },
  max_age: { announced: true },
  slow: { announced: true },
  revoked: { announced: true },
  error: { announced: true },
  /** The client took nothing for `writeDeadline`. */
  stalled: { announced: false },
  /** The client, or the network, ended it. */
  client: { announced: false },
} as const

export type CloseReason = keyof typeof closeReasons

/** What is written to: an HTTP response, or any other writable stream. */
export interface Sink {
  write(chunk: Uint8Array, onFlushed: () => void): unknown
  end(): unknown
  destroy(): unknown
  readonly writableLength: number
  on(event: 'close' | 'error', listener: () => void): unknown
}

export type ConnectionLimits = Pick<
  ResolvedConfig['streams'],
  'heartbeatInterval' | 'idleTimeout' | 'maxAge' | 'writeDeadline' | 'maxBufferedBytes'
>

export interface ConnectionOptions {
  stream: string
  /** Highest id that the client has. */
  cursor: number
  sink: Sink
  limits: ConnectionLimits
  /** Bytes that the operating system has not taken yet; finer than `writableLength` while a large write is under way. */
  inFlight?: (() => number) | undefined
  /** What `authorize` answered. */
  context?: unknown
  /** Milliseconds, monotonic. */
  now?: (() => number) | undefined
}

/** While history is written, this much may lie unsent before more is read. */
const catchUpBufferBytes = 65_536
const shortestRetryMs = 500
const longestRetryMs = 4_000

export class Connection {
  readonly id = randomBytes(8).toString('hex')
  readonly stream: string
  readonly context: unknown
  /** Resolves when the response is over, whoever ended it. */
  readonly finished: Promise<void>
  /** Highest id that was looked at for this client. */
  scan: number
  readonly #sink: Sink
  readonly #limits: ConnectionLimits
  readonly #inFlight: () => number
  readonly #now: () => number
  readonly #abort = new AbortController()
  readonly #openedAt: number
  #state: ConnectionState = 'joining'
  /** Ephemeral frames that came before this client was live. */
  #held: Uint8Array[] = []
  #heldBytes = 0
  /** Durable frames since the replay-start that has no replay-end yet; null: no replay is open. */
  #replayed: number | null = null
  #lastMessageAt: number
  #nextBeatAt: number
  #progressAt: number
  #lastInFlight = 0
  #waiting: { upTo: number; resume: () => void } | undefined
  #destroyTimer: NodeJS.Timeout | undefined
  #isFinished = false
  #wasCut = false
  #onClosed: (reason: CloseReason) => void = () => undefined
  #onLive: () => void = () => undefined
  readonly #onFlushed = () => {
    this.#progressAt = this.#now()
    if (this.#waiting && this.unsent <= this.#waiting.upTo) this.#resume()
  }

  constructor(options: ConnectionOptions) {
    const { stream, cursor, sink, limits, inFlight, context, now = () => performance.now() } = options
    this.stream = stream
    this.context = context
    this.scan = cursor
    this.#sink = sink
    this.#limits = limits
    this.#inFlight = inFlight ?? (() => sink.writableLength)
    this.#now = now
    this.#openedAt = this.#lastMessageAt = this.#progressAt = now()
    // Spread: connections that came together after a deploy do not all beat together.
    this.#nextBeatAt = this.#openedAt + limits.heartbeatInterval * (0.5 + Math.random() * 0.5)
    const finished = deferred()
    this.finished = finished.promise
    sink.on('error', () => this.close('client'))
    sink.on('close', () => {
      clearTimeout(this.#destroyTimer)
      this.#isFinished = true
      this.close('client')
      finished.resolve()
    })
    this.#write(
      openingFrames({
        stream,
        cursor,
        connectionId: this.id,
        heartbeatInterval: limits.heartbeatInterval,
      }),
    )
  }

  get state(): ConnectionState {
    return this.#state
  }

  get isClosed(): boolean {
    return this.#state === 'closed'
  }

  /** Aborts when the connection is closed. */
  get signal(): AbortSignal {
    return this.#abort.signal
  }

  /** Bytes written and not yet handed to the operating system. */
  get unsent(): number {
    return this.#sink.writableLength
  }

  /** Sets the one receiver of the end. Called in the tick in which the connection closes, once. */
  onClosed(receive: (reason: CloseReason) => void): void {
    this.#onClosed = receive
  }

  /** Sets the one receiver of the moment in which the connection is live for the first time. */
  onLive(receive: () => void): void {
    this.#onLive = receive
  }

  /** Tells the client that it has missed something; after a reset, ids count from 0 again. */
  reportGap(gap: Gap): void {
    if (gap.reason === 'reset') this.scan = 0
    this.#write(gapFrame(gap))
  }

  startReplay(): void {
    if (this.#replayed !== null) return
    this.#replayed = 0
    this.#write(replayStartFrame(this.scan))
  }

  /** Everything that was stored when its last read began has been written. */
  markReady(): void {
    this.#enter('ready')
  }

  /** From now on live: ends the replay and hands out what was held. */
  promote(): void {
    this.#write(replayEndFrame(this.scan, this.#replayed ?? 0))
    this.#replayed = null
    this.flushHeld()
    this.#enter('live')
    const announce = this.#onLive
    this.#onLive = () => undefined
    announce()
  }

  /**
   * Writes a durable frame of history (null: a row that is not for this client). The caller waits with
   * {@link drained} where it matters.
   */
  replay(id: number, frame: Uint8Array | null): void {
    this.scan = id
    if (frame) this.#writeMessage(frame)
    if (frame && this.#replayed !== null) this.#replayed += 1
  }

  /** As {@link replay}, unless the client is too far behind: then false, and nothing changes but its state. */
  deliver(id: number, frame: Uint8Array | null): boolean {
    const { maxBufferedBytes } = this.#limits
    if (maxBufferedBytes > 0 && this.unsent > maxBufferedBytes) {
      this.#enter('lagging')
      return false
    }
    this.replay(id, frame)
    return true
  }

  /** Takes an ephemeral frame: writes it when live, else holds it. One that cannot be kept ends the connection. */
  offer(frame: Uint8Array): void {
    if (this.isClosed) return
    const { maxBufferedBytes } = this.#limits
    const isLive = this.#state === 'live'
    const kept = this.unsent + (isLive ? 0 : this.#heldBytes + frame.length)
    if (maxBufferedBytes > 0 && kept > maxBufferedBytes) {
      this.close('slow')
    } else if (isLive) {
      this.#writeMessage(frame)
    } else {
      this.#held.push(frame)
      this.#heldBytes += frame.length
    }
  }

  /** Writes the held ephemeral frames, in the order in which they came. */
  flushHeld(): void {
    const held = this.#held
    this.#held = []
    this.#heldBytes = 0
    for (const frame of held) this.#writeMessage(frame)
  }

  /** Resolves when little enough is unsent to read on, or when the connection is closed. */
  drained(): Promise<void> | undefined {
    const { maxBufferedBytes } = this.#limits
    const upTo = maxBufferedBytes > 0 ? Math.min(maxBufferedBytes, catchUpBufferBytes) : catchUpBufferBytes
    if (this.isClosed || this.unsent <= upTo) return undefined
    return new Promise(resume => {
      this.#waiting = { upTo, resume }
    })
  }

  /** Called at intervals: ends what is over, else keeps the connection warm. */
  tick(): void {
    const now = this.#now()
    const reason = this.#overdue(now)
    if (reason) {
      this.close(reason)
    } else if (now >= this.#nextBeatAt) {
      this.#nextBeatAt = now + this.#limits.heartbeatInterval
      this.#write(heartbeatFrame(Math.floor(Date.now() / 1_000)))
    }
  }

  /** Ends the connection; later calls do nothing. What is unsent may still go out within `writeDeadline`. */
  close(reason: CloseReason): void {
    if (this.isClosed) return
    this.#state = 'closed'
    this.#held = []
    this.#heldBytes = 0
    if (closeReasons[reason].announced) {
      const retry = randomInt(shortestRetryMs, longestRetryMs + 1)
      this.#sink.write(shutdownFrame(reason, retry), this.#onFlushed)
      this.#sink.end()
      this.#destroyTimer = setTimeout(() => this.destroy(), this.#limits.writeDeadline).unref()
    } else {
      this.destroy()
    }
    this.#resume()
    this.#abort.abort()
    this.#onClosed(reason)
  }

  /** The response was cut off before all of it had gone out. */
  get wasCut(): boolean {
    return this.#wasCut
  }

  /** Cuts the response off, unless it is over. */
  destroy(): void {
    if (this.#isFinished) return
    this.#wasCut = true
    this.#sink.destroy()
  }

  #overdue(now: number): CloseReason | undefined {
    const { idleTimeout, maxAge, writeDeadline } = this.#limits
    const inFlight = this.#inFlight()
    if (this.unsent === 0 || inFlight < this.#lastInFlight) this.#progressAt = now
    this.#lastInFlight = inFlight
    if (now - this.#progressAt > writeDeadline) return 'stalled'
    if (maxAge !== null && now - this.#openedAt > maxAge) return 'max_age'
    // Messages count, heartbeats do not: else nothing would ever be idle.
    return now - this.#lastMessageAt > idleTimeout ? 'idle' : undefined
  }

  #enter(state: ConnectionState): void {
    if (this.#state !== 'closed') this.#state = state
  }

  #resume(): void {
    const waiting = this.#waiting
    this.#waiting = undefined
    waiting?.resume()
  }

  #writeMessage(frame: Uint8Array): void {
    this.#lastMessageAt = this.#now()
    this.#write(frame)
  }

  #write(bytes: Uint8Array): void {
    if (this.isClosed) return
    if (this.unsent === 0) this.#progressAt = this.#now()
    this.#sink.write(bytes, this.#onFlushed)
  }
}
