import { closest, distance } from 'fastest-levenshtein'
import type { ConfigIssue } from '../core/errors.ts'
import { showValue } from './redact.ts'
import type { Rule } from './rules.ts'
import { keys, variableName } from './schema.ts'

/** Variables with our prefix that are not keys. */
const reserved =
  /^PGBUS_(CONFIG|ENV|MCP_AUTH_TOKEN|STREAMS_HUB_SOCKET|DASHBOARD_TOKEN|HEALTH_PORT|CHILD_.*|TEST_.*|WEB_INDEX|WEB_PHASE)$/

export interface Layer {
  /** Values by key path. */
  values: Map<string, unknown>
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
}

/** The keys that the environment sets, parsed by the type of each key. An empty variable is not set. */
export function readEnvironment(env: NodeJS.ProcessEnv): Layer {
  const layer: Layer = { values: new Map(), issues: [], warnings: [] }
  const names = new Map(keys.filter(key => key.env).map(key => [variableName(key.path), key]))
  for (const [name, key] of names) {
    const text = env[name]
    if (text === undefined || text === '') continue
    const parsed = parse(text, key.rule)
    if ('value' in parsed) layer.values.set(key.path, parsed.value)
    else layer.issues.push({ path: `env ${name}`, rule: parsed.rule, received: showValue(key.path, text) })
  }
  // What container platforms set without knowing us; our own variables win.
  alias('web.workers', env.WEB_CONCURRENCY)
  alias('web.port', env.PORT === undefined ? undefined : /^\d+$/.test(env.PORT) ? Number(env.PORT) : env.PORT)
  alias('web.host', env.HOST)
  alias('web.hubSocket', env.PGBUS_STREAMS_HUB_SOCKET)
  for (const name of Object.keys(env)) {
    if (!name.startsWith('PGBUS_') || names.has(name) || reserved.test(name)) continue
    const near = closest(name, [...names.keys()])
    layer.warnings.push({
      path: `env ${name}`,
      rule: 'is not a configuration key and is ignored',
      received: '',
      hint: distance(name, near) <= 3 ? `did you mean ${near}?` : undefined,
    })
  }
  return layer

  function alias(path: string, value: unknown): void {
    if (value !== undefined && value !== '' && !layer.values.has(path)) layer.values.set(path, value)
  }
}

function parse(text: string, rule: Rule): { value: unknown } | { rule: string } {
  if (text === 'null') return { value: null }
  switch (rule.env) {
    case 'text':
      return { value: text.startsWith('[') ? parseJson(text) : text }
    case 'number':
      return { value: Number.isNaN(Number(text)) ? text : Number(text) }
    case 'duration':
      return { value: /^\d+(\.\d+)?$/.test(text) ? Number(text) : text }
    case 'boolean':
      if (/^(1|true|yes|on)$/i.test(text)) return { value: true }
      if (/^(0|false|no|off)$/i.test(text)) return { value: false }
      return { rule: 'must be true or false' }
    case 'list':
      return { value: text.split(',').map(item => item.trim()) }
    case 'json': {
      const value = parseJson(text)
      return value === undefined ? { rule: 'must be JSON' } : { value }
    }
    default:
      return rule.env satisfies never
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
