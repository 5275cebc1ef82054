import { randomBytes } from 'node:crypto'
import { existsSync, realpathSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { type LoadedConfig, loadConfig } from '../../config/load.ts'
import type { PgbusConfig } from '../../config/options.ts'
import { BootError, ConfigurationError } from '../../core/errors.ts'
import type { Release } from './release.ts'

export interface SetupOptions {
  /** Configuration file; default: looked for as every command does. */
  file?: string | undefined
  /** Application module, relative to the working directory. */
  app?: string | undefined
  host?: string | undefined
  port?: number | undefined
  workers?: number | 'auto' | undefined
  bind?: readonly string[] | undefined
  directory?: string | undefined
  env: NodeJS.ProcessEnv
}

/** The configuration of this run. */
export interface Setup extends LoadedConfig {
  /** Absolute path of the application module. */
  app: string
  /** Working directory of workers as it is called; may be, or lie behind, a symbolic link. */
  directory: string
  /** Variables that make a worker load the same configuration. */
  env: Record<string, string>
  /** Signs stream names for as long as this process runs, because none was configured. */
  madeUpSecret: string | undefined
}

/**
 * Loads the configuration; flags win. `previous`: what the host runs with, if it does.
 * @throws ConfigurationError, or BootError when the application or its directory does not exist.
 */
export async function configure(
  options: SetupOptions,
  previous?: Pick<Setup, 'env' | 'madeUpSecret'>,
): Promise<Setup> {
  const { app, host, port, workers, bind, directory, file, env } = options
  const cwd = resolve(workingDirectory(env), directory ?? env.PGBUS_WEB_DIRECTORY ?? '.')
  const load = (overrides: PgbusConfig) =>
    loadConfig({
      cwd,
      env,
      overrides: { web: { app, host, port, workers, bind, directory }, ...overrides },
      ...(file && { file: resolve(workingDirectory(env), file) }),
    })
  let loaded = await load({})
  const { web, streams } = loaded.config

  if (web.app === null)
    throw new ConfigurationError(
      'web.app is required: name the application module as an argument, or set web.app in the configuration',
    )
  // A path in a file belongs to the folder of that file; one from anywhere else to the working directory.
  const place = (key: string, path: string, otherwise: string) =>
    resolve(
      loaded.file !== null && loaded.sources.get(key) === 'file' ? dirname(loaded.file) : otherwise,
      path,
    )
  const folder = web.directory === null ? cwd : place('web.directory', web.directory, workingDirectory(env))
  const path = place('web.app', web.app, folder)
  if (!existsSync(path)) throw new BootError(`app module ${path} does not exist`)

  const workerEnv: Record<string, string> = {
    ...(loaded.file !== null && { PGBUS_CONFIG: loaded.file }),
    PGBUS_WEB_APP: path,
    PGBUS_WEB_HOST: web.host,
    PGBUS_WEB_PORT: String(web.port),
    PGBUS_WEB_WORKERS: String(web.workers),
    ...(web.bind.length > 0 && { PGBUS_WEB_BIND: web.bind.join(',') }),
    ...(previous?.env.PGBUS_STREAMS_HUB_SOCKET && {
      PGBUS_STREAMS_HUB_SOCKET: previous.env.PGBUS_STREAMS_HUB_SOCKET,
    }),
  }
  const needsSecret = streams.enabled && streams.secret.length === 0 && env.NODE_ENV !== 'production'
  const madeUpSecret = needsSecret
    ? (previous?.madeUpSecret ?? randomBytes(32).toString('hex'))
    : previous?.madeUpSecret
  if (needsSecret && madeUpSecret !== undefined) {
    workerEnv.PGBUS_STREAMS_SECRET = madeUpSecret
    loaded = await load({ streams: { secret: madeUpSecret } })
  }
  return { ...loaded, app: path, directory: folder, env: workerEnv, madeUpSecret }
}

/**
 * What workers are started from, now: the directory may have become another one since the last time.
 * @throws BootError when the directory does not exist.
 */
export function releaseOf({ config, directory, env }: Setup, phase: number): Release {
  let real: string
  try {
    real = realpathSync(directory)
  } catch (error) {
    throw new BootError(`web.directory ${directory} does not exist`, { cause: error })
  }
  return { phase, config, directory: real, entry: workerEntry(real), env }
}

/** A directory that brings its own copy of this package runs that copy. */
function workerEntry(directory: string): string {
  const own = fileURLToPath(new URL('./worker-entry.js', import.meta.url))
  try {
    const index = createRequire(join(directory, 'index.js')).resolve('pgbus')
    const entry = fileURLToPath(new URL('./processes/web/worker-entry.js', pathToFileURL(index)))
    return existsSync(entry) ? entry : own
  } catch {
    // Installed elsewhere, for example globally.
    return own
  }
}

/** The working directory as the shell calls it: a symbolic link in it must be followed again at each restart. */
function workingDirectory({ PWD }: NodeJS.ProcessEnv): string {
  const cwd = process.cwd()
  try {
    return PWD !== undefined && realpathSync(PWD) === cwd ? PWD : cwd
  } catch {
    return cwd
  }
}
