import { inspect } from 'node:util'

const replacement = '[REDACTED]'
const secretKey = /pass|secret|token|credential|private.?key/i
const urlKey = /databaseurl$/i
const tlsSecrets = new Set(['key', 'passphrase', 'pfx'])

/** A copy of a configuration without its secrets. Host and database of a URL stay visible. */
export function redactConfig(config: object): Record<string, unknown> {
  return redactObject(config, '') as Record<string, unknown>
}

/** A value as it may be shown in an error: shortened, and replaced when its key is a secret's. */
export function showValue(path: string, value: unknown): string {
  return inspect(redactValue(path.split('.').at(-1) ?? '', value, path), {
    depth: 3,
    breakLength: Number.POSITIVE_INFINITY,
  }).slice(0, 80)
}

/** A database URL without its password. What cannot be understood is not shown at all. */
export function redactUrl(text: string): string {
  if (URL.canParse(text)) {
    const url = new URL(text)
    if (url.password !== '') url.password = replacement
    for (const name of [...url.searchParams.keys()])
      if (secretKey.test(name)) url.searchParams.set(name, replacement)
    // The URL class percent-encodes the brackets of the replacement.
    return url.toString().replaceAll('%5BREDACTED%5D', replacement)
  }
  // A password may hold ':', '/' and '@': everything between the user and the last '@' goes.
  const match = /^([a-z]+:\/\/[^:/@]*):.*@([^@]*)$/is.exec(text)
  return match ? `${match[1]}:${replacement}@${match[2]?.replace(/\?.*$/s, '')}` : replacement
}

function redactObject(value: object, path: string): unknown {
  if (Array.isArray(value))
    return value.map((item, index) => redactValue(String(index), item, `${path}[${index}]`))
  if (Object.getPrototypeOf(value) !== Object.prototype) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [
      key,
      redactValue(key, item, path === '' ? key : `${path}.${key}`),
    ]),
  )
}

function redactValue(key: string, value: unknown, path: string): unknown {
  if (value === null || value === undefined || typeof value === 'boolean') return value
  if (urlKey.test(key) && typeof value === 'string') return redactUrl(value)
  if (secretKey.test(key) || (path.includes('.ssl.') && tlsSecrets.has(key)))
    return Array.isArray(value) && value.length === 0 ? value : replacement
  if (typeof value === 'string' && /^postgres(ql)?:/i.test(value)) return redactUrl(value)
  if (path === 'log.logger') return '[logger]'
  return typeof value === 'object' ? redactObject(value, path) : value
}
