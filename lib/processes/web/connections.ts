import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

const tickMs = 50

/** A connection that has sent nothing yet may be about to; after this long it is only somebody's spare. */
const silentGraceMs = 500

/**
 * The client connections of one server, watched so that it can be emptied: `server.close()` alone waits for
 * connections that go idle after it was called, and for those on which nothing was ever asked.
 */
export class Connections {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly #running = new Set<ServerResponse>()
  #timer: NodeJS.Timeout | undefined

  constructor(server: Server) {
    this.#server = server
    server.on('connection', socket => {
      this.#sockets.add(socket)
      socket.once('close', () => this.#sockets.delete(socket))
    })
    // Before the application's own listener: it may answer at once.
    server.prependListener('request', (_request: IncomingMessage, response: ServerResponse) => {
      this.#running.add(response)
      response.once('close', () => this.#running.delete(response))
      if (this.#timer !== undefined) sayLast(response)
    })
  }

  get open(): number {
    return this.#sockets.size
  }

  /** Stops accepting and lets go of every connection as soon as it has no request; running ones finish. */
  refuse(): void {
    if (this.#timer !== undefined) return
    this.#server.close(() => clearInterval(this.#timer))
    for (const response of this.#running) sayLast(response)
    const since = Date.now()
    this.#timer = setInterval(() => {
      this.#server.closeIdleConnections()
      if (Date.now() - since < silentGraceMs) return
      for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy()
    }, tickMs)
    this.#timer.unref()
  }

  /** Ends what is left, finished or not. */
  destroy(): void {
    for (const socket of this.#sockets) socket.destroy()
  }
}

/** Tells the client that this connection ends with this response. */
function sayLast(response: ServerResponse): void {
  if (!response.headersSent) response.setHeader('connection', 'close')
}
