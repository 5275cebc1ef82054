import type {
  FastifyInstance,
  FastifyReply,
  FastifyRequest,
  HTTPMethods,
  RouteShorthandOptions,
} from 'fastify'
import fp from 'fastify-plugin'
import { ConfigurationError } from '../../lib/core/errors.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import { type Authorize, connectionIdOf, StreamsEndpoint } from '../../lib/streams/endpoint.ts'
import { type StreamName, streamName } from '../../lib/streams/name.ts'
import type { SourceTagOptions } from '../../lib/streams/source-tag.ts'
import type { Streams } from '../../lib/streams/streams.ts'
import { readClientFiles } from '../client-files.ts'

export interface PgbusStreamsOptions {
  pgbus: Pgbus
  /** Where the endpoint is. Default `/pgbus/streams`. */
  prefix?: string
  /** Who may follow which stream. Default: whoever has its signed name. Runs after the hooks of the application. */
  authorize?: Authorize<FastifyRequest> | undefined
}

declare module 'fastify' {
  interface FastifyInstance {
    streams: Streams
  }
  interface FastifyRequest {
    /** Id of the stream connection of the page that sent this request; null: it named none. For `exclude`. */
    readonly pgbusConnectionId: string | null
    /**
     * Notes how far streams are, in the order given. Call it before the data of a page is read: whatever is
     * broadcast from then on reaches the page.
     */
    streamMark(...names: StreamName[]): Promise<number[]>
  }
  interface FastifyReply {
    /** HTML that follows a stream, from its mark of this request if there is one. The script comes once. */
    streamSourceTag(name: StreamName, options?: SourceTagOptions): Promise<string>
  }
}

const defaultPrefix = '/pgbus/streams'
const registered = Symbol('pgbus.streams')

/** What a request has asked for so far. */
class Page {
  readonly marks = new Map<string, number>()
  hasScript = false
}

async function plugin(fastify: FastifyInstance, options: PgbusStreamsOptions): Promise<void> {
  const { pgbus, authorize } = options
  if (fastify.hasDecorator(registered)) {
    throw new ConfigurationError(
      'pgbusStreams is already registered on this Fastify instance — register it once',
    )
  }
  if (fastify.hasDecorator('streams')) {
    throw new ConfigurationError(
      'this Fastify instance already has a decorator "streams", which pgbusStreams adds — rename yours',
    )
  }
  fastify.decorate(registered, true)
  if (!pgbus?.streams) throw new TypeError('pgbusStreams needs { pgbus }, made by createPgbus()')
  const prefix = checkPrefix(options.prefix ?? defaultPrefix)
  const { streams } = pgbus
  decorate(fastify, streams)
  if (!pgbus.config.streams.enabled) return
  streams.mount(`${fastify.prefix}${prefix}`)

  if (!fastify.hasPlugin('@fastify/sse')) await fastify.register(await importSse())
  const endpoint = new StreamsEndpoint<FastifyRequest>({ streams, authorize, report: pgbus.report })
  // The token is a capability: it stays out of the log of requests.
  const route: RouteShorthandOptions = {
    logSerializers: { req: (request: FastifyRequest) => ({ method: request.method, url: `${prefix}/…` }) },
  }

  const follow = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    takeOver(reply)
    await endpoint.handle({
      request: request.raw,
      response: reply.raw,
      token: (request.params as { '*'?: string })['*'] ?? '',
      original: request,
      writeHead: request.raw.httpVersionMajor < 2 ? headers => writeHead(reply, headers) : undefined,
    })
  }
  // Before a body is looked at.
  const refuse = (request: FastifyRequest, reply: FastifyReply): void => {
    takeOver(reply)
    endpoint.refuseMethod(request.raw, reply.raw)
  }
  const otherMethods = fastify.supportedMethods.filter(method => method !== 'GET') as HTTPMethods[]
  for (const url of [prefix, `${prefix}/*`]) {
    fastify.get(url, { ...route, exposeHeadRoute: false, sse: { kind: 'manual', heartbeat: false } }, follow)
    fastify.route({ ...route, method: otherMethods, url, onRequest: refuse, handler: () => undefined })
  }
  for (const [name, file] of readClientFiles()) {
    fastify.get(`${prefix}/client/${name}`, (request, reply) => {
      reply.headers(file.headers)
      return file.isKnown(request) ? reply.code(304).send() : reply.send(file.body)
    })
  }

  // Closing the server waits for open responses, and `onClose` comes after that.
  fastify.addHook('preClose', async () => void (await endpoint.drain()))
  fastify.addHook('onClose', async () => void (await endpoint.drain()))
}

/** Bytes and life time are the endpoint's; headers that hooks of the application set go out with them. */
function takeOver(reply: FastifyReply): void {
  reply.hijack()
  for (const [name, value] of Object.entries(reply.getHeaders()))
    if (value !== undefined) reply.raw.setHeader(name, value)
}

/** The head as `@fastify/sse` writes it, which from here on looks after errors of the response. */
function writeHead(reply: FastifyReply, headers: Record<string, string>): void {
  reply.headers(headers)
  reply.sse.keepAlive()
  reply.sse.sendHeaders(200)
}

function decorate(fastify: FastifyInstance, streams: Streams): void {
  const pages = new WeakMap<FastifyRequest, Page>()
  const pageOf = (request: FastifyRequest) => {
    const page = pages.get(request) ?? new Page()
    pages.set(request, page)
    return page
  }
  fastify.decorate('streams', streams)
  fastify.decorateRequest('pgbusConnectionId', {
    getter(this: FastifyRequest) {
      return connectionIdOf(this.raw)
    },
  })
  fastify.decorateRequest('streamMark', async function (...names) {
    const { marks } = pageOf(this)
    const keys = names.map(streamName)
    const missing = keys.filter(key => !marks.has(key))
    const found = await streams.watermarks(missing)
    missing.forEach((key, index) => {
      // The first mark is the one that came before the data.
      if (!marks.has(key)) marks.set(key, found[index]!)
    })
    return keys.map(key => marks.get(key)!)
  })
  fastify.decorateReply('streamSourceTag', async function (name, options = {}) {
    const page = pageOf(this.request)
    const stream = streams.stream(name)
    const script = options.script === true && !page.hasScript
    page.hasScript ||= script
    return await stream.sourceTag({ ...options, script, since: options.since ?? page.marks.get(stream.name) })
  })
}

function checkPrefix(prefix: string): string {
  const path = prefix.replace(/\/+$/, '')
  if (/^(\/[A-Za-z0-9._~-]+)+$/.test(path)) return path
  throw new TypeError(
    `prefix should be a path such as "${defaultPrefix}", instead got ${JSON.stringify(prefix)}`,
  )
}

async function importSse() {
  try {
    return (await import('@fastify/sse')).fastifySSE
  } catch (cause) {
    throw new ConfigurationError('pgbusStreams needs the package @fastify/sse — npm install @fastify/sse', {
      cause,
    })
  }
}

/** Streams in a Fastify application: the endpoint, the browser client, and what pages need to use them. */
export const pgbusStreams = fp(plugin, { fastify: '5.x', name: 'pgbus-streams' })
