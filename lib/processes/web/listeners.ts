import { chmodSync, readFileSync } from 'node:fs'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { createSecureServer } from 'node:http2'
import { createServer, Server as NetServer, type Socket } from 'node:net'
import { createServer as createTlsServer, Server as TlsServer } from 'node:tls'
import type { ResolvedConfig } from '../../config/options.ts'
import { deferred } from '../../core/deferred.ts'
import { AppModuleError, BootError } from '../../core/errors.ts'
import type { App } from './app-module.ts'
import { type Bind, formatAddress, formatBind, listenOptions, toListenError } from './bind.ts'
import type { Connections } from './connections.ts'

type Tls = NonNullable<ResolvedConfig['web']['tls']>

/**
 * The addresses of one application. Its own server listens on the first plain TCP address; every other one has a
 * socket that hands its connections to that server, which cannot tell the difference.
 */
export class Listeners {
  readonly #app: App
  readonly #connections: Connections
  readonly #tls: Tls | null
  readonly #feeders: NetServer[] = []
  readonly #fed = new Set<Socket>()
  #empty = deferred()

  constructor({ app, connections, tls }: { app: App; connections: Connections; tls: Tls | null }) {
    this.#app = app
    this.#connections = connections
    this.#tls = tls
  }

  /** Makes the application ready, then listens everywhere. Resolves to the URLs. @throws BootError, AppModuleError */
  async open(binds: readonly Bind[]): Promise<string[]> {
    const own = binds.find(bind => bind.kind === 'tcp' && !bind.tls)
    const others = binds.filter(bind => bind !== own)
    if (others.length > 0) waitForFed(this.#app.server, () => this.#allGone())
    const addresses = new Map<Bind, string>()
    if (own?.kind !== 'tcp') await this.#app.ready()
    else {
      const { host, port, backlog } = own
      const urls = await this.#app.listen({ host, port, backlog }).catch((error: unknown) => {
        throw toListenError(error, own)
      })
      addresses.set(own, urls.join(', '))
    }
    for (const bind of others) addresses.set(bind, await this.#feed(bind))
    return binds.flatMap(bind => addresses.get(bind)?.split(', ') ?? [])
  }

  /** Stops accepting. */
  close(): void {
    // Not the method of a server for HTTP/2, which cuts idle connections of HTTP/1.
    for (const feeder of this.#feeders) NetServer.prototype.close.call(feeder)
  }

  async #feed(bind: Bind): Promise<string> {
    const tls = bind.kind === 'tcp' && bind.tls
    const feeder = tls ? this.#secure(bind) : this.#plain()
    this.#feeders.push(feeder)
    await new Promise<void>((resolve, reject) => {
      feeder.once('error', error => reject(toListenError(error, bind)))
      feeder.listen(listenOptions(bind), resolve)
    })
    if (bind.kind === 'unix' && bind.mode !== null) chmodSync(bind.path, bind.mode)
    return bind.kind === 'unix' ? formatBind(bind) : formatAddress(feeder.address(), tls)
  }

  #plain(): NetServer {
    return createServer(socket => {
      this.#track(socket)
      this.#app.server.emit('connection', socket)
    })
  }

  #secure(bind: Bind): NetServer {
    const { server } = this.#app
    if (server instanceof TlsServer)
      throw new AppModuleError(
        `the application brings a TLS server of its own: bind it to tcp:// instead of ${formatBind(bind)}`,
      )
    // Checked with the configuration.
    if (this.#tls === null) throw new BootError('web.tls is required to listen on ssl://')
    const { http2, ...files } = this.#tls
    const options = contents(files)
    if (!http2) {
      const feeder = createTlsServer({ ...options, ALPNProtocols: ['http/1.1'] }, socket => {
        this.#track(socket)
        server.emit('connection', socket)
      })
      return quiet(feeder)
    }
    const feeder = createSecureServer({ ...options, allowHTTP1: true })
    feeder.on('secureConnection', socket => this.#track(socket))
    this.#connections.watch(feeder as unknown as Server, { requests: false })
    for (const event of ['request', 'upgrade', 'checkContinue'] as const) {
      feeder.on(event, (...parts: unknown[]) => {
        // Without a listener Node answers these itself, on either server.
        if (server.emit(event, ...parts) || event === 'request') return
        if (event === 'checkContinue') goOn(server, ...(parts as [IncomingMessage, ServerResponse]))
        else (parts[1] as Socket).destroy()
      })
    }
    return quiet(feeder)
  }

  #track(socket: Socket): void {
    this.#fed.add(socket)
    socket.once('close', () => {
      this.#fed.delete(socket)
      if (this.#fed.size > 0) return
      this.#empty.resolve()
      this.#empty = deferred()
    })
  }

  async #allGone(): Promise<void> {
    while (this.#fed.size > 0) await this.#empty.promise
  }
}

/** A server counts the connections that it accepted itself; one that closes must wait for the others, too. */
function waitForFed(server: Server, allGone: () => Promise<void>): void {
  const close = server.close
  server.close = (callback?: (error?: Error) => void) =>
    close.call(server, error => void allGone().then(() => callback?.(error)))
}

/** A client that fails at the handshake is its own affair. */
function quiet<S extends NetServer>(server: S): S {
  return server.on('tlsClientError', () => undefined)
}

function goOn(server: Server, request: IncomingMessage, response: ServerResponse): void {
  response.writeContinue()
  server.emit('request', request, response)
}

/** What stands in a file, or as PEM in the configuration itself; read by each worker, so that a renewed one counts. */
function contents({ key, cert, ca, passphrase }: Omit<Tls, 'http2'>) {
  const read = (name: string, text: string) => {
    if (text.includes('-----BEGIN')) return text
    try {
      return readFileSync(text, 'utf8')
    } catch (error) {
      throw new BootError(`cannot read web.tls.${name} ${text}: ${(error as Error).message}`, {
        cause: error,
      })
    }
  }
  return {
    key: read('key', key),
    cert: read('cert', cert),
    ...(ca !== undefined && { ca: read('ca', ca) }),
    ...(passphrase !== undefined && { passphrase }),
  }
}
