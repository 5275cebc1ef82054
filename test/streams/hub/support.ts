import { mkdtempSync, rmSync } from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Deferred, deferred } from '../../../lib/core/deferred.ts'
import type { HubUpstream } from '../../../lib/streams/hub/master-hub.ts'
import { encodeFrame, type Frame, FrameDecoder, type HubFrame } from '../../../lib/streams/hub/protocol.ts'
import type { TestContext } from '../../support/database.ts'
import { waitFor } from '../../support/wait-for.ts'

/** A path for a socket in a folder that goes with the test. */
export function socketPath(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'hub-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return join(folder, 'hub.sock')
}

/** A listener whose server answers when the test says so. */
export class FakeUpstream implements HubUpstream {
  delivering = true
  /** `listen x`, `release x`, `start`, `close`, in order. */
  readonly calls: string[] = []
  readonly references = new Map<string, number>()
  /** Set: LISTEN waits for it. */
  gate: Deferred<'active' | 'pending'> | undefined
  #notify: (channel: string, payload: string) => void = () => undefined
  #status: (delivering: boolean) => void = () => undefined

  start(): void {
    this.calls.push('start')
  }

  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    this.calls.push(`listen ${channel}`)
    this.references.set(channel, (this.references.get(channel) ?? 0) + 1)
    return this.gate ? await this.gate.promise : 'active'
  }

  release(channel: string): void {
    this.calls.push(`release ${channel}`)
    const left = this.references.get(channel)! - 1
    if (left === 0) this.references.delete(channel)
    else this.references.set(channel, left)
  }

  onNotify(receive: (channel: string, payload: string) => void): void {
    this.#notify = receive
  }

  onStatus(receive: (delivering: boolean) => void): void {
    this.#status = receive
  }

  notify(channel: string, payload = ''): void {
    this.#notify(channel, payload)
  }

  setDelivering(delivering: boolean): void {
    this.delivering = delivering
    this.#status(delivering)
  }

  async close(): Promise<void> {
    this.calls.push('close')
  }
}

/** A worker that speaks the protocol by hand. */
export interface RawWorker {
  socket: Socket
  frames: HubFrame[]
  send(frame: Frame): void
  /** Waits for a frame, from the first on. */
  next<T extends HubFrame['t']>(
    t: T,
    also?: (frame: HubFrame & { t: T }) => boolean,
  ): Promise<HubFrame & { t: T }>
  ended: Promise<void>
}

export async function rawWorker(
  t: TestContext,
  path: string,
  hello: { index?: number; silent?: boolean } = {},
): Promise<RawWorker> {
  const socket = createConnection(path)
  t.teardown(() => socket.destroy())
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve)
    socket.once('error', reject)
  })
  socket.on('error', () => undefined)
  const frames: HubFrame[] = []
  const decoder = new FrameDecoder(value => frames.push(value as HubFrame))
  socket.on('data', chunk => decoder.push(chunk))
  const send = (frame: Frame) => void socket.write(encodeFrame(frame))
  if (!hello.silent) send({ t: 'hello', v: 1, pid: process.pid, index: hello.index ?? 0, phase: 0 })
  return {
    socket,
    frames,
    send,
    next: (type, also = () => true) =>
      waitFor(
        () =>
          frames.find(frame => frame.t === type && also(frame as HubFrame & { t: typeof type })) as
            | (HubFrame & { t: typeof type })
            | undefined,
        { message: `a ${type} frame`, interval: 2 },
      ),
    ended: new Promise(resolve => socket.once('close', () => resolve())),
  }
}

/** A hub that does only what the test tells it. */
export async function fakeHub(
  t: TestContext,
  path: string,
  serve: (socket: Socket, receive: (listener: (frame: Frame) => void) => void) => void,
): Promise<Server> {
  const sockets = new Set<Socket>()
  const server = createServer(socket => {
    sockets.add(socket)
    socket.on('error', () => undefined)
    let listener: (frame: Frame) => void = () => undefined
    const decoder = new FrameDecoder(value => listener(value as unknown as Frame))
    serve(socket, given => {
      listener = given
      socket.on('data', chunk => decoder.push(chunk))
    })
  })
  await new Promise<void>(resolve => server.listen(path, resolve))
  t.teardown(async () => {
    for (const socket of sockets) socket.destroy()
    await new Promise(resolve => server.close(resolve))
  })
  return server
}

/** Blocks this process, as a long synchronous handler would. */
export function blockFor(ms: number): void {
  const until = Date.now() + ms
  while (Date.now() < until);
}

export { deferred }
