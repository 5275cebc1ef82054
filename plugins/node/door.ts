import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Http2ServerRequest, Http2ServerResponse } from 'node:http2'
import type { Pgbus } from '../../lib/pgbus.ts'
import { type Authorize, StreamsEndpoint } from '../../lib/streams/endpoint.ts'
import { type ClientFile, readClientFiles } from '../client-files.ts'

/** A request of `node:http` or, over HTTP/2, of its compatibility layer. */
export type NodeRequest = IncomingMessage | Http2ServerRequest
export type NodeResponse = ServerResponse | Http2ServerResponse

export interface StreamsDoorOptions<R> {
  pgbus: Pgbus
  /** Path under which browsers reach it. Default `/pgbus/streams`. */
  prefix?: string | undefined
  /** Who may follow which stream. Default: whoever has its signed name. */
  authorize?: Authorize<R> | undefined
}

const defaultPrefix = '/pgbus/streams'
const clientPath = /^client\/([a-z-]+\.js)$/

/** The endpoint of streams, and the files of the browser client, on Node's own requests and responses. */
export class StreamsDoor<R> {
  readonly prefix: string
  readonly #endpoint: StreamsEndpoint<R>
  readonly #files: ReadonlyMap<string, ClientFile>

  /** @throws TypeError; MissingSecretError when no token could ever be verified. */
  constructor({ pgbus, prefix = defaultPrefix, authorize }: StreamsDoorOptions<R>) {
    if (!pgbus?.streams) throw new TypeError('the streams handler needs { pgbus }, made by createPgbus()')
    this.prefix = prefix.replace(/\/+$/, '')
    if (!/^(\/[A-Za-z0-9._~-]+)+$/.test(this.prefix))
      throw new TypeError(
        `prefix should be a path such as "${defaultPrefix}", instead got ${JSON.stringify(prefix)}`,
      )
    pgbus.streams.mount(this.prefix)
    this.#endpoint = new StreamsEndpoint({ streams: pgbus.streams, authorize, report: pgbus.report })
    this.#files = readClientFiles()
  }

  /** Answers. `path` is what stands behind the prefix and its slash, without the query, as it was sent. */
  answer(request: NodeRequest, response: NodeResponse, path: string, original: R): void {
    // The compatibility layer of HTTP/2 has everything that is used of them.
    const sent = { request: request as IncomingMessage, response: response as ServerResponse }
    const file = this.#files.get(clientPath.exec(path)?.[1] ?? '')
    if (file && request.method === 'GET') {
      const known = file.isKnown(request)
      sent.response.writeHead(known ? 304 : 200, file.headers).end(known ? undefined : file.body)
    } else if (request.method === 'GET') {
      void this.#endpoint.handle({ ...sent, token: decodeOnce(path), original })
    } else {
      this.#endpoint.refuseMethod(sent.request, sent.response)
    }
  }

  /** Refuses from now on, and ends what is open, each with a frame that tells its client to come back. */
  async close(): Promise<void> {
    await this.#endpoint.drain()
  }
}

/** Text that cannot be decoded is no token either way. */
function decodeOnce(path: string): string {
  try {
    return decodeURIComponent(path)
  } catch {
    return path
  }
}
