import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { FastifyInstance } from 'fastify'

interface ClientFile {
  name: string
  body: Buffer
  etag: string
}

/** Where the compiled browser client lies, seen from the compiled form of this module. */
const folder = fileURLToPath(new URL('../../lib/client/', import.meta.url))

/**
 * Serves the browser client at `<path>/<file>.js`. The files are read once, and each has a route of its own, so
 * no request ever becomes a path. Browsers ask each time whether a file has changed: its URL does not change
 * with it.
 */
export function serveClientFiles(fastify: FastifyInstance, path: string): void {
  for (const { name, body, etag } of readFiles()) {
    fastify.get(`${path}/${name}`, (request, reply) => {
      reply.header('etag', etag).header('cache-control', 'public, no-cache')
      const known = request.headers['if-none-match']?.split(',').map(tag => tag.trim().replace(/^W\//, ''))
      if (known?.includes(etag) || known?.includes('*')) return reply.code(304).send()
      return reply
        .header('x-content-type-options', 'nosniff')
        .type('text/javascript; charset=utf-8')
        .send(body)
    })
  }
}

function readFiles(): ClientFile[] {
  return readdirSync(folder)
    .filter(name => name.endsWith('.js'))
    .map(name => {
      const body = readFileSync(folder + name)
      return { name, body, etag: `"${createHash('sha256').update(body).digest('hex').slice(0, 32)}"` }
    })
}
