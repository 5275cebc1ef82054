import type { ServerResponse } from 'node:http'
import type { Pgbus } from '../../lib/pgbus.ts'
import type { NodeRequest, NodeResponse } from './door.ts'

export interface HealthHandlerOptions {
  pgbus: Pgbus
  /** Path under which probes reach it. Default `/pgbus/health`. */
  prefix?: string | undefined
}

/** Answers requests below its prefix. False: the request is not for it, and was not touched. */
export type HealthHandler = (request: NodeRequest, response: NodeResponse) => boolean

export const healthPrefix = '/pgbus/health'

/**
 * `/livez` and `/readyz` of the whole cluster for a server of `node:http`, `node:https` or `node:http2`.
 * @throws TypeError
 */
export function createHealthHandler({ pgbus, prefix = healthPrefix }: HealthHandlerOptions): HealthHandler {
  const base = prefix.replace(/\/+$/, '')
  if (!/^(\/[A-Za-z0-9._~-]+)+$/.test(base))
    throw new TypeError(
      `prefix should be a path such as "${healthPrefix}", instead got ${JSON.stringify(prefix)}`,
    )
  const answer = healthAnswerer(pgbus)
  return (request, response) => {
    const [path = ''] = (request.url ?? '').split('?', 1)
    if (path !== base && !path.startsWith(`${base}/`)) return false
    answer(request, response, path.slice(base.length))
    return true
  }
}

/** Answers one request; `path` from the slash behind the prefix on. */
export function healthAnswerer(
  pgbus: Pgbus,
): (request: NodeRequest, response: NodeResponse, path: string) => void {
  if (!pgbus?.healthProbe) throw new TypeError('the health handler needs { pgbus }, made by createPgbus()')
  return (request, response, path) => void answer(pgbus, request, response as ServerResponse, path)
}

async function answer(
  pgbus: Pgbus,
  request: NodeRequest,
  response: ServerResponse,
  path: string,
): Promise<void> {
  const { code, headers, body } = await pgbus.healthProbe.answer(request.method, path)
  // A prober that gave up meanwhile.
  if (response.destroyed) return
  response.writeHead(code, { ...headers, 'Content-Length': Buffer.byteLength(body) })
  response.end(body)
}
