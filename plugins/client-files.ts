import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import type { IncomingHttpHeaders } from 'node:http'
import { fileURLToPath } from 'node:url'

/** One file of the browser client, with the headers of its answer. */
export interface ClientFile {
  readonly body: Buffer
  readonly headers: Readonly<Record<string, string>>
  /** The browser has this version. */
  isKnown(request: { headers: IncomingHttpHeaders }): boolean
}

/** Where the compiled browser client lies, seen from the compiled form of this module. */
const folder = fileURLToPath(new URL('../lib/client/', import.meta.url))

/**
 * The browser client by file name, read once: no request ever becomes a path. Browsers ask each time whether a
 * file has changed, since its URL does not change with it.
 */
export function readClientFiles(): ReadonlyMap<string, ClientFile> {
  const names = readdirSync(folder).filter(name => name.endsWith('.js'))
  return new Map(names.map(name => [name, clientFile(readFileSync(folder + name))]))
}

function clientFile(body: Buffer): ClientFile {
  const etag = `"${createHash('sha256').update(body).digest('hex').slice(0, 32)}"`
  return {
    body,
    headers: {
      etag,
      'cache-control': 'public, no-cache',
      'x-content-type-options': 'nosniff',
      'content-type': 'text/javascript; charset=utf-8',
    },
    isKnown({ headers }) {
      const known = headers['if-none-match']?.split(',').map(tag => tag.trim().replace(/^W\//, ''))
      return known !== undefined && (known.includes(etag) || known.includes('*'))
    },
  }
}
