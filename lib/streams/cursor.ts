import { InvalidCursorError } from '../core/errors.ts'

export interface CursorSources {
  /** Values of the query parameter `since`. */
  since: readonly string[]
  /** The header `Last-Event-ID`. */
  lastEventId: string | undefined
}

/**
 * Where a connection starts: the highest of what the page and the browser say, 0 when both are silent. A page
 * that was restored from a cache knows less than its browser, a new page knows more.
 * @throws InvalidCursorError
 */
export function readCursor({ since, lastEventId }: CursorSources): number {
  let cursor = 0
  for (const text of since) cursor = Math.max(cursor, parseId(text, 'since'))
  // Another server of this protocol numbers ephemeral frames downwards from -1. Browsers keep such an id.
  if (lastEventId !== undefined && !/^-\d+$/.test(lastEventId)) {
    cursor = Math.max(cursor, parseId(lastEventId, 'Last-Event-ID'))
  }
  return cursor
}

function parseId(text: string, source: string): number {
  if (text.trim() === '') return 0
  const id = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN
  if (Number.isSafeInteger(id)) return id
  throw new InvalidCursorError(`${source} should be a message id`)
}
