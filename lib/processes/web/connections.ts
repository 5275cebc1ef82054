import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { Server as NetServer, type Socket } from 'node:net'
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
}

/**
 * The client connections of one server, watched so that it can be emptied without a request being lost:
 * `server.close()` alone cuts idle connections at once, whatever their clients are about to send, and then waits
 * for those that go idle later, and for those on which nothing was ever asked.
 */
export class Connections {
  readonly #server: Server
  readonly #sockets = new Map<Socket, Use>()
  readonly #running = new Set<ServerResponse>()
  #requests = 0
  #refusing: { idleMs: number; quiet: Deferred; timer: NodeJS.Timeout } | undefined

  constructor(server: Server) {
    this.#server = server
    server.on('connection', socket => {
      this.#sockets.set(socket, { running: 0, idleSince: performance.now(), bytes: 0 })
      socket.once('close', () => this.#sockets.delete(socket))
    })
    // Before the application's own listener: it may answer at once.
    server.prependListener('request', (request: IncomingMessage, response: ServerResponse) => {
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
    })
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

  /**
   * Stops accepting. A response says that it is the last of its connection; a connection that has no request for
   * `idleMs` is closed. Resolves when only running requests are left, or nothing.
   */
  refuse(idleMs: number): Promise<void> {
    if (this.#refusing) return this.#refusing.quiet.promise
    // Not the method of an HTTP server, which cuts idle connections.
    NetServer.prototype.close.call(this.#server)
    for (const response of this.#running) sayLast(response)
    // Keeps the process alive: whoever waits for the end must see it.
    const timer = setInterval(() => this.#look(), Math.min(tickMs, idleMs))
    this.#refusing = { idleMs, quiet: deferred(), timer }
    this.#look()
    return this.#refusing.quiet.promise
  }

  /** Ends what is left, finished or not. */
  destroy(): void {
    for (const socket of this.#sockets.keys()) socket.destroy()
  }

  #look(): void {
    if (!this.#refusing) return
    const { idleMs, quiet, timer } = this.#refusing
    const now = performance.now()
    let idle = 0
    for (const [socket, use] of this.#sockets) {
      if (use.running > 0) continue
      if (socket.bytesRead !== use.bytes) {
        use.bytes = socket.bytesRead
        use.idleSince = now
      }
      if (now - use.idleSince >= idleMs) socket.destroy()
      else idle += 1
    }
    if (idle === 0) quiet.resolve()
    // Until the end: a connection that is busy now may go idle, or have been accepted a moment ago.
    if (this.#sockets.size === 0) clearInterval(timer)
  }
}

/** Tells the client that this connection ends with this response. */
function sayLast(response: ServerResponse): void {
  if (!response.headersSent) response.setHeader('connection', 'close')
}
