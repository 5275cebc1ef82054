import { inspect } from 'node:util'
import { closest, distance } from 'fastest-levenshtein'
import { type ConfigIssue, ConfigurationError } from '../core/errors.ts'
import { readEnvironment } from './env.ts'
import type { PgbusConfig, ResolvedConfig } from './options.ts'
import { redactConfig, showValue } from './redact.ts'
import { isGroup, keyByPath, keys } from './schema.ts'
import { resolveWorkers } from './workers.ts'

/** Layers of values by key path, most important first. */
type Layers = readonly ReadonlyMap<string, unknown>[]

export interface Resolution {
  config: ResolvedConfig
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
  /** Which layer each key came from. */
  sources: Map<string, number>
}

const longestQueueName = 47

/**
 * Options, then `PGBUS_*` variables, then `DATABASE_URL`, then defaults. Pure but for `env`.
 * @throws ConfigurationError naming every problem at once.
 */
export function resolveConfig(
  options: PgbusConfig = {},
  env: NodeJS.ProcessEnv = process.env,
): ResolvedConfig {
  const resolution = resolveLayers({ overrides: options, env, file: {} })
  if (resolution.issues.length > 0) throw configurationError(resolution.issues)
  return resolution.config
}

/** What is wrong, and what is merely odd, with an object. Never throws, reads no environment. */
export function validateConfig(config: unknown): { issues: ConfigIssue[]; warnings: ConfigIssue[] } {
  if (typeof config !== 'object' || config === null || Array.isArray(config)) {
    return {
      issues: [{ path: '', rule: 'must be an object', received: showValue('', config) }],
      warnings: [],
    }
  }
  const { issues, warnings } = resolveLayers({ overrides: config as PgbusConfig, env: {}, file: {} })
  return { issues, warnings }
}

/** Merges, checks and freezes. Every problem of every layer is found before anything is thrown. */
export function resolveLayers(input: {
  overrides: object
  env: NodeJS.ProcessEnv
  file: object
}): Resolution {
  const issues: ConfigIssue[] = []
  const environment = readEnvironment(input.env)
  issues.push(...environment.issues)
  const warnings = [...environment.warnings]
  const layers: Layers = [flatten(input.overrides, issues), environment.values, flatten(input.file, issues)]

  const sources = new Map<string, number>()
  const values = new Map<string, unknown>()
  for (const key of keys) {
    const source = layers.findIndex(layer => layer.get(key.path) !== undefined)
    sources.set(key.path, source)
    const given = source === -1 ? key.default : layers[source]?.get(key.path)
    const checked = key.rule.check(given)
    if ('rule' in checked) {
      const wording = checked.rule
      issues.push({ path: key.path, rule: wording, received: showValue(key.path, given), hint: checked.hint })
    } else {
      if (checked.warning !== undefined)
        warnings.push({ path: key.path, rule: checked.warning, received: showValue(key.path, given) })
      values.set(key.path, checked.value)
    }
  }
  takeDatabaseUrl(values, sources, input.env)
  const config = assemble(values, issues)
  crossCheck(config, { issues, warnings, env: input.env, values })
  return { config: freeze(config), issues, warnings, sources }
}

export function configurationError(issues: readonly ConfigIssue[]): ConfigurationError {
  const lines = issues.map(({ path, rule, received, hint }) => {
    if (rule === 'unknown key') return `  ${path}: unknown key${hint ? ` (${hint})` : ''}`
    return `  ${path}: ${rule} (got ${received}${hint ? `; ${hint}` : ''})`
  })
  const count = `${issues.length} problem${issues.length === 1 ? '' : 's'}`
  return new ConfigurationError(`Invalid pgbus configuration (${count})\n${lines.join('\n')}`, { issues })
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
    if (keyByPath.has(path)) into.set(path, value)
    else if (!isGroup(path))
      issues.push({ path, rule: 'unknown key', received: showValue(path, value), hint: hintFor(path) })
    else if (typeof value === 'object' && value !== null && !Array.isArray(value))
      flatten(value, issues, path, into)
    else issues.push({ path, rule: 'must be an object of keys', received: showValue(path, value) })
  }
  return into
}

function hintFor(path: string): string | undefined {
  const paths = [...keyByPath.keys()]
  const camel = path.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())
  if (keyByPath.has(camel)) return `did you mean ${camel}?`
  const near = closest(camel, paths)
  return distance(camel, near) <= 2 ? `did you mean ${near}?` : undefined
}

/** `DATABASE_URL` counts only when nothing of ours gives a connection. */
function takeDatabaseUrl(
  values: Map<string, unknown>,
  sources: Map<string, number>,
  env: NodeJS.ProcessEnv,
): void {
  const given = [...keyByPath.keys()].some(
    path =>
      (path === 'databaseUrl' || /^connection\.(host|port|database|user|password)$/.test(path)) &&
      sources.get(path) !== -1,
  )
  if (!given && env.DATABASE_URL) values.set('databaseUrl', env.DATABASE_URL)
}

function assemble(values: ReadonlyMap<string, unknown>, issues: ConfigIssue[]): ResolvedConfig {
  const root: Record<string, unknown> = {}
  for (const [path, value] of values) {
    const parts = path.split('.')
    let level = root
    for (const part of parts.slice(0, -1)) {
      level[part] ??= {}
      level = level[part] as Record<string, unknown>
    }
    level[parts.at(-1) as string] = value
  }
  root.workers = resolveWorkers(
    values.get('workers'),
    String(values.get('defaultQueue') ?? 'default'),
    issues,
  )
  const drain = Number(values.get('drainTimeout') ?? 0)
  root.shutdownTimeout = values.get('shutdownTimeout') ?? drain + 5_000
  return root as unknown as ResolvedConfig
}

interface Check {
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
  env: NodeJS.ProcessEnv
  values: ReadonlyMap<string, unknown>
}

function crossCheck(config: ResolvedConfig, { issues, warnings, env, values }: Check): void {
  const warn = (path: string, rule: string) => warnings.push({ path, rule, received: '' })
  if (config.databaseUrl !== null && values.has('databaseUrl')) {
    for (const part of ['host', 'port', 'database', 'user', 'password'] as const) {
      const value = config.connection?.[part] ?? null
      if (value === null) continue
      const path = `connection.${part}`
      issues.push({ path, rule: 'conflicts with databaseUrl', received: showValue(path, value) })
    }
  }
  if (config.retry.base > config.retry.max) warn('retry.base', 'is greater than retry.max')
  if (values.get('shutdownTimeout') != null && config.shutdownTimeout < config.drainTimeout) {
    warn('shutdownTimeout', 'is below drainTimeout; workers will be killed while they drain')
  }
  const levels = config.priority.levels ?? 1
  if (levels > 1 && config.priority.default >= levels) warn('priority.default', `is clamped to ${levels - 1}`)
  for (const entry of config.workers) {
    if (config.pool.size !== null && config.pool.size < entry.concurrency) {
      warn('pool.size', `is below a concurrency of ${entry.concurrency}; work will queue for connections`)
    }
  }
  if (config.streams.enabled && config.streams.secret?.length === 0 && env.NODE_ENV === 'production') {
    warn('streams.secret', 'is not set; streams cannot be served')
  }
  for (const queue of new Set([config.defaultQueue, ...config.workers.flatMap(entry => entry.queues)])) {
    const physical = `${config.queuePrefix}_${queue}`
    const longest = physical.length + (levels > 1 ? 4 : '_dlq'.length)
    if (longest > longestQueueName) {
      const path = queue === config.defaultQueue ? 'defaultQueue' : 'workers'
      const rule = `queue "${queue}" becomes "${physical}_dlq" (${longest} characters, the limit is ${longestQueueName})`
      issues.push({ path, rule, received: showValue(path, queue) })
    }
  }
}

/** Freezes plain objects and arrays all the way down; what the user handed over (loggers, patterns) is left alone. */
function freeze(config: ResolvedConfig): ResolvedConfig {
  Object.defineProperty(config, 'toJSON', { value: () => redactConfig(config) })
  Object.defineProperty(config, inspect.custom, { value: () => redactConfig(config) })
  freezeDeep(config)
  return config
}

function freezeDeep(value: object): void {
  for (const item of Object.values(value)) {
    if (typeof item !== 'object' || item === null) continue
    if (Array.isArray(item) || Object.getPrototypeOf(item) === Object.prototype) freezeDeep(item)
  }
  Object.freeze(value)
}
