import { ConfigurationError } from '../core/errors.ts'
import { readConfigFile } from './file.ts'
import { freezeConfig } from './freeze.ts'
import type { ResolvedConfig } from './options.ts'
import { isPlain } from './plain.ts'

/** Where functions may stand, and what a process goes on with when it cannot get them. */
const functionPaths: readonly [path: string, fallback: unknown][] = [
  ['connection.password', undefined],
  ['connection.ssl', undefined],
  ['log.logger', null],
  ['errorReporters', []],
]

/**
 * A configuration as plain data for another process of ours. What holds functions cannot travel and is only
 * named: the other process reads it from the configuration file. All the rest comes from here, so a child
 * never disagrees with its parent because a variable or the file changed meanwhile.
 */
export function toPortable(config: ResolvedConfig): Record<string, unknown> {
  const fromFile = functionPaths.map(([path]) => path).filter(path => holdsFunction(valueAt(config, path)))
  return { fromFile, config: encode(config, '', fromFile) }
}

/**
 * The other end of {@link toPortable}.
 * @param file - the configuration file that holds the functions; read only when there are any.
 * @throws ConfigurationError when the file cannot be read, or no longer holds a function that is needed to connect.
 */
export async function fromPortable(
  raw: Record<string, unknown>,
  file: string | null,
): Promise<ResolvedConfig> {
  const { fromFile, config } = raw as { fromFile: string[]; config: unknown }
  const values = decode(config) as Record<string, unknown>
  const content = file === null || fromFile.length === 0 ? {} : await readConfigFile(file, process.env)
  for (const [path, fallback] of functionPaths) {
    if (!fromFile.includes(path)) continue
    const value = valueAt(content, path) ?? fallback
    if (value === undefined) {
      const where = file === null ? 'and there is none' : `and ${file} does not set it`
      throw new ConfigurationError(
        `${path} holds a function, which other processes read from the configuration file, ${where}`,
      )
    }
    setAt(values, path, value)
  }
  return freezeConfig(values)
}

function encode(value: unknown, path: string, skip: readonly string[]): unknown {
  if (value instanceof RegExp) return { $pattern: { source: value.source, flags: value.flags } }
  if (value instanceof Uint8Array) return { $bytes: Buffer.from(value).toString('base64') }
  if (Array.isArray(value)) return value.map((item, index) => encode(item, `${path}.${index}`, skip))
  if (!isPlain(value)) return value
  const encoded: Record<string, unknown> = {}
  for (const [key, item] of Object.entries(value)) {
    const own = path === '' ? key : `${path}.${key}`
    if (!skip.includes(own)) encoded[key] = encode(item, own, skip)
  }
  return encoded
}

function decode(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(decode)
  if (!isPlain(value)) return value
  const { $pattern, $bytes } = value as { $pattern?: { source: string; flags: string }; $bytes?: string }
  if ($pattern !== undefined) return new RegExp($pattern.source, $pattern.flags)
  if ($bytes !== undefined) return Buffer.from($bytes, 'base64')
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decode(item)]))
}

function holdsFunction(value: unknown): boolean {
  if (typeof value === 'function') return true
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return false
  // A class instance may hide its functions on the prototype.
  return !isPlain(value) || Object.values(value).some(holdsFunction)
}

function valueAt(root: unknown, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((level, part) => (level as Record<string, unknown> | null | undefined)?.[part], root)
}

function setAt(root: Record<string, unknown>, path: string, value: unknown): void {
  const [group, key] = path.split('.') as [string, string?]
  if (key === undefined) root[group] = value
  else root[group] = { ...(root[group] as object), [key]: value }
}
