/** What was given a name by a module of the application. */
export interface Definition {
  readonly handler: unknown
  /** File and position of the definition, as {@link callSite} tells it. */
  readonly place: string
}

/**
 * Whether a name that is taken may be taken again: the same module evaluated again (a reload, or the same file under
 * another URL) defines its things again. Two handlers that differ within one evaluation, or come from two files, are
 * a mistake.
 */
export function isSameDefinition(known: Definition, next: Definition): boolean {
  if (known.handler === next.handler) return true
  const [knownUrl, nextUrl] = [withoutPosition(known.place), withoutPosition(next.place)]
  if (withoutQuery(knownUrl) !== withoutQuery(nextUrl)) return false
  return knownUrl !== nextUrl || String(known.handler) === String(next.handler)
}

/** `url:line:column` of whoever called `callee`. */
export function callSite(callee: (...args: never[]) => unknown): string {
  const trace: { stack?: string } = {}
  Error.captureStackTrace(trace, callee)
  const frame = trace.stack?.split('\n')[1]?.trim() ?? ''
  return /\(([^()]+)\)$/.exec(frame)?.[1] ?? frame.replace(/^at (async )?/, '')
}

function withoutPosition(place: string): string {
  return place.replace(/:\d+:\d+$/, '')
}

function withoutQuery(url: string): string {
  return url.replace(/[?#].*$/, '')
}
