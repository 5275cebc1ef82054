import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { InvalidCursorError, InvalidSignedNameError } from '../core/errors.ts'
import type { Report } from '../core/report.ts'
import { corsHeaders, preflight } from './cors.ts'
import { readCursor } from './cursor.ts'
import type { DrainResult, Streamer } from './streamer.ts'
import type { Streams } from './streams.ts'
import type { SignedName } from './token.ts'

/**
 * Decides who may follow a stream. Falsy: nobody; true: allowed; anything else: allowed, and remembered as the
 * connection's context. An error with `statusCode` 401, 403 or 429 refuses with that status.
 */
export type Authorize<R> = (request: R, stream: string, details: { subject: string | undefined }) => unknown

export interface EndpointOptions<R> {
  streams: Streams
  /** Default: the signed name is enough. */
  authorize?: Authorize<R> | undefined
  report: Report
}

export interface Exchange<R> {
  request: IncomingMessage
  response: ServerResponse
  /** What stood behind the prefix in the path, percent-decoded once. */
  token: string
  /** What `authorize` is given. */
  original: R
  /** Writes a head with these headers; default: on the response itself. */
  writeHead?: ((headers: Record<string, string>) => void) | undefined
}

/** Why a request is not answered with a stream. The texts never say what is wrong with a token. */
const refusals = {
  method: { status: 405, body: 'method not allowed', headers: { allow: 'GET' } },
  missing: { status: 404, body: 'missing signed stream name' },
  invalid: { status: 404, body: 'invalid signed stream name' },
  draining: { status: 503, body: 'shutting down', headers: { 'retry-after': '1' } },
  forbidden: { status: 403, body: 'forbidden' },
  cursor: { status: 400, body: 'invalid cursor' },
  capacity: { status: 503, body: 'streamer over capacity', headers: { 'retry-after': '2' } },
  internal: { status: 500, body: 'internal error' },
} satisfies Record<string, { status: number; body: string; headers?: OutgoingHttpHeaders }>

interface Refusal {
  why: keyof typeof refusals
  status?: number
  detail?: string
}

interface Admission {
  /** Null: test mode. */
  streamer: Streamer | null
  stream: string
  cursor: number
  context: unknown
}

const keepAliveMs = 30_000
const testModeBody = ': pgbus test mode — connection accepted, no polling\n\n'

/** `GET <prefix>/<token>`: the HTTP contract of a stream, on Node's own requests and responses. */
export class StreamsEndpoint<R> {
  readonly #options: EndpointOptions<R>
  #drained: Promise<DrainResult> | undefined

  constructor(options: EndpointOptions<R>) {
    this.#options = options
  }

  /** Answers, with a stream or a refusal. Never rejects. */
  async handle(exchange: Exchange<R>): Promise<void> {
    const { response } = exchange
    try {
      const answer = await this.#admit(exchange)
      if (isGone(response)) return
      const refusal = 'why' in answer ? answer : answer.streamer && this.#noRoom(answer.streamer)
      // In the tick of the check: requests that waited for one streamer go on one right after the other.
      if (refusal) refuse(response, refusal, this.#corsHeaders(exchange.request))
      else connect(exchange, answer as Admission, this.#corsHeaders(exchange.request))
    } catch (error) {
      this.#options.report(error, { action: 'stream_connect' })
      if (response.headersSent) response.destroy()
      else refuse(response, { why: 'internal' }, this.#corsHeaders(exchange.request))
    }
  }

  /** The answer to any other method than GET: the browser's question for leave, or a refusal. */
  refuseMethod(request: IncomingMessage, response: ServerResponse): void {
    const { cors } = this.#options.streams
    if (request.method === 'OPTIONS' && cors) {
      response.writeHead(204, preflight(this.#corsHeaders(request))).end()
    } else {
      refuse(response, { why: 'method' }, this.#corsHeaders(request))
    }
  }

  /** Refuses from now on, and ends what is open. */
  drain(): Promise<DrainResult> {
    this.#drained ??= this.#options.streams.drain()
    return this.#drained
  }

  async #admit(exchange: Exchange<R>): Promise<Admission | Refusal> {
    const { request, token } = exchange
    const { streams } = this.#options
    if (request.method !== 'GET') return { why: 'method' }
    if (token.trim() === '') return { why: 'missing' }
    const name = this.#verify(token)
    if (!name) return { why: 'invalid' }
    if (this.#isDraining) return { why: 'draining' }
    const context = await this.#authorize(exchange.original, name)
    if (isRefusal(context)) return context
    const cursor = cursorOf(request)
    if (typeof cursor !== 'number') return cursor
    if (this.#isDraining) return { why: 'draining' }
    const streamer = streams.testMode ? null : await streams.streamer()
    return { streamer, stream: name.stream, cursor, context }
  }

  #noRoom(streamer: Streamer): Refusal | undefined {
    if (this.#isDraining || streamer.isDraining) return { why: 'draining' }
    return streamer.size >= this.#options.streams.maxConnections ? { why: 'capacity' } : undefined
  }

  #corsHeaders({ headers }: IncomingMessage): Record<string, string> {
    try {
      return corsHeaders(this.#options.streams.cors, headers.origin)
    } catch (error) {
      // The user's own function: no leave, and the request goes on.
      this.#options.report(error, { action: 'stream_cors' })
      return {}
    }
  }

  get #isDraining(): boolean {
    return this.#drained !== undefined || this.#options.streams.isClosed
  }

  #verify(token: string): SignedName | undefined {
    try {
      return this.#options.streams.verify(token)
    } catch (error) {
      if (error instanceof InvalidSignedNameError) return undefined
      throw error
    }
  }

  async #authorize(original: R, { stream, subject }: SignedName): Promise<unknown> {
    const { authorize } = this.#options
    if (!authorize) return undefined
    let answer: unknown
    try {
      answer = await authorize(original, stream, { subject })
    } catch (error) {
      const status = (error as { statusCode?: unknown } | null)?.statusCode
      if (status === 401 || status === 403 || status === 429) return new Refused(status)
      throw error
    }
    if (!answer) return new Refused(403)
    return answer === true ? undefined : answer
  }
}

/** A class, so that no context of a user can be mistaken for one. */
class Refused implements Refusal {
  readonly why = 'forbidden'
  readonly status: number

  constructor(status: number) {
    this.status = status
  }
}

function isRefusal(value: unknown): value is Refused {
  return value instanceof Refused
}

/** What a page says about itself with `X-Pgbus-Connection`; null when that is no id of a connection. */
export function connectionIdOf({ headers }: Pick<IncomingMessage, 'headers'>): string | null {
  const id = headers['x-pgbus-connection']
  return typeof id === 'string' && /^[0-9a-f]{16}$/.test(id) ? id : null
}

function cursorOf(request: IncomingMessage): number | Refusal {
  const query = new URLSearchParams(request.url?.split('?').slice(1).join('?') ?? '')
  const header = request.headers['last-event-id']
  try {
    return readCursor({
      since: query.getAll('since'),
      lastEventId: Array.isArray(header) ? header.join(',') : header,
    })
  } catch (error) {
    if (error instanceof InvalidCursorError) return { why: 'cursor', detail: error.message }
    throw error
  }
}

function connect<R>(
  exchange: Exchange<R>,
  { streamer, stream, cursor, context }: Admission,
  more: Record<string, string>,
): void {
  const { request, response, writeHead } = exchange
  const isHttp2 = request.httpVersionMajor >= 2
  const headers: Record<string, string> = {
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
    ...more,
  }
  if (request.httpVersion === '1.1') headers.connection = 'keep-alive'
  if (writeHead) writeHead(headers)
  else response.writeHead(200, headers)
  if (!streamer) {
    response.end(testModeBody)
    return
  }
  if (isHttp2) {
    streamer.connect({ stream, cursor, context, sink: response })
    return
  }
  const { socket } = request
  socket.setNoDelay(true)
  socket.setKeepAlive(true, keepAliveMs)
  socket.setTimeout(0)
  streamer.connect({ stream, cursor, context, sink: response, inFlight: () => bytesInKernelQueue(response) })
}

/**
 * What the system has not taken of the write under way. `writableLength` counts a write in full until all of it
 * is gone, so a slow client that takes a large one bit by bit would look dead. Node's own socket timeout looks
 * at the same number.
 */
function bytesInKernelQueue(response: ServerResponse): number {
  const handle = (response.socket as { _handle?: { writeQueueSize?: unknown } | null } | null)?._handle
  return typeof handle?.writeQueueSize === 'number' ? handle.writeQueueSize : response.writableLength
}

function refuse(
  response: ServerResponse,
  { why, status, detail }: Refusal,
  more: Record<string, string>,
): void {
  const refusal: { status: number; body: string; headers?: OutgoingHttpHeaders } = refusals[why]
  const body = `pgbus: ${refusal.body}${detail === undefined ? '' : `: ${detail}`}`
  response.writeHead(status ?? refusal.status, {
    'content-type': 'text/plain; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    'cache-control': 'no-store',
    ...refusal.headers,
    ...more,
  })
  response.end(body)
}

function isGone(response: ServerResponse): boolean {
  // A response over HTTP/2 tells it by its stream alone.
  const { stream } = response as { stream?: { destroyed?: unknown } | undefined }
  return response.destroyed || response.writableEnded || response.closed || stream?.destroyed === true
}
