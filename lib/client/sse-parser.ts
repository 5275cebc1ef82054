/**
 * Reads an event stream (WHATWG HTML 9.2.6) as it arrives, whatever the chunks: a chunk may end inside a
 * character, between CR and LF, or inside a field name. What has no empty line behind it when the stream
 * ends is not a frame, and never reported.
 *
 * One parser reads one response. Unlike `EventSource` it tells for every frame whether it carried an id of
 * its own: a frame without one is ephemeral and must not be mistaken for the durable one before it.
 */

/** One frame of an event stream. */
export interface SseFrame {
  /** Value of the `event` field; `message` when there was none. */
  event: string
  /** The `data` lines, joined with line feeds. */
  data: string
  /** Value of the frame's own `id` field; null when it had none. */
  id: string | null
}

export interface SseHandlers {
  onFrame: (frame: SseFrame) => void
  /** A `retry` field, in milliseconds. Told at once, also when its frame has no data. */
  onRetry?: ((delay: number) => void) | undefined
  /** A comment line, without its colon. */
  onComment?: ((text: string) => void) | undefined
}

const byteOrderMark = '\uFEFF'

export class SseParser {
  readonly #handlers: SseHandlers
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  #atStart = true
  /** The last chunk ended with CR: a LF that opens the next one belongs to the same line end. */
  #afterCarriageReturn = false
  /** The line that has no end yet. */
  #line = ''
  #event = ''
  #id: string | null = null
  #data: string[] = []

  constructor(handlers: SseHandlers) {
    this.#handlers = handlers
  }

  /** Reads one chunk, bytes or text. Frames that end in it are reported before this returns. */
  push(chunk: Uint8Array | string): void {
    const text = typeof chunk === 'string' ? chunk : this.#decoder.decode(chunk, { stream: true })
    if (text === '') return
    let from = 0
    if (this.#atStart) {
      this.#atStart = false
      if (text.startsWith(byteOrderMark)) from = 1
    }
    if (this.#afterCarriageReturn && from < text.length) {
      this.#afterCarriageReturn = false
      if (text[from] === '\n') from += 1
    }
    for (const lineEnd = /\r\n|\r|\n/g; ; ) {
      lineEnd.lastIndex = from
      const found = lineEnd.exec(text)
      if (!found) break
      const line = this.#line + text.slice(from, found.index)
      this.#line = ''
      from = lineEnd.lastIndex
      this.#afterCarriageReturn = found[0] === '\r' && from === text.length
      this.#readLine(line)
    }
    this.#line += text.slice(from)
  }

  #readLine(line: string): void {
    const colon = line.indexOf(':')
    if (line === '') this.#endFrame()
    else if (colon === 0) this.#handlers.onComment?.(line.slice(1))
    else if (colon === -1) this.#readField(line, '')
    else this.#readField(line.slice(0, colon), line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1))
  }

  #readField(name: string, value: string): void {
    switch (name) {
      case 'data':
        this.#data.push(value)
        break
      case 'event':
        this.#event = value
        break
      case 'id':
        if (!value.includes('\0')) this.#id = value
        break
      case 'retry':
        if (/^[0-9]+$/.test(value)) this.#handlers.onRetry?.(Number(value))
        break
    }
  }

  #endFrame(): void {
    const frame: SseFrame = { event: this.#event || 'message', data: this.#data.join('\n'), id: this.#id }
    const hasData = this.#data.length > 0
    this.#event = ''
    this.#id = null
    this.#data = []
    if (hasData) this.#handlers.onFrame(frame)
  }
}
