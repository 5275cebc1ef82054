import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Http2Server, ServerHttp2Session } from 'node:http2'
import { Server as NetServer, type Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import { type Deferred, deferred } from '../../core/deferred.ts'

const tickMs = 50

/** What is known of one connection. */
interface Use {
  /** Requests that are not answered yet. */
  running: number
  /** Since when there is none, monotonic ms. */
  idleSince: number
  /** Bytes that had arrived then: more means that a request is on its way. */
  bytes: number
  /** HTTP/2 has words of its own for leaving, and many requests on one connection. */
  session?: ServerHttp2Session
  /** The session has had a request. One that is told to end before sends none any more, not even those it has. */
  asked?: boolean
}

/**
 * The client connections of a server, watched so that it can be emptied without a request being lost:
 * `server.close()` alone cuts idle connections at once, whatever their clients are about to send, and then waits
 * for those that go idle later, and for those on which nothing was ever asked. HTTP/1 and HTTP/2, with and without
 * TLS; connections that other sockets hand to the server by emitting `connection` included.
 */
export class Connections {
  readonly #servers = new Set<Server>()
  readonly #sockets = new Map<Socket, Use>()
  /** Connections of a TLS server whose handshake is not over, by the address of the client. */
  readonly #shaking = new Map<Socket, string>()
  readonly #running = new Set<ServerResponse>()
  #requests = 0
  #refusing: { since: number; idleMs: number; quiet: Deferred; timer: NodeJS.Timeout } | undefined

  constructor(...servers: Server[]) {
    for (const server of servers) this.watch(server)
  }

  get open(): number {
    return this.#sockets.size
  }

  /** Requests so far. */
  get requests(): number {
    return this.#requests
  }

  /** Requests that are not answered yet. */
  get inFlight(): number {
    return this.#running.size
  }

  /** `requests` false: what is asked there is handed to another server that is watched. */
  watch(server: Server, { requests = true }: { requests?: boolean } = {}): void {
    this.#servers.add(server)
    // Sessions begin within this event, so it must be known first whose they are.
    let latest: Socket | undefined
    const opened = (socket: Socket) => {
      latest = socket
      this.#sockets.set(socket, { running: 0, idleSince: performance.now(), bytes: 0 })
      socket.once('close', () => this.#sockets.delete(socket))
    }
    if (server instanceof TlsServer) {
      server.prependListener('connection', (socket: Socket) => {
        this.#shaking.set(socket, clientOf(socket))
        socket.once('close', () => this.#shaking.delete(socket))
      })
      server.prependListener('secureConnection', (socket: Socket) => {
        for (const [raw, client] of this.#shaking) if (client === clientOf(socket)) this.#shaking.delete(raw)
        opened(socket)
      })
    } else server.prependListener('connection', opened)
    ;(server as unknown as Http2Server).on('session', session => {
      const use = latest && this.#sockets.get(latest)
      if (!use) return
      use.session = session
      session.once('stream', () => {
        use.asked = true
        if (this.#refusing) sayGoodbye(session, use)
      })
    })
    if (!requests) return
    // Before the application's own listener: it may answer at once.
    server.prependListener('request', (request: IncomingMessage, response: ServerResponse) =>
      this.#requested(request, response),
    )
  }

  /**
   * Stops accepting. A response says that it is the last of its connection; a connection that has no request for
   * `idleMs` is closed. Resolves when only running requests are left, or nothing.
   */
  refuse(idleMs: number): Promise<void> {
    if (this.#refusing) return this.#refusing.quiet.promise
    // Not the method of an HTTP server, which cuts idle connections.
    for (const server of this.#servers) NetServer.prototype.close.call(server)
    for (const response of this.#running) sayLast(response)
    for (const use of this.#sockets.values()) if (use.session && use.asked) sayGoodbye(use.session, use)
    // Keeps the process alive: whoever waits for the end must see it.
    const timer = setInterval(() => this.#look(), Math.min(tickMs, idleMs))
    this.#refusing = { since: performance.now(), idleMs, quiet: deferred(), timer }
    this.#look()
    return this.#refusing.quiet.promise
  }

  /** Ends what is left, finished or not. */
  destroy(): void {
    for (const socket of [...this.#sockets.keys(), ...this.#shaking.keys()]) socket.destroy()
  }

  #requested(request: IncomingMessage, response: ServerResponse): void {
    const { socket } = request
    const use = this.#sockets.get(socket)
    if (use) use.running += 1
    this.#running.add(response)
    this.#requests += 1
    response.once('close', () => {
      this.#running.delete(response)
      if (!use) return
      use.running -= 1
      use.idleSince = performance.now()
      use.bytes = socket.bytesRead
    })
    if (this.#refusing) sayLast(response)
  }

  #look(): void {
    if (!this.#refusing) return
    const { since, idleMs, quiet, timer } = this.#refusing
    const now = performance.now()
    let idle = 0
    for (const [socket, use] of this.#sockets) {
      if (use.session) {
        if (use.session.closed) continue
        if (now - use.idleSince >= idleMs) use.session.close()
        else idle += 1
        continue
      }
      if (use.running > 0) continue
      if (socket.bytesRead !== use.bytes) {
        use.bytes = socket.bytesRead
        use.idleSince = now
      }
      if (now - use.idleSince >= idleMs) socket.destroy()
      else idle += 1
    }
    // A handshake that is slower than this is none.
    if (now - since >= idleMs) for (const socket of this.#shaking.keys()) socket.destroy()
    if (idle + this.#shaking.size === 0) quiet.resolve()
    // Until the end: a connection that is busy now may go idle, or have been accepted a moment ago.
    if (this.#sockets.size + this.#shaking.size === 0) clearInterval(timer)
  }
}

/** Tells the client that this connection ends with this response. HTTP/2 has no such header. */
function sayLast(response: ServerResponse): void {
  if (response.headersSent || response.req.httpVersionMajor > 1) return
  response.setHeader('connection', 'close')
}

/** The highest id of a stream: requests that cross this message are still answered. */
const everyStream = 2 ** 31 - 1

/** Asks the client of a session to send its next request elsewhere. It has as long as an idle connection may stay. */
function sayGoodbye(session: ServerHttp2Session, use: Use): void {
  if (!session.destroyed) session.goaway(0, everyStream)
  use.idleSince = performance.now()
}

function clientOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress}:${remotePort}`
}
