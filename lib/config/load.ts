import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { createJiti } from 'jiti'
import { type ConfigIssue, ConfigurationError } from '../core/errors.ts'
import type { PgbusConfig, ResolvedConfig } from './options.ts'
import { configurationError, resolveLayers } from './resolve.ts'

const names = ['ts', 'mts', 'mjs', 'js', 'cjs', 'json'].map(extension => `pgbus.config.${extension}`)

export interface LoadConfigOptions {
  /** Configuration file; false: none; unset: `PGBUS_CONFIG`, else searched from `cwd` upwards. */
  file?: string | false | undefined
  cwd?: string | undefined
  env?: NodeJS.ProcessEnv | undefined
  /** Wins over the environment and the file. */
  overrides?: PgbusConfig | undefined
}

export interface LoadedConfig {
  config: ResolvedConfig
  /** The file that was read. */
  file: string | null
  warnings: ConfigIssue[]
  /** Where each key came from: `overrides`, `environment`, `file` or `default`. */
  sources: Map<string, string>
}

/**
 * Finds and reads the configuration file, then merges it below `overrides` and the environment.
 * @throws ConfigurationError naming every problem, or the file that cannot be loaded.
 */
export async function loadConfig(options: LoadConfigOptions = {}): Promise<LoadedConfig> {
  const { cwd = process.cwd(), env = process.env, overrides = {} } = options
  const found = options.file === false ? null : find(options.file ?? (env.PGBUS_CONFIG || undefined), cwd)
  const content = found === null ? {} : await read(found.file, env)
  const { config, issues, warnings, sources } = resolveLayers({ overrides, env, file: content })
  if (issues.length > 0) throw configurationError(issues)
  if (found?.ignored !== undefined) {
    warnings.push({ path: found.ignored, rule: `is ignored; ${found.file} is used`, received: '' })
  }
  const layer = ['overrides', 'environment', 'file']
  return {
    config,
    file: found?.file ?? null,
    warnings,
    sources: new Map([...sources].map(([path, index]) => [path, layer[index] ?? 'default'])),
  }
}

function find(named: string | undefined, cwd: string): { file: string; ignored?: string } | null {
  if (named !== undefined) {
    const file = resolve(cwd, named)
    if (!existsSync(file)) throw new ConfigurationError(`cannot load ${file}: there is no such file`)
    return { file }
  }
  for (let folder = resolve(cwd); ; folder = dirname(folder)) {
    const [first, second] = names.map(name => join(folder, name)).filter(file => existsSync(file))
    if (first !== undefined) return second === undefined ? { file: first } : { file: first, ignored: second }
    if (existsSync(join(folder, 'package.json')) || folder === dirname(folder)) return null
  }
}

async function read(file: string, env: NodeJS.ProcessEnv): Promise<object> {
  let content: unknown
  try {
    content = await importDefault(file)
    if (typeof content === 'function') {
      content = await (content as (context: object) => unknown)({
        env: env.PGBUS_ENV || env.NODE_ENV || 'development',
        command: process.argv[2],
      })
    }
  } catch (error) {
    throw new ConfigurationError(
      `cannot load ${file}: ${error instanceof Error ? error.message : String(error)}`,
      { cause: error },
    )
  }
  if (content === undefined) throw new ConfigurationError(`${file} must have a default export`)
  if (typeof content !== 'object' || content === null || Array.isArray(content)) {
    throw new ConfigurationError(`${file} must export an object, or a function that gives one`)
  }
  return content
}

async function importDefault(file: string): Promise<unknown> {
  if (file.endsWith('.json')) return JSON.parse(readFileSync(file, 'utf8'))
  if (/\.m?ts$/.test(file)) {
    const module = await createJiti(import.meta.url, { moduleCache: false }).import<{ default?: unknown }>(
      file,
    )
    return module.default
  }
  const module = (await import(pathToFileURL(file).href)) as { default?: unknown }
  return module.default
}
