import http from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from './database.ts'
import { waitFor } from './wait-for.ts'

/** One request to the server of a test, and the means to answer it. */
export class Exchange {
  readonly path: string
  readonly since: string | null
  readonly headers: http.IncomingHttpHeaders
  /** When it arrived. */
  readonly at = performance.now()
  /** The connection is gone, whoever ended it. */
  readonly closed: Promise<void>
  isClosed = false
  readonly #response: http.ServerResponse

  constructor(request: http.IncomingMessage, response: http.ServerResponse) {
    const url = new URL(request.url ?? '/', 'http://localhost')
    this.path = url.pathname
    this.since = url.searchParams.get('since')
    this.headers = request.headers
    this.#response = response
    this.closed = new Promise(resolve => {
      response.once('close', () => {
        this.isClosed = true
        resolve()
      })
    })
  }

  get lastEventId(): string | null {
    return (this.headers['last-event-id'] as string | undefined) ?? null
  }

  /** Answers with the head of a stream, `retry` and the connected frame. */
  open(options: { id?: string; heartbeat?: number; retry?: number } = {}): this {
    const { id = '00000000000000aa', heartbeat = 15_000, retry = 100 } = options
    this.#response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
    this.write(`retry: ${retry}\n\n: stream open\n\n`)
    return this.control('connected', { connectionId: id, heartbeat })
  }

  durable(id: number | string, data: string, event = 'turbo-stream'): this {
    return this.write(`id: ${id}\nevent: ${event}\n${dataLines(data)}\n`)
  }

  ephemeral(data: string, event = 'turbo-stream'): this {
    return this.write(`event: ${event}\n${dataLines(data)}\n`)
  }

  control(name: string, detail: unknown): this {
    return this.write(`event: pgbus:${name}\ndata: ${JSON.stringify(detail)}\n\n`)
  }

  shutdown(reason: string, retry = 100): this {
    return this.write(`retry: ${retry}\n`).control('shutdown', { reason })
  }

  write(text: string): this {
    this.#response.write(text)
    return this
  }

  end(text?: string): void {
    this.#response.end(text)
  }

  /** Breaks the connection without a proper end. */
  cut(): void {
    this.#response.destroy()
  }

  answer(status: number, headers: http.OutgoingHttpHeaders = {}, body = ''): void {
    this.#response.writeHead(status, headers).end(body)
  }
}

export interface SseServer {
  /** Origin, without a slash at its end. */
  url: string
  requests: Exchange[]
  /** The request with this number, from 0, once it has come. */
  request(index: number): Promise<Exchange>
}

/** A server that speaks the frames of a stream as the test tells it. */
export async function createSseServer(
  t: TestContext,
  answer: (exchange: Exchange, index: number) => void,
  port = 0,
): Promise<SseServer> {
  const requests: Exchange[] = []
  const server = http.createServer((request, response) => {
    const exchange = new Exchange(request, response)
    answer(exchange, requests.push(exchange) - 1)
  })
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  t.teardown(async () => {
    server.closeAllConnections()
    await new Promise(resolve => server.close(resolve))
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    request: index => waitFor(() => requests[index], { interval: 5, message: `request ${index}` }),
  }
}

function dataLines(data: string): string {
  return data
    .split(/\r\n|\r|\n/)
    .map(line => `data: ${line}\n`)
    .join('')
}
