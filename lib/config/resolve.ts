import { type ConfigIssue, ConfigurationError } from '../core/errors.ts'
import { crossCheck } from './cross-check.ts'
import { readEnvironment } from './env.ts'
import { freezeConfig } from './freeze.ts'
import { hintFor } from './hints.ts'
import type { PgbusConfig, ResolvedConfig } from './options.ts'
import { showValue } from './redact.ts'
import type { Checked } from './rules.ts'
import { isGroup, type Key, keyByPath, keys } from './schema.ts'
import { resolveWorkers, type WorkerDefaults } from './workers.ts'

export type Source = 'overrides' | 'environment' | 'file' | 'default'

export interface Resolution {
  config: ResolvedConfig
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
  sources: ReadonlyMap<string, Source>
}

const killGraceMs = 5_000
const unreadGraceMs = 90_000

/**
 * Options, then `PGBUS_*` variables, then `DATABASE_URL`, then defaults.
 * @throws ConfigurationError naming every problem at once.
 */
export function resolveConfig(
  options: PgbusConfig = {},
  env: NodeJS.ProcessEnv = process.env,
): ResolvedConfig {
  const { config, issues } = resolveLayers({ overrides: options, env, file: {} })
  assertValid(issues)
  return config
}

/** What is wrong, and what is merely odd, with an object. Never throws, reads no environment. */
export function validateConfig(config: unknown): { issues: ConfigIssue[]; warnings: ConfigIssue[] } {
  const refuse = (rule: string) => ({
    issues: [{ path: '', rule, received: showValue('', config) }],
    warnings: [],
  })
  try {
    if (typeof config !== 'object' || config === null || Array.isArray(config))
      return refuse('the configuration must be an object')
    const { issues, warnings } = resolveLayers({ overrides: config, env: {}, file: {} })
    return { issues, warnings }
  } catch {
    // A getter that throws, or an object that holds itself.
    return { issues: [{ path: '', rule: 'the configuration cannot be read', received: '' }], warnings: [] }
  }
}

/** @throws ConfigurationError unless there are no issues. */
export function assertValid(issues: readonly ConfigIssue[]): void {
  if (issues.length === 0) return
  const lines = issues.map(({ path, rule, received, hint }) => {
    const got = received === '' || rule === unknownKey ? [] : [`got ${received}`]
    const details = [...got, ...(hint === undefined ? [] : [hint])].join('; ')
    return `  ${path === '' ? '' : `${path}: `}${rule}${details === '' ? '' : ` (${details})`}`
  })
  const count = `${issues.length} problem${issues.length === 1 ? '' : 's'}`
  throw new ConfigurationError(`Invalid pgbus configuration (${count})\n${lines.join('\n')}`, { issues })
}

const unknownKey = 'unknown key'

/** Merges, checks and freezes. Every problem of every layer is found; a key with a problem has its default. */
export function resolveLayers(input: {
  overrides: object
  env: NodeJS.ProcessEnv
  file: object
}): Resolution {
  const environment = readEnvironment(input.env)
  const issues: ConfigIssue[] = [...environment.issues]
  const warnings: ConfigIssue[] = [...environment.warnings]
  const overrides = flatten(input.overrides, issues)
  const file = flatten(input.file, issues)
  const layers: [Source, ReadonlyMap<string, unknown>][] = [
    ['overrides', overrides],
    ['environment', environment.values],
    ['file', file],
  ]
  if (input.env.DATABASE_URL && !layers.some(([, values]) => namesDatabase(values))) {
    environment.values.set('databaseUrl', input.env.DATABASE_URL)
    environment.variables.set('databaseUrl', 'DATABASE_URL')
    overrides.delete('databaseUrl')
  }

  const sources = new Map<string, Source>()
  const values = new Map<string, unknown>()
  for (const key of keys) {
    const [source, layer] = layers.find(([, own]) => own.get(key.path) !== undefined) ?? ['default']
    sources.set(key.path, source)
    const given = layer === undefined ? key.default : layer.get(key.path)
    const checked = key.rule.check(given)
    const about = {
      path: source === 'environment' ? `env ${environment.variables.get(key.path)}` : key.path,
      received: showValue(key.path, given),
    }
    if ('rule' in checked) issues.push({ ...about, rule: checked.rule, hint: checked.hint })
    else if (checked.warning !== undefined) warnings.push({ ...about, rule: checked.warning })
    values.set(key.path, 'rule' in checked ? defaultOf(key) : checked.value)
  }
  const config = assemble(values, issues)
  crossCheck(config, { issues, warnings, sources, production: input.env.NODE_ENV === 'production' })
  return { config: freezeConfig(config), issues, warnings, sources }
}

/** Key paths with their values; what is no key becomes an issue. */
function flatten(
  config: object,
  issues: ConfigIssue[],
  prefix = '',
  into = new Map<string, unknown>(),
): Map<string, unknown> {
  for (const [name, value] of Object.entries(config)) {
    const path = prefix === '' ? name : `${prefix}.${name}`
    if (value === undefined) continue
    const received = showValue(path, value)
    if (keyByPath.has(path)) into.set(path, value)
    else if (!isGroup(path)) issues.push({ path, rule: unknownKey, received, hint: hintFor(path) })
    else if (typeof value === 'object' && value !== null && !Array.isArray(value))
      flatten(value, issues, path, into)
    else issues.push({ path, rule: 'must be an object of keys', received })
  }
  return into
}

const connectionKeys = [
  'databaseUrl',
  ...['host', 'port', 'database', 'user', 'password'].map(part => `connection.${part}`),
]

function namesDatabase(values: ReadonlyMap<string, unknown>): boolean {
  return connectionKeys.some(path => (values.get(path) ?? null) !== null)
}

function defaultOf(key: Key): unknown {
  const checked: Checked = key.rule.check(key.default)
  return 'value' in checked ? checked.value : key.default
}

function assemble(values: ReadonlyMap<string, unknown>, issues: ConfigIssue[]): ResolvedConfig {
  const root: Record<string, unknown> = {}
  for (const [path, value] of values) {
    const parts = path.split('.')
    const last = parts.pop() as string
    let level = root
    for (const part of parts) {
      level[part] ??= {}
      level = level[part] as Record<string, unknown>
    }
    level[last] = value
  }
  root.workers = resolveWorkers(values.get('workers'), root as unknown as WorkerDefaults, issues)
  root.shutdownTimeout = values.get('shutdownTimeout') ?? Number(root.drainTimeout) + killGraceMs
  const health = root.health as Record<string, unknown>
  health.unreadGrace ??= root.stallThreshold ?? unreadGraceMs
  return root as unknown as ResolvedConfig
}
