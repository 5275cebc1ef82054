/**
 * `<pgbus-stream-source src since-id with-credentials on-gap>`: follows a stream while it is in the document.
 *
 * Reflected attributes: `since-id` is kept at the latest id, so that a re-attached element, or a copy of the
 * page in Turbo's cache, resumes where it was; `connected` and `connection-id` are there while the server
 * holds the connection. Every event of `PgbusStream` is dispatched on the element and bubbles.
 */
import { PgbusStream, parseId } from './pgbus-stream.ts'
import { connectTurbo, disconnectTurbo, refreshPage } from './turbo.ts'

const elementName = 'pgbus-stream-source'
/** `since-id` is written at most once in this many milliseconds. */
const sinceIdPause = 1_000

/** Importing the module is harmless where there is no DOM; the element is just not defined there. */
const Base = globalThis.HTMLElement ?? (class {} as typeof HTMLElement)

export class PgbusStreamSource extends Base {
  static readonly observedAttributes = ['src']

  #attached = false
  #stream: PgbusStream | null = null
  /** `since-id` as it was read or written last. Anything else comes from the page, and is obeyed. */
  #knownSinceId: string | null = null
  #sinceIdTimer: ReturnType<typeof setTimeout> | undefined
  readonly #writeSinceId = () => {
    clearTimeout(this.#sinceIdTimer)
    this.#sinceIdTimer = undefined
    const id = this.#stream?.lastEventId ?? null
    if (id === null) return
    this.#knownSinceId = String(id)
    this.#reflect('since-id', this.#knownSinceId)
  }

  connectedCallback(): void {
    this.#attached = true
    connectTurbo(this)
    // Turbo is about to copy the page: the copy must know what its content already shows.
    document.addEventListener('turbo:before-cache', this.#writeSinceId)
    this.#open()
  }

  disconnectedCallback(): void {
    this.#attached = false
    document.removeEventListener('turbo:before-cache', this.#writeSinceId)
    this.#shut()
    disconnectTurbo(this)
  }

  /** `src` changed. Reopens after the current task, when a `since-id` that belongs to it is there too. */
  attributeChangedCallback(_name: string, before: string | null, after: string | null): void {
    if (before === after || !this.#attached) return
    queueMicrotask(() => {
      if (!this.#attached || this.getAttribute('src') !== after) return
      const sinceId = this.getAttribute('since-id')
      const isGiven = sinceId !== this.#knownSinceId
      this.#shut()
      if (isGiven) this.#reflect('since-id', sinceId)
      this.#open()
    })
  }

  #open(): void {
    this.#shut()
    this.#reflect('connected', null)
    this.#reflect('connection-id', null)
    const src = this.getAttribute('src')
    if (src === null) return
    this.#knownSinceId = this.getAttribute('since-id')
    const stream: PgbusStream = new PgbusStream(src, {
      lastEventId: parseId(this.#knownSinceId),
      withCredentials: this.hasAttribute('with-credentials'),
      target: { dispatchEvent: event => this.#forward(event) },
      onChange: () => this.#follow(stream),
    })
    this.#stream = stream
    stream.connect()
  }

  /** Ends the stream, which reflects its last id. */
  #shut(): void {
    this.#stream?.close()
    this.#stream = null
  }

  #follow(stream: PgbusStream): void {
    if (this.#stream !== stream) return
    this.#reflect('connected', stream.connectionId === null ? null : '')
    this.#reflect('connection-id', stream.connectionId)
    if (stream.state !== 'open') this.#writeSinceId()
    else this.#sinceIdTimer ??= setTimeout(this.#writeSinceId, sinceIdPause)
  }

  #forward(event: Event): boolean {
    // Turbo may have been loaded after this element was connected.
    if (event.type === 'message') connectTurbo(this)
    const result = this.dispatchEvent(event)
    if (event.type === 'pgbus:gap-detected' && this.getAttribute('on-gap') === 'refresh') refreshPage()
    return result
  }

  #reflect(name: string, value: string | null): void {
    if (value === null) this.removeAttribute(name)
    else if (this.getAttribute(name) !== value) this.setAttribute(name, value)
  }
}

if (globalThis.customElements && !customElements.get(elementName)) {
  customElements.define(elementName, PgbusStreamSource)
}
