import type { ConfigIssue } from '../core/errors.ts'
import { findConfigFile, readConfigFile } from './file.ts'
import type { PgbusConfig, ResolvedConfig } from './options.ts'
import { assertValid, resolveLayers, type Source } from './resolve.ts'

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
  /** Where the value of each key came from. */
  sources: ReadonlyMap<string, Source>
}

/**
 * Finds and reads the configuration file, then merges it below `overrides` and the environment.
 * @throws ConfigurationError naming every problem, or the file that cannot be loaded.
 */
export async function loadConfig(options: LoadConfigOptions = {}): Promise<LoadedConfig> {
  const { cwd = process.cwd(), env = process.env, overrides = {} } = options
  const found =
    options.file === false ? null : findConfigFile(options.file ?? (env.PGBUS_CONFIG || undefined), cwd)
  const content = found === null ? {} : await readConfigFile(found.file, env)
  const resolution = resolveLayers({ overrides, env, file: content })
  assertValid(resolution.issues)
  const unused = (found?.ignored ?? []).map(path => ({
    path,
    rule: `is ignored, because ${found?.file} is used`,
    received: '',
  }))
  return {
    config: resolution.config,
    file: found?.file ?? null,
    warnings: [...unused, ...resolution.warnings],
    sources: resolution.sources,
  }
}
