import { chmodSync, lstatSync, unlinkSync } from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { ClosedError, HubProtocolError, HubUnavailableError } from '../../core/errors.ts'
import type { Logger } from '../../core/log.ts'
import { type Report, toError } from '../../core/report.ts'
import { withDeadline } from '../../core/sleep.ts'
import type { Listener } from '../../db/listener.ts'
import { encodeFrame, FrameDecoder, type HubFrame, parseFrame, protocolVersion } from './protocol.ts'
import { WorkerLink } from './worker-link.ts'

/** The part of a listener that the hub uses. */
export type HubUpstream = Pick<
  Listener,
  'start' | 'ensureListening' | 'release' | 'onNotify' | 'onStatus' | 'delivering' | 'close'
>

export interface MasterHubOptions {
  /** Path of the Unix socket, at most 100 bytes. */
  path: string
  /** Makes the LISTEN connection of the host. The hub starts and closes it. */
  listener: () => HubUpstream
  /** The root logger of the instance. */
  log: Logger
  report: Report
}

export interface HubStats {
  listening: boolean
  healthy: boolean
  /** Channels that some worker subscribed to. */
  channels: number
  evictions: number
  /** Durable wakes that were merged with one not yet sent. */
  mergedWakes: number
  workers: {
    pid: number
    index: number
    phase: number
    channels: number
    queuedFrames: number
    queuedBytes: number
  }[]
}

interface Worker {
  readonly socket: Socket
  readonly link: WorkerLink
  readonly channels: Set<string>
  identity: { pid: number; index: number; phase: number } | undefined
  gone: boolean
}

/** Longest path that every Unix takes for a socket, with some room. */
export const maxSocketPathBytes = 100
const statusIntervalMs = 5_000
const probeTimeoutMs = 1_000
const goodbyeMs = 500
/**
 * Bytes that may wait in a worker's socket before it counts as behind. One transaction can notify thousands of
 * times, and all of it may come and go out in one turn of the event loop; that burst is not slowness.
 */
const socketBufferBytes = 1024 * 1024

/**
 * Shares one LISTEN connection between the processes of a host, over a Unix socket.
 *
 * A subscription is registered first, LISTENed second and acknowledged last: once LISTEN is active, every
 * notification already has its recipients. Registrations are made by `sub` alone, so a notification for a
 * channel that everybody left finds nobody and creates nothing. Workers are independent: a slow, dead or
 * misbehaving one is cut off, and the others do not notice.
 *
 * The file mode of the socket is its only access control, and payloads cross it: it is 0600 from its first
 * moment on.
 */
export class MasterHub {
  readonly #options: MasterHubOptions
  readonly #log: Logger
  readonly #workers = new Set<Worker>()
  readonly #channels = new Map<string, Set<Worker>>()
  readonly #warnedTypes = new Set<string>()
  #server: Server | undefined
  #upstream: HubUpstream | undefined
  #statusTimer: NodeJS.Timeout | undefined
  #started: Promise<void> | undefined
  #closed: Promise<void> | undefined
  #evictions = 0
  #mergedBefore = 0

  constructor(options: MasterHubOptions) {
    this.#options = options
    this.#log = options.log.child({ component: 'streams.hub' })
  }

  /**
   * Opens the socket, then the LISTEN connection in the background: a database that is down delays nobody.
   * @throws HubUnavailableError when the path is in use, too long, or not a socket.
   */
  start(): Promise<void> {
    if (this.#closed) return Promise.reject(new ClosedError('the streams hub is closed'))
    this.#started ??= this.#start()
    return this.#started
  }

  /** Says goodbye to the workers, removes the socket and ends the LISTEN connection. Waits for a start under way. */
  close(): Promise<void> {
    this.#closed ??= (this.#started ?? Promise.resolve()).catch(() => undefined).then(() => this.#stop())
    return this.#closed
  }

  stats(): HubStats {
    const workers: HubStats['workers'] = []
    let mergedWakes = this.#mergedBefore
    for (const { identity, channels, link } of this.#workers) {
      const { frames, bytes, merged } = link.backlog
      mergedWakes += merged
      if (identity) {
        workers.push({ ...identity, channels: channels.size, queuedFrames: frames, queuedBytes: bytes })
      }
    }
    return {
      listening: this.#server?.listening ?? false,
      healthy: this.#upstream?.delivering ?? false,
      channels: this.#channels.size,
      evictions: this.#evictions,
      mergedWakes,
      workers,
    }
  }

  async #start(): Promise<void> {
    const { path, listener, report } = this.#options
    await makeRoom(path)
    const server = createServer({ highWaterMark: socketBufferBytes }, socket => this.#accept(socket))
    this.#server = server
    try {
      await bind(server, path)
      server.on('error', error => report(error, { action: 'stream_hub' }))
      const upstream = listener()
      this.#upstream = upstream
      upstream.onNotify((channel, payload) => this.#fanOut(channel, payload))
      upstream.onStatus(() => this.#tellStatus())
      upstream.start()
    } catch (error) {
      await this.#stop()
      throw error
    }
    this.#statusTimer = setInterval(() => this.#tellStatus(), statusIntervalMs)
    this.#statusTimer.unref()
    this.#log.debug(`the streams hub listens at ${path}`)
  }

  async #stop(): Promise<void> {
    clearInterval(this.#statusTimer)
    const server = this.#server
    const serverClosed = new Promise<void>(resolve => {
      // Closing the server removes its file; a server that never listened calls back with an error.
      if (server) server.close(() => resolve())
      else resolve()
    })
    for (const worker of this.#workers) {
      worker.link.send({ t: 'bye', reason: 'the hub stops' })
      worker.socket.end()
    }
    await withDeadline(serverClosed, goodbyeMs)
    for (const worker of this.#workers) worker.socket.destroy()
    await Promise.all([serverClosed, this.#upstream?.close()])
  }

  #accept(socket: Socket): void {
    const worker: Worker = {
      socket,
      link: new WorkerLink(socket, () => this.#evict(worker)),
      channels: new Set(),
      identity: undefined,
      gone: false,
    }
    this.#workers.add(worker)
    const decoder = new FrameDecoder(value => this.#receive(worker, value))
    socket.on('data', chunk => {
      if (worker.gone) return
      try {
        decoder.push(chunk)
      } catch (error) {
        this.#log.warn({ err: error }, `cutting off ${describe(worker)}: ${toError(error).message}`)
        this.#remove(worker)
      }
    })
    // A peer that vanished is an end like any other; `close` follows.
    socket.on('error', () => undefined)
    socket.on('close', () => this.#remove(worker))
    if (this.#closed) this.#remove(worker)
  }

  #receive(worker: Worker, value: Record<string, unknown>): void {
    if (worker.gone) return
    const frame = parseFrame(value)
    if (frame?.t === 'hello') {
      if (frame.v !== protocolVersion) {
        worker.link.send({
          t: 'bye',
          reason: `the hub speaks version ${protocolVersion} of its protocol, the worker ${frame.v}`,
        })
        worker.socket.end()
        return
      }
      worker.identity = { pid: frame.pid, index: frame.index, phase: frame.phase }
      worker.link.send({ t: 'status', healthy: this.#upstream?.delivering ?? false })
      return
    }
    if (!worker.identity) throw new HubProtocolError('the first frame is not hello')
    if (frame?.t === 'sub') void this.#subscribe(worker, frame.q, frame.i)
    else if (frame?.t === 'unsub') this.#unsubscribe(worker, frame.q)
    else this.#ignore(String(value.t))
  }

  async #subscribe(worker: Worker, channel: string, request: number): Promise<void> {
    const upstream = this.#upstream
    if (!upstream) return
    const repeated = worker.channels.has(channel)
    // Before LISTEN: whatever is notified once it is active must find this worker.
    worker.channels.add(channel)
    const subscribers = this.#channels.get(channel) ?? new Set()
    this.#channels.set(channel, subscribers.add(worker))
    let answer: HubFrame
    try {
      const state = await upstream.ensureListening(channel)
      answer =
        state === 'active'
          ? { t: 'ack', q: channel, i: request }
          : { t: 'nack', q: channel, i: request, reason: 'the database does not answer LISTEN yet' }
    } catch (error) {
      this.#options.report(error, { action: 'stream_hub', channel })
      answer = { t: 'nack', q: channel, i: request, reason: 'the hub failed; it has reported why' }
    }
    // A worker holds one reference per channel, however often it asks.
    if (repeated) upstream.release(channel)
    if (!worker.gone) worker.link.send(answer)
  }

  #unsubscribe(worker: Worker, channel: string): void {
    if (!worker.channels.delete(channel)) return
    worker.link.forget(channel)
    const subscribers = this.#channels.get(channel)
    subscribers?.delete(worker)
    if (subscribers?.size === 0) this.#channels.delete(channel)
    this.#upstream?.release(channel)
  }

  #fanOut(channel: string, payload: string): void {
    const subscribers = this.#channels.get(channel)
    if (!subscribers) return
    const durable = payload === ''
    const bytes = encodeFrame({ t: 'wake', q: channel, p: durable ? null : payload })
    for (const worker of [...subscribers]) {
      if (durable) worker.link.wake(channel, bytes)
      else worker.link.sendBytes(bytes)
    }
  }

  #tellStatus(): void {
    const bytes = encodeFrame({ t: 'status', healthy: this.#upstream?.delivering ?? false })
    for (const worker of [...this.#workers]) if (worker.identity) worker.link.sendBytes(bytes)
  }

  #evict(worker: Worker): void {
    if (worker.gone) return
    this.#evictions += 1
    const { frames, bytes } = worker.link.backlog
    this.#log.warn(`evicting ${describe(worker)}: ${frames} frames, ${bytes} bytes unsent`)
    this.#remove(worker)
  }

  #remove(worker: Worker): void {
    if (worker.gone) return
    worker.gone = true
    this.#workers.delete(worker)
    this.#mergedBefore += worker.link.backlog.merged
    for (const channel of [...worker.channels]) this.#unsubscribe(worker, channel)
    worker.socket.destroy()
  }

  #ignore(type: string): void {
    if (this.#warnedTypes.size >= 16 || this.#warnedTypes.has(type)) return
    this.#warnedTypes.add(type)
    this.#log.warn(
      `ignoring frames of type ${JSON.stringify(type.slice(0, 40))}, which this hub does not know`,
    )
  }
}

function describe({ identity }: Worker): string {
  return identity ? `worker ${identity.index} (pid ${identity.pid})` : 'a worker without a name'
}

/** Removes what a dead hub left at `path`. Never touches a live socket, nor a file that is none. */
async function makeRoom(path: string): Promise<void> {
  if (Buffer.byteLength(path) > maxSocketPathBytes) {
    throw new HubUnavailableError(
      `the socket path ${path} has ${Buffer.byteLength(path)} bytes, the limit is ${maxSocketPathBytes} — set web.hubSocket`,
    )
  }
  const found = lstatSync(path, { throwIfNoEntry: false })
  if (!found) return
  if (!found.isSocket()) {
    throw new HubUnavailableError(`${path} exists and is not a socket — set web.hubSocket to another path`)
  }
  const state = await knock(path)
  if (state === 'alive') {
    throw new HubUnavailableError(`${path} is in use by another hub — set web.hubSocket to another path`)
  }
  // Somebody else may have removed it meanwhile.
  if (lstatSync(path, { throwIfNoEntry: false })) unlinkSync(path)
}

function knock(path: string): Promise<'alive' | 'stale'> {
  return new Promise(resolve => {
    const socket = createConnection(path)
    const settle = (state: 'alive' | 'stale') => {
      clearTimeout(timer)
      socket.destroy()
      resolve(state)
    }
    // Only a refusal proves that nobody is there.
    const timer = setTimeout(() => settle('alive'), probeTimeoutMs)
    socket.once('connect', () => settle('alive'))
    socket.once('error', (error: NodeJS.ErrnoException) =>
      settle(error.code === 'ECONNREFUSED' || error.code === 'ENOENT' ? 'stale' : 'alive'),
    )
  })
}

function bind(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (cause: Error) => {
      reject(new HubUnavailableError(`the streams hub cannot listen at ${path}: ${cause.message}`, { cause }))
    }
    server.once('error', fail)
    server.once('listening', () => {
      server.removeListener('error', fail)
      resolve()
    })
    // `exclusive` keeps node:cluster out of it; then the file is made within this call, and nothing else runs
    // in this process while the mask is changed.
    const mask = process.umask(0o177)
    try {
      server.listen({ path, exclusive: true })
      if (server.listening) chmodSync(path, 0o600)
    } finally {
      process.umask(mask)
    }
  })
}
