import { closest, distance } from 'fastest-levenshtein'
import type { ConfigIssue } from '../core/errors.ts'
import { showValue } from './redact.ts'
import type { Rule } from './rules.ts'
import { keys, variableName } from './schema.ts'

/** Variables with our prefix that are not keys. */
const reserved = /^PGBUS_(CONFIG|ENV|STREAMS_HUB_SOCKET|TEST_.*|WEB_INDEX)$/

/** What platforms set without knowing us, and what the web cluster tells its workers. Our own names win. */
const aliases: readonly [variable: string, path: string][] = [
  ['WEB_CONCURRENCY', 'web.workers'],
  ['PORT', 'web.port'],
  ['HOST', 'web.host'],
  ['PGBUS_STREAMS_HUB_SOCKET', 'web.hubSocket'],
]

const furthest = 3

export interface Environment {
  /** Values by key path. */
  values: Map<string, unknown>
  /** The variable that each of them came from. */
  variables: Map<string, string>
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
}

/** The keys that the environment sets, read by the type of each key. An empty variable is not set. */
export function readEnvironment(env: NodeJS.ProcessEnv): Environment {
  const result: Environment = { values: new Map(), variables: new Map(), issues: [], warnings: [] }
  const own = keys.filter(key => key.env).map(key => [variableName(key.path), key.path] as const)
  for (const [variable, path] of [...own, ...aliases]) {
    const text = env[variable]
    if (text === undefined || text === '' || result.variables.has(path)) continue
    result.variables.set(path, variable)
    const parsed = parseVariable(text, keys.find(key => key.path === path)?.rule.env ?? 'text')
    if ('value' in parsed) result.values.set(path, parsed.value)
    else result.issues.push({ path: `env ${variable}`, rule: parsed.rule, received: showValue(path, text) })
  }
  const names = own.map(([variable]) => variable)
  for (const name of Object.keys(env)) {
    if (!name.startsWith('PGBUS_') || names.includes(name) || reserved.test(name)) continue
    const near = closest(name, names)
    const hint = distance(name, near) <= furthest ? `did you mean ${near}?` : undefined
    result.warnings.push({ path: `env ${name}`, rule: 'is not a configuration key', received: '', hint })
  }
  return result
}

/** Text as the kind of value that a key takes. What is no number stays text, and the key's own rule refuses it. */
function parseVariable(text: string, kind: Rule['env']): { value: unknown } | { rule: string } {
  if (text === 'null') return { value: null }
  switch (kind) {
    case 'text':
      return { value: text }
    case 'textOrJson':
      return { value: text.startsWith('[') ? (parseJson(text) ?? text) : text }
    case 'number':
    case 'duration':
      return { value: /^\s*-?\d+(\.\d+)?\s*$/.test(text) ? Number(text) : text }
    case 'boolean':
      if (/^(1|true|yes|on)$/i.test(text)) return { value: true }
      if (/^(0|false|no|off)$/i.test(text)) return { value: false }
      return { rule: 'must be true or false' }
    case 'list': {
      const items = text.split(',').map(item => item.trim())
      return { value: items.filter(item => item !== '') }
    }
    case 'json': {
      const value = parseJson(text)
      return value === undefined ? { rule: 'must be JSON' } : { value }
    }
    default:
      return kind satisfies never
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
