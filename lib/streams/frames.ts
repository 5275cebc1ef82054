/**
 * The bytes of an event stream (WHATWG HTML 9.2.6), and nothing else: UTF-8, line feeds only, every frame ends
 * with an empty line. Only durable frames carry an id, because a browser sends the last one back as its cursor.
 */

/** Event name of a frame that names none. */
export const defaultEvent = 'turbo-stream'

/** Milliseconds that a browser waits before it comes back, unless a shutdown frame says otherwise. */
const retryMs = 2_000

export interface Opening {
  stream: string
  cursor: number
  connectionId: string
  heartbeatInterval: number
}

/** First bytes of a response. */
export function openingFrames({ stream, cursor, connectionId, heartbeatInterval }: Opening): Buffer {
  return Buffer.from(
    `retry: ${retryMs}\n\n: pgbus stream open since_id=${cursor} stream=${singleLine(stream)}\n\n` +
      control('connected', { connectionId, heartbeat: heartbeatInterval }),
  )
}

export function replayStartFrame(fromId: number): Buffer {
  return Buffer.from(control('replay-start', { fromId }))
}

export function replayEndFrame(toId: number, count: number): Buffer {
  return Buffer.from(control('replay-end', { toId, count }))
}

export interface Gap {
  lastSeenId: number
  /** Lowest id that may still be stored; null when nothing was removed. */
  archiveOldestId: number | null
  /** `expired`: messages were removed before the client saw them. `reset`: ids have started again. */
  reason: 'expired' | 'reset'
}

export function gapFrame({ lastSeenId, archiveOldestId, reason }: Gap): Buffer {
  return Buffer.from(control('gap-detected', { lastSeenId, archiveOldestId, reason }))
}

export function durableFrame(id: number, event: unknown, html: string): Buffer {
  return Buffer.from(`id: ${id}\n${message(event, html)}`)
}

export function ephemeralFrame(event: unknown, html: string): Buffer {
  return Buffer.from(message(event, html))
}

export function heartbeatFrame(unixSeconds: number): Buffer {
  return Buffer.from(`: heartbeat ${unixSeconds}\n\n`)
}

export function shutdownFrame(reason: string, retry: number): Buffer {
  return Buffer.from(`retry: ${retry}\n${control('shutdown', { reason })}`)
}

function control(name: string, detail: object): string {
  return `event: pgbus:${name}\ndata: ${JSON.stringify(detail)}\n\n`
}

function message(event: unknown, html: string): string {
  let text = `event: ${eventName(event)}\n`
  for (const line of html.split(/\r\n|\r|\n/)) text += `data: ${line}\n`
  return `${text}\n`
}

/** Another client may have stored anything as an event name. */
function eventName(event: unknown): string {
  const usable =
    typeof event === 'string' &&
    event.trim() !== '' &&
    !/[\r\n]/.test(event) &&
    !event.trimStart().startsWith('pgbus:')
  return usable ? event : defaultEvent
}

function singleLine(text: string): string {
  return text.replace(/[\r\n]/g, '')
}
