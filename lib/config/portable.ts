import { loadConfig } from './load.ts'
import type { PgbusConfig, ResolvedConfig } from './options.ts'
import { resolveLayers } from './resolve.ts'

/** How a pattern travels between processes. */
interface PortablePattern {
  source: string
  flags: string
}

/**
 * A configuration as plain data for another process of ours. Functions cannot travel: they are read again
 * from the configuration file. Everything else comes from here, so that a child never disagrees with its
 * parent because a variable or the file changed meanwhile.
 */
export function toPortable(config: ResolvedConfig): Record<string, unknown> {
  return encode(config) as Record<string, unknown>
}

/** The other end of {@link toPortable}; `file` is the configuration file that holds the functions. */
export async function fromPortable(
  raw: Record<string, unknown>,
  file: string | null,
): Promise<ResolvedConfig> {
  const data = decode(raw) as Record<string, Record<string, unknown>>
  const own = file === null ? null : (await loadConfig({ file, env: {} }).catch(() => null))?.config
  if (own) {
    if (typeof own.connection.password === 'function')
      data.connection = { ...data.connection, password: own.connection.password }
    data.log = { ...data.log, logger: own.log.logger }
    data.errorReporters = own.errorReporters as unknown as Record<string, unknown>
  }
  return resolveLayers({ overrides: data as PgbusConfig, env: {}, file: {} }).config
}

function encode(value: unknown): unknown {
  if (value instanceof RegExp)
    return { $pattern: { source: value.source, flags: value.flags } satisfies PortablePattern }
  if (typeof value === 'function') return undefined
  if (Array.isArray(value)) return value.map(encode).filter(item => item !== undefined)
  if (typeof value !== 'object' || value === null || Buffer.isBuffer(value)) return value
  if (Object.getPrototypeOf(value) !== Object.prototype) return undefined
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, encode(item)]))
}

function decode(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(decode)
  if (typeof value !== 'object' || value === null || Buffer.isBuffer(value)) return value
  const pattern = (value as { $pattern?: PortablePattern }).$pattern
  if (pattern) return new RegExp(pattern.source, pattern.flags)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decode(item)]))
}
