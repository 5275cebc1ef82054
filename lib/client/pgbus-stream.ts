/**
 * Follows one stream over `fetch`, in browsers and in Node.js, and comes back by itself.
 *
 *   closed ──connect()──▶ connecting ──200──▶ open
 *     ▲                      ▲  │               │
 *     │ close(), final       │  └── ended ──────┤
 *     └── status             └── waiting ◀──────┘
 *
 * Every request carries the highest durable id that was seen, so nothing durable is lost between two
 * connections; ids at or below it are dropped, so nothing durable is seen twice. A connection is one
 * `Transport`: whatever arrives late for another one than the current does nothing.
 */
import { isTransient, maxTimeout, parseRetryAfter, ReconnectPolicy } from './reconnect-policy.ts'
import { type SseFrame, SseParser } from './sse-parser.ts'

export type StreamState = 'closed' | 'connecting' | 'open' | 'waiting'

export interface PgbusStreamOptions {
  /** Where to start: frames above this id are delivered. Default null: as the URL says. */
  lastEventId?: number | null | undefined
  /** Send cookies to another origin too. Default false: to the page's own origin only. */
  withCredentials?: boolean | undefined
  /** Where events are dispatched. Default: the stream itself. */
  target?: Pick<EventTarget, 'dispatchEvent'> | undefined
  /** Called when `state`, `connectionId` or `lastEventId` changed, before the event that tells why. */
  onChange?: (() => void) | undefined
}

/** Detail of `pgbus:message`: a frame for Turbo. `msgId` is null when the frame is ephemeral. */
export interface MessageDetail {
  msgId: number | null
  data: string
}

/** Detail of `pgbus:<event>`; `json` is there when the event is `json` and the data can be parsed. */
export interface TypedDetail extends MessageDetail {
  json?: unknown
}

/** Detail of `pgbus:event`, which precedes every `pgbus:<event>`. */
export interface EventDetail extends TypedDetail {
  event: string
}

/** Detail of `pgbus:close`. `code` is an HTTP status or what ended the connection; `retryIn` is in milliseconds. */
export interface CloseDetail {
  code: number | 'shutdown' | 'network' | 'timeout'
  reason: string
  willReconnect: boolean
  retryIn: number | null
}

interface Transport {
  readonly abort: AbortController
  openedAt: number | null
  lastByteAt: number
}

interface Ending {
  code: CloseDetail['code']
  reason: string
  final?: boolean
  retryAfter?: number | null
}

/** What a frame of the server may say; whatever it is, it came over the network. */
interface ControlDetail {
  connectionId?: unknown
  heartbeat?: unknown
  reason?: unknown
}

/** The part of a page that matters here; absent in Node.js and in workers. */
interface Page {
  window?: PageTarget
  document?: PageTarget & { readonly visibilityState: string; readonly baseURI: string }
}

interface PageTarget {
  addEventListener(type: string, listener: (event: Event) => void, options: { signal: AbortSignal }): void
}

const page = globalThis as unknown as Page

/** Assumed until the server tells its own, in milliseconds. */
const defaultHeartbeat = 15_000
const missedHeartbeats = 3

export class PgbusStream extends EventTarget {
  readonly url: string
  readonly #withCredentials: boolean
  readonly #target: Pick<EventTarget, 'dispatchEvent'>
  readonly #onChange: () => void
  readonly #policy = new ReconnectPolicy()
  #state: StreamState = 'closed'
  #lastEventId: number | null
  #connectionId: string | null = null
  #heartbeat = defaultHeartbeat
  #transport: Transport | null = null
  #watchdog: ReturnType<typeof setTimeout> | undefined
  #retryTimer: ReturnType<typeof setTimeout> | undefined
  /** The server asked not to be called before this moment. */
  #notBefore = 0
  #pageListeners: AbortController | null = null

  /** @throws TypeError when `url` is not a URL, or is relative outside a page. */
  constructor(url: string | URL, options: PgbusStreamOptions = {}) {
    super()
    const { lastEventId = null, withCredentials = false, target = this, onChange = () => undefined } = options
    if (lastEventId !== null && (!Number.isSafeInteger(lastEventId) || lastEventId < 0)) {
      throw new TypeError(
        `lastEventId should be null or an id (a whole number from 0), instead got ${lastEventId}`,
      )
    }
    this.url = new URL(url, page.document?.baseURI).href
    this.#lastEventId = lastEventId
    this.#withCredentials = withCredentials
    this.#target = target
    this.#onChange = onChange
  }

  get state(): StreamState {
    return this.#state
  }

  /** Highest durable id that was seen; null when there was none and none was given. */
  get lastEventId(): number | null {
    return this.#lastEventId
  }

  /** Name of the current connection at the server; null unless the server has told it. */
  get connectionId(): string | null {
    return this.#connectionId
  }

  /** Starts following, or retries at once when waiting. Does nothing while connecting or open. */
  connect(): void {
    if (this.#transport) return
    this.#listenToPage()
    this.#open()
  }

  /** Ends the connection and stops coming back. No event is dispatched. */
  close(): void {
    this.#pageListeners?.abort()
    this.#pageListeners = null
    this.#leave('closed')
  }

  #open(): void {
    clearTimeout(this.#retryTimer)
    const transport: Transport = {
      abort: new AbortController(),
      openedAt: null,
      lastByteAt: performance.now(),
    }
    this.#transport = transport
    this.#change('connecting')
    if (this.#transport !== transport) return
    this.#watch(transport)
    void this.#follow(transport).then(ending => {
      if (ending) this.#end(transport, ending)
    })
  }

  /** Requests and reads until the connection ends. Null when somebody else ended it meanwhile. */
  async #follow(transport: Transport): Promise<Ending | null> {
    const isStale = () => this.#transport !== transport
    try {
      const response = await fetch(this.#requestUrl(), this.#requestOptions(transport.abort.signal))
      if (isStale()) return null
      transport.lastByteAt = performance.now()
      const refusal = refusalOf(response)
      if (refusal) return refusal
      transport.openedAt = performance.now()
      this.#change('open')
      if (isStale()) return null
      this.#dispatch('pgbus:open', { lastEventId: this.#lastEventId, connectionId: null })
      const reader = response.body?.getReader()
      const parser = new SseParser({
        onFrame: frame => {
          if (isStale()) return
          if (frame.event.startsWith('pgbus:')) this.#receiveControl(transport, frame.event, frame.data)
          else this.#receive(frame)
        },
        onRetry: delay => {
          if (!isStale()) this.#policy.setRetry(delay)
        },
      })
      while (reader && !isStale()) {
        const { done, value } = await reader.read()
        if (isStale()) return null
        if (done) break
        transport.lastByteAt = performance.now()
        parser.push(value)
      }
      return isStale() ? null : { code: 'network', reason: 'the response ended' }
    } catch (error) {
      return isStale()
        ? null
        : { code: 'network', reason: error instanceof Error ? error.message : String(error) }
    }
  }

  #requestUrl(): string {
    if (this.#lastEventId === null) return this.url
    const url = new URL(this.url)
    url.searchParams.set('since', String(this.#lastEventId))
    return url.href
  }

  /** `cache` means nothing in Node.js, whose types do not have it. */
  #requestOptions(signal: AbortSignal): RequestInit & { cache: 'no-store' } {
    const headers: Record<string, string> = { Accept: 'text/event-stream' }
    if (this.#lastEventId !== null) headers['Last-Event-ID'] = String(this.#lastEventId)
    return {
      headers,
      credentials: this.#withCredentials ? 'include' : 'same-origin',
      cache: 'no-store',
      signal,
    }
  }

  #receive(frame: SseFrame): void {
    const { event, data } = frame
    const msgId = parseId(frame.id)
    if (msgId !== null) {
      if (this.#lastEventId !== null && msgId <= this.#lastEventId) return
      this.#lastEventId = msgId
      this.#onChange()
    }
    if (event === 'turbo-stream' || event === 'message') {
      const lastEventId = msgId === null ? '' : String(msgId)
      this.#target.dispatchEvent(new MessageEvent('message', { data, lastEventId }))
      this.#dispatch('pgbus:message', { msgId, data } satisfies MessageDetail)
    } else {
      const detail: TypedDetail = { data, msgId, ...(event === 'json' ? parseJson(data) : undefined) }
      this.#dispatch('pgbus:event', { event, ...detail } satisfies EventDetail)
      this.#dispatch(`pgbus:${event}`, detail)
    }
  }

  /** Frames of the server itself. Unknown ones are for newer clients, malformed ones for nobody. */
  #receiveControl(transport: Transport, event: string, data: string): void {
    const { json } = parseJson(data)
    if (typeof json !== 'object' || json === null) return
    const detail: ControlDetail = json
    switch (event) {
      case 'pgbus:connected':
        this.#receiveConnected(transport, detail)
        break
      case 'pgbus:gap-detected':
        // Ids have started again below the ones seen so far, which would all count as duplicates.
        if (detail.reason === 'reset') {
          this.#lastEventId = 0
          this.#onChange()
        }
        this.#dispatch(event, detail)
        break
      case 'pgbus:replay-start':
      case 'pgbus:replay-end':
        this.#dispatch(event, detail)
        break
      case 'pgbus:shutdown':
        this.#end(transport, { code: 'shutdown', reason: String(detail.reason ?? '') })
        break
    }
  }

  #receiveConnected(transport: Transport, { connectionId, heartbeat }: ControlDetail): void {
    if (typeof connectionId !== 'string') return
    if (typeof heartbeat === 'number' && heartbeat > 0) this.#heartbeat = heartbeat
    this.#watch(transport)
    if (this.#transport !== transport) return
    this.#connectionId = connectionId
    this.#onChange()
    this.#dispatch('pgbus:connected', { connectionId })
  }

  /** One connection ended: decide whether, and when, there is another. */
  #end(transport: Transport, ending: Ending): void {
    if (this.#transport !== transport) return
    const { code, reason, final = false, retryAfter = null } = ending
    let retryIn: number | null = null
    if (final) {
      this.close()
    } else {
      const now = performance.now()
      if (transport.openedAt !== null) this.#policy.connectedFor(now - transport.openedAt)
      retryIn = code === 'shutdown' ? this.#policy.afterShutdown() : this.#policy.next(retryAfter)
      this.#notBefore = now + (retryAfter ?? 0)
      // Before anybody is told: a listener that calls close() must find the timer.
      this.#retryTimer = setTimeout(() => this.#open(), retryIn)
      this.#leave('waiting')
    }
    this.#dispatch('pgbus:close', { code, reason, willReconnect: !final, retryIn } satisfies CloseDetail)
  }

  #leave(state: 'closed' | 'waiting'): void {
    if (state === 'closed') clearTimeout(this.#retryTimer)
    clearTimeout(this.#watchdog)
    const transport = this.#transport
    this.#transport = null
    this.#connectionId = null
    transport?.abort.abort()
    this.#change(state)
  }

  /** Gives up a connection on which nothing came for three heartbeats; one that still waits for its head too. */
  #watch(transport: Transport): void {
    clearTimeout(this.#watchdog)
    const limit = this.#heartbeat * missedHeartbeats
    const left = transport.lastByteAt + limit - performance.now()
    if (left > 0) this.#watchdog = setTimeout(() => this.#watch(transport), Math.min(left, maxTimeout))
    else this.#end(transport, { code: 'timeout', reason: `nothing arrived for ${limit} ms` })
  }

  #listenToPage(): void {
    const { window, document } = page
    if (!window || !document || this.#pageListeners) return
    this.#pageListeners = new AbortController()
    const { signal } = this.#pageListeners
    const onVisible = () => {
      if (document.visibilityState === 'visible') this.#hasten()
    }
    const onPageShow = (event: Event) => {
      if ((event as { persisted?: boolean }).persisted) this.#hasten()
    }
    const onPageHide = () => {
      // An open response keeps a page out of the back-forward cache. `pageshow` comes back for it.
      clearTimeout(this.#retryTimer)
      this.#leave('waiting')
    }
    window.addEventListener('online', () => this.#hasten(), { signal })
    window.addEventListener('pageshow', onPageShow, { signal })
    window.addEventListener('pagehide', onPageHide, { signal })
    document.addEventListener('visibilitychange', onVisible, { signal })
  }

  /** Somebody is looking, or the network is back: do not wait, and do not trust a silent connection. */
  #hasten(): void {
    if (this.#transport) {
      this.#watch(this.#transport)
    } else {
      clearTimeout(this.#retryTimer)
      this.#retryTimer = setTimeout(() => this.#open(), Math.max(0, this.#notBefore - performance.now()))
    }
  }

  #change(state: StreamState): void {
    this.#state = state
    this.#onChange()
  }

  #dispatch(type: string, detail: object): void {
    this.#target.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true }))
  }
}

/** An id as the server writes it; null for anything else, which is then no id. */
export function parseId(text: string | null): number | null {
  if (text === null || !/^[0-9]{1,16}$/.test(text)) return null
  const id = Number(text)
  return Number.isSafeInteger(id) ? id : null
}

function refusalOf(response: Response): Ending | null {
  const { status, statusText } = response
  if (status === 200) {
    const type = response.headers.get('content-type') ?? 'none'
    if (/^text\/event-stream\s*(;|$)/i.test(type)) return null
    return { code: status, reason: `expected text/event-stream, got content type ${type}`, final: true }
  }
  const retryAfter = parseRetryAfter(response.headers.get('retry-after'), Date.now())
  return {
    code: status,
    reason: `HTTP ${status} ${statusText}`.trim(),
    final: !isTransient(status),
    retryAfter,
  }
}

function parseJson(text: string): { json?: unknown } {
  try {
    return { json: JSON.parse(text) }
  } catch {
    return {}
  }
}
