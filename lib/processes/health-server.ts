import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { BootError } from '../core/errors.ts'
import { type ProbeReply, readyReply, routeProbe } from '../core/probes.ts'

/** What a host knows of itself, from memory. */
export interface Readiness {
  status: 'BOOTING' | 'OK' | 'DEGRADED' | 'DRAINING'
  /** Processes that there must be. */
  expected: number
  /** Those that are ready. */
  live: number
}

export interface HealthServerOptions {
  /** 0: a free one. */
  port: number
  host: string
  /** Asked at each request; must neither wait nor throw. */
  readiness: () => Readiness
}

const maxHeaderBytes = 8 * 1024
const headersTimeoutMs = 5_000
const timeoutCheckMs = 1_000

const reasons: Record<string, string> = {
  EADDRINUSE: 'the port is taken by another process',
  EACCES: 'permission denied (ports below 1024 are reserved)',
  EADDRNOTAVAIL: 'this machine has no such address',
  ENOTFOUND: 'no such host name',
}

/**
 * The probes of a host: `/livez` says that the process answers, `/readyz` whether all its children are ready.
 * Neither the database nor the configuration is asked, so an outage of the database never makes an orchestrator
 * restart a healthy host. Owned by the host's parent process, which opens it before anything that may take long,
 * and closes it last.
 */
export class HealthServer {
  readonly #options: HealthServerOptions
  readonly #server: Server
  #closing: Promise<void> | undefined

  constructor(options: HealthServerOptions) {
    this.#options = options
    this.#server = createServer(
      {
        maxHeaderSize: maxHeaderBytes,
        headersTimeout: headersTimeoutMs,
        requestTimeout: headersTimeoutMs,
        connectionsCheckingInterval: timeoutCheckMs,
      },
      (request, response) => answer(request, response, options.readiness),
    )
  }

  /** Listens. @throws BootError naming the address and the key. */
  async open(): Promise<AddressInfo> {
    const { port, host } = this.#options
    await new Promise<void>((resolve, reject) => {
      const failed = (error: NodeJS.ErrnoException) => {
        const reason = reasons[error.code ?? ''] ?? error.message
        reject(
          new BootError(
            `cannot listen on ${host}:${port} (health.port, health.bind): ${reason} (${error.code ?? 'unknown'})`,
            { cause: error },
          ),
        )
      }
      this.#server.once('error', failed)
      this.#server.listen({ port, host, exclusive: true }, () => {
        this.#server.removeListener('error', failed)
        // From here on an error concerns one attempt to accept a connection, not the host.
        this.#server.on('error', () => undefined)
        resolve()
      })
    })
    return this.#server.address() as AddressInfo
  }

  /** Ends every connection; resolves when the port is free. */
  close(): Promise<void> {
    this.#closing ??= new Promise(resolve => {
      this.#server.close(() => resolve())
      this.#server.closeAllConnections()
    })
    return this.#closing
  }
}

function answer(request: IncomingMessage, response: ServerResponse, readiness: () => Readiness): void {
  // A client that goes away in the middle is its own affair.
  request.on('error', () => undefined)
  response.on('error', () => undefined)
  const { code, body, headers } = reply(request, readiness)
  response.writeHead(code, {
    ...headers,
    Connection: 'close',
    'Content-Length': Buffer.byteLength(body),
  })
  response.end(body)
}

function reply({ url = '', method }: IncomingMessage, readiness: () => Readiness): ProbeReply {
  const route = routeProbe(method, url.split('?', 1)[0])
  if (route !== 'ready') return route
  const { status, expected, live } = readiness()
  return readyReply(status === 'OK', { status, expected, live })
}
