import { inspect } from 'node:util'
import type { ResolvedConfig } from './options.ts'
import { isPlain } from './plain.ts'
import { redactConfig } from './redact.ts'

/**
 * The configuration as everybody gets it: frozen all the way down, and showing itself without its secrets.
 * Plain objects and arrays are copies, so nothing of the caller is frozen; loggers, patterns, buffers and
 * functions are the caller's own and left as they are.
 */
export function freezeConfig(values: object): ResolvedConfig {
  const config = copy(values) as ResolvedConfig
  Object.defineProperty(config, 'toJSON', { value: () => redactConfig(config) })
  Object.defineProperty(config, inspect.custom, { value: () => redactConfig(config) })
  return Object.freeze(config)
}

function copy(value: object): object {
  const inner = (item: unknown) => (isPlain(item) ? Object.freeze(copy(item)) : item)
  if (Array.isArray(value)) return value.map(inner)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, inner(item)]))
}
