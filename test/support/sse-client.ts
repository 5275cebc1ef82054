import http from 'node:http'
import { waitFor } from './wait-for.ts'

export interface SseFrame {
  id: string | null
  event: string | null
  data: string
  retry: string | null
}

/** An open event stream, read by a parser that is strict where browsers are lenient. */
export interface SseClient {
  status: number
  headers: http.IncomingHttpHeaders
  /** Every byte received, as text. */
  raw(): string
  frames: SseFrame[]
  comments: string[]
  waitForFrame(match: (frame: SseFrame) => boolean, timeout?: number): Promise<SseFrame>
  waitForEvent(event: string, timeout?: number): Promise<SseFrame>
  /** Resolves when the response ended, for whatever reason. */
  ended: Promise<void>
  close(): void
}

/** Sends `GET url` and reads the answer as an event stream (a body that is none is in `raw()`). */
export function openSse(
  url: string,
  options: { headers?: Record<string, string>; method?: string } = {},
): Promise<SseClient> {
  return new Promise((resolve, reject) => {
    const request = http.request(url, {
      method: options.method ?? 'GET',
      headers: { accept: 'text/event-stream', ...options.headers },
      agent: false,
    })
    request.once('error', reject)
    request.once('response', response => {
      request.removeAllListeners('error')
      request.on('error', () => undefined)
      let raw = ''
      let rest = ''
      const frames: SseFrame[] = []
      const comments: string[] = []
      response.setEncoding('utf8').on('data', (chunk: string) => {
        raw += chunk
        const blocks = (rest + chunk).split('\n\n')
        rest = blocks.pop() ?? ''
        for (const block of blocks) readBlock(block, frames, comments)
      })
      response.on('error', () => undefined)
      const ended = new Promise<void>(done => response.once('close', () => done()))
      const waitForFrame = (match: (frame: SseFrame) => boolean, timeout = 15_000) =>
        waitFor(() => frames.find(match), {
          timeout,
          message: `a frame; got ${JSON.stringify(frames.slice(-5))}`,
        })
      resolve({
        status: response.statusCode ?? 0,
        headers: response.headers,
        raw: () => raw,
        frames,
        comments,
        waitForFrame,
        waitForEvent: (event, timeout) => waitForFrame(frame => frame.event === event, timeout),
        ended,
        close: () => request.destroy(),
      })
    })
    request.end()
  })
}

function readBlock(block: string, frames: SseFrame[], comments: string[]): void {
  const frame: SseFrame = { id: null, event: null, data: '', retry: null }
  const data: string[] = []
  let fields = 0
  for (const line of block.split('\n')) {
    if (line.includes('\r')) throw new Error(`a CR inside an event stream line: ${JSON.stringify(line)}`)
    if (line.startsWith(':')) {
      comments.push(line.slice(1).trimStart())
      continue
    }
    const match = /^(id|event|data|retry): ?(.*)$/s.exec(line)
    if (!match) throw new Error(`not an event stream line: ${JSON.stringify(line)}`)
    fields += 1
    const [, name, value = ''] = match
    if (name === 'data') data.push(value)
    else frame[name as 'id' | 'event' | 'retry'] = value
  }
  frame.data = data.join('\n')
  if (fields > 0) frames.push(frame)
}
