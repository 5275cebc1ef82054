import { inspect } from 'node:util'
import type { ResolvedConfig } from './options.ts'
import { isPlain } from './plain.ts'

const replacement = '[REDACTED]'
const secretKey = /pass|secret|token|credential|private.?key/i
const urlKey = /databaseurl$/i
const anyUrl = /^[a-z][a-z0-9+.-]*:\/\//i
const tlsSecrets = new Set(['key', 'passphrase', 'pfx'])
const longestShown = 80
/** Deeper than any configuration; an object that holds itself ends here. */
const deepest = 8

/** A copy of a configuration without its secrets, fit for JSON. Host and database of a URL stay visible. */
export function redactConfig(config: object): Record<string, unknown> {
  return redactObject(config, []) as Record<string, unknown>
}

/** A value as it may be shown in an error: shortened, and replaced when its key is a secret's. */
export function showValue(path: string, value: unknown): string {
  const shown = redactValue(value, path.split('.'))
  return inspect(shown, { depth: 3, compact: true, breakLength: Number.POSITIVE_INFINITY }).slice(
    0,
    longestShown,
  )
}

/** A database URL without its password. What cannot be understood is not shown at all. */
export function redactUrl(text: string): string {
  // Without `//` the URL class takes a host for a scheme, and a password for a path.
  if (anyUrl.test(text) && URL.canParse(text)) {
    const url = new URL(text)
    // An '@' further on: the password may hold a '/', '?' or '#' and continue in what looks like the path.
    if (!`${url.pathname}${url.search}${url.hash}`.includes('@')) {
      if (url.password !== '') url.password = replacement
      for (const name of [...url.searchParams.keys()])
        if (secretKey.test(name)) url.searchParams.set(name, replacement)
      // The URL class percent-encodes the brackets of the replacement.
      return url.toString().replaceAll('%5BREDACTED%5D', replacement)
    }
  }
  // Everything between the user and the last '@' goes, and so do parameters.
  const match = /^([a-z][a-z0-9+.-]*:\/\/[^:/@]*):.*@([^@?#]*)[^@]*$/is.exec(text)
  return match ? `${match[1]}:${replacement}@${match[2]}` : replacement
}

/** Text for others to read, without any of the secrets that the configuration holds. */
export function redactText(
  text: string,
  {
    databaseUrl,
    connection,
    notify,
    streams,
  }: Pick<ResolvedConfig, 'databaseUrl' | 'connection' | 'notify' | 'streams'>,
): string {
  const urls = [databaseUrl, notify.databaseUrl, streams.databaseUrl, streams.pool.databaseUrl]
  const { password } = connection
  const secrets = [
    ...urls.flatMap(passwordsOf),
    typeof password === 'string' ? password : '',
    ...streams.secret,
  ]
  // Longer ones first: one may be a part of another.
  return secrets
    .filter(secret => secret !== '')
    .sort((a, b) => b.length - a.length)
    .reduce((safe, secret) => safe.replaceAll(secret, replacement), text)
}

/** The password of a URL as it is written there, and as the server gets it. */
function passwordsOf(url: string | null): string[] {
  if (url === null || !URL.canParse(url)) return []
  const { password } = new URL(url)
  try {
    return [password, decodeURIComponent(password)]
  } catch {
    return [password]
  }
}

function redactObject(value: object, path: readonly string[]): unknown {
  if (path.length > deepest) return '[…]'
  if (Array.isArray(value)) return value.map((item, index) => redactValue(item, [...path, String(index)]))
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, redactValue(item, [...path, key])]),
  )
}

function redactValue(value: unknown, path: readonly string[]): unknown {
  const key = path.at(-1) ?? ''
  if (value === null || value === undefined || typeof value === 'boolean') return value
  if (urlKey.test(key) && typeof value === 'string') return redactUrl(value)
  if (secretKey.test(key) || ((path.includes('ssl') || path.includes('tls')) && tlsSecrets.has(key)))
    return Array.isArray(value) && value.length === 0 ? value : replacement
  if (typeof value === 'string') return anyUrl.test(value) && value.includes('@') ? redactUrl(value) : value
  if (typeof value === 'function') return `[function ${value.name}]`
  if (typeof value !== 'object') return value
  if (value instanceof RegExp) return String(value)
  if (path.join('.') === 'log.logger') return '[logger]'
  if (isPlain(value)) return redactObject(value, path)
  // An instance may hold anything.
  return `[${(value as object).constructor?.name ?? 'object'}]`
}
