import type { Cors } from '../config/options.ts'

const preflightHeaders = {
  'access-control-allow-methods': 'GET',
  'access-control-allow-headers': 'Last-Event-ID, Cache-Control, Accept, X-Pgbus-Connection',
  'access-control-max-age': '600',
}

/** Headers of an answer to this origin; none for a page of the same origin or of one that may not. */
export function corsHeaders(cors: false | Cors, origin: string | undefined): Record<string, string> {
  if (cors === false) return {}
  // A cache must not give one origin the answer for another.
  const vary = { vary: 'Origin' }
  if (origin === undefined || !isAllowed(cors.origin, origin)) return vary
  return {
    ...vary,
    'access-control-allow-origin': origin,
    ...(cors.credentials ? { 'access-control-allow-credentials': 'true' } : {}),
  }
}

/** Headers of the answer to the question that a browser asks before the request. */
export function preflight(leave: Record<string, string>): Record<string, string> {
  return { ...leave, ...preflightHeaders }
}

function isAllowed(allowed: Cors['origin'], origin: string): boolean {
  // Fails closed: only a plain yes counts.
  if (typeof allowed === 'function') return (allowed(origin) as unknown) === true
  const parts: readonly (string | RegExp)[] =
    typeof allowed === 'string' || allowed instanceof RegExp ? [allowed] : allowed
  return parts.some(part =>
    typeof part === 'string' ? part === '*' || part === origin : origin.search(part) !== -1,
  )
}
