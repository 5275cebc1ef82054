/** The HTTP contract that all our probes share, whoever serves them. */

export interface ProbeReply {
  code: number
  body: string
  headers: Readonly<Record<string, string>>
}

const text = { 'Content-Type': 'text/plain', 'Cache-Control': 'no-store' }
const json = { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' }

/**
 * What is answered to a request of this method for `path` (from the slash on, without the query). `ready`: that
 * depends on the state of what is probed; see {@link readyReply}.
 *
 * Liveness depends on nothing: an orchestrator restarts what does not live, and no restart brings a database back.
 */
export function routeProbe(method: string | undefined, path: string | undefined): ProbeReply | 'ready' {
  if (path !== '/livez' && path !== '/readyz') return { code: 404, body: 'pgbus: not found', headers: text }
  if (method !== 'GET')
    return { code: 405, body: 'pgbus: method not allowed', headers: { ...text, Allow: 'GET' } }
  return path === '/readyz' ? 'ready' : { code: 200, body: 'ok', headers: text }
}

export function readyReply(isReady: boolean, state: object): ProbeReply {
  return { code: isReady ? 200 : 503, body: JSON.stringify(state), headers: json }
}
