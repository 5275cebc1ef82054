import { createConnection, type Socket } from 'node:net'
import { deadline } from '../../core/deadline.ts'
import { type Deferred, deferred } from '../../core/deferred.ts'
import { HubUnavailableError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { type Report, toError } from '../../core/report.ts'
import type { WakeSource } from '../wake-source.ts'
import { encodeFrame, FrameDecoder, parseFrame, protocolVersion, type WorkerFrame } from './protocol.ts'

export interface HubClientOptions {
  /** Path of the hub's socket. */
  path: string
  /** Which worker this is, for the hub's log; default 0. */
  index?: number | undefined
  phase?: number | undefined
  /** Longest wait for an answer, and for bytes to leave, in milliseconds. */
  ackTimeout: number
  /** The root logger of the instance. */
  log: Logger
  report: Report
}

interface Subscription {
  references: number
  active: boolean
  /** The request under way, shared by concurrent callers. */
  request: Promise<'active' | 'pending'> | undefined
}

const connectTimeoutMs = 1_000

/**
 * A worker's end of the hub. Dies once and for ever: when the socket ends or fails, when the hub says goodbye
 * or breaks the protocol, when an answer does not come, or when bytes do not leave. It never reconnects; what
 * comes after it is its owner's decision.
 */
export class HubClient implements WakeSource {
  readonly mode = 'hub'
  readonly #socket: Socket
  readonly #ackTimeout: number
  readonly #log: Logger
  readonly #report: Report
  readonly #subscriptions = new Map<string, Subscription>()
  /** Requests without an answer, and the watch over them: it starts anew with each answer, so a crowd is no death. */
  readonly #requests = new Map<number, Deferred<'active' | 'pending'>>()
  #cancelUnanswered: () => void = () => undefined
  readonly #warnedTypes = new Set<string>()
  readonly #greeted = deferred()
  readonly #socketClosed = deferred()
  #state: 'open' | 'dead' | 'closed' = 'open'
  #deathReason = ''
  #healthy = false
  #nextRequest = 0
  /** Writes that have not reached the kernel, and the watch over them. */
  #unsent = 0
  #cancelUnsent: () => void = () => undefined
  #receiveWake: (channel: string, payload: string | null) => void = () => undefined
  #tellDead: (reason: string) => void = () => undefined

  /**
   * Connects and introduces itself; resolves when the hub has answered.
   * @throws HubUnavailableError
   */
  static async connect(options: HubClientOptions): Promise<HubClient> {
    const socket = await openSocket(options.path)
    const client = new HubClient(socket, options)
    client.#send({
      t: 'hello',
      v: protocolVersion,
      pid: process.pid,
      index: options.index ?? 0,
      phase: options.phase ?? 0,
    })
    const cancel = deadline(options.ackTimeout, () =>
      client.#die(`no answer within ${options.ackTimeout} ms`),
    )
    await client.#greeted.promise
    cancel()
    if (client.#state === 'open') return client
    throw new HubUnavailableError(`the hub at ${options.path} does not serve: ${client.#deathReason}`)
  }

  private constructor(socket: Socket, options: HubClientOptions) {
    this.#socket = socket
    this.#ackTimeout = options.ackTimeout
    this.#log = options.log.child({ component: 'streams.client' })
    this.#report = options.report
    const decoder = new FrameDecoder(value => this.#receive(value))
    socket.on('data', chunk => {
      if (this.#state !== 'open') return
      try {
        decoder.push(chunk)
      } catch (error) {
        this.#die(toError(error).message)
      }
    })
    socket.on('end', () => this.#die('the hub closed the connection'))
    socket.on('error', error => this.#die(error.message))
    socket.on('close', () => {
      this.#die('the connection to the hub closed')
      this.#socketClosed.resolve()
    })
  }

  get healthy(): boolean {
    return this.#state === 'open' && this.#healthy
  }

  get channels(): number {
    return this.#subscriptions.size
  }

  onWake(receive: (channel: string, payload: string | null) => void): void {
    this.#receiveWake = receive
  }

  /** Sets the one receiver of this client's death; called at once when it is dead already, never after `close()`. */
  onDead(receive: (reason: string) => void): void {
    this.#tellDead = receive
    if (this.#state === 'dead') receive(this.#deathReason)
  }

  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    if (this.#state !== 'open') return 'pending'
    const known = this.#subscriptions.get(channel)
    const subscription = known ?? { references: 0, active: false, request: undefined }
    if (!known) this.#subscriptions.set(channel, subscription)
    subscription.references += 1
    if (subscription.active) return 'active'
    subscription.request ??= this.#subscribe(channel, subscription)
    return subscription.request
  }

  release(channel: string): void {
    const subscription = this.#subscriptions.get(channel)
    if (!subscription) return
    subscription.references -= 1
    if (subscription.references > 0) return
    this.#subscriptions.delete(channel)
    this.#send({ t: 'unsub', q: channel })
  }

  async close(): Promise<void> {
    this.#finish('closed', 'closed')
    await this.#socketClosed.promise
  }

  async #subscribe(channel: string, subscription: Subscription): Promise<'active' | 'pending'> {
    const i = this.#nextRequest
    this.#nextRequest += 1
    const answer = deferred<'active' | 'pending'>()
    this.#requests.set(i, answer)
    if (this.#requests.size === 1) this.#watchUnanswered()
    this.#send({ t: 'sub', q: channel, i })
    const state = await answer.promise
    subscription.active = state === 'active'
    subscription.request = undefined
    return state
  }

  #receive(value: Record<string, unknown>): void {
    if (this.#state !== 'open') return
    const frame = parseFrame(value)
    switch (frame?.t) {
      case 'ack':
      case 'nack':
        this.#settle(frame.i, frame.t === 'ack' ? 'active' : 'pending')
        break
      case 'wake':
        this.#wake(frame.q, frame.p)
        break
      case 'status':
        this.#healthy = frame.healthy
        this.#greeted.resolve()
        break
      case 'bye':
        this.#die(frame.reason)
        break
      default:
        this.#ignore(String(value.t))
    }
  }

  #wake(channel: string, payload: string | null): void {
    if (!this.#subscriptions.has(channel)) return
    try {
      this.#receiveWake(channel, payload)
    } catch (error) {
      this.#report(error, { action: 'stream_hub', channel })
    }
  }

  #settle(request: number, state: 'active' | 'pending'): void {
    const answer = this.#requests.get(request)
    if (!answer) return
    this.#requests.delete(request)
    answer.resolve(state)
    this.#cancelUnanswered()
    if (this.#requests.size > 0 && this.#state === 'open') this.#watchUnanswered()
  }

  #watchUnanswered(): void {
    this.#cancelUnanswered = deadline(this.#ackTimeout, () =>
      this.#die(`no acknowledgement within ${this.#ackTimeout} ms`),
    )
  }

  #send(frame: WorkerFrame): void {
    if (this.#state !== 'open') return
    this.#unsent += 1
    if (this.#unsent === 1) this.#watchUnsent()
    this.#socket.write(encodeFrame(frame), () => {
      this.#unsent -= 1
      this.#cancelUnsent()
      if (this.#unsent > 0 && this.#state === 'open') this.#watchUnsent()
    })
  }

  #watchUnsent(): void {
    this.#cancelUnsent = deadline(this.#ackTimeout, () =>
      this.#die(`the hub took no bytes for ${this.#ackTimeout} ms`),
    )
  }

  #die(reason: string): void {
    if (this.#state !== 'open') return
    this.#finish('dead', reason)
    this.#tellDead(reason)
  }

  #finish(state: 'dead' | 'closed', reason: string): void {
    if (this.#state !== 'open') return
    this.#state = state
    this.#deathReason = reason
    this.#cancelUnsent()
    this.#socket.destroy()
    for (const request of [...this.#requests.keys()]) this.#settle(request, 'pending')
    this.#greeted.resolve()
  }

  #ignore(type: string): void {
    if (this.#warnedTypes.size >= 16 || this.#warnedTypes.has(type)) return
    this.#warnedTypes.add(type)
    this.#log.warn(
      `ignoring frames of type ${JSON.stringify(type.slice(0, 40))}, which this worker does not know`,
    )
  }
}

function openSocket(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ path })
    const fail = (cause: Error) => {
      clearTimeout(timer)
      socket.destroy()
      reject(new HubUnavailableError(`cannot connect to the hub at ${path}: ${cause.message}`, { cause }))
    }
    const timer = setTimeout(
      () => fail(new Error(`no answer within ${connectTimeoutMs} ms`)),
      connectTimeoutMs,
    )
    socket.once('error', fail)
    socket.once('connect', () => {
      clearTimeout(timer)
      socket.removeListener('error', fail)
      resolve(socket)
    })
  })
}
