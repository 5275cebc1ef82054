import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { createJiti } from 'jiti'
import { ConfigurationError } from '../core/errors.ts'
import { importReason } from '../core/import-hint.ts'

const names = ['ts', 'mts', 'mjs', 'js', 'cjs', 'json'].map(extension => `pgbus.config.${extension}`)

export interface FoundFile {
  file: string
  /** Other candidates of the same folder. */
  ignored: string[]
}

/**
 * The file that is named, else the first candidate from `cwd` up to the nearest folder with a `package.json`.
 * @throws ConfigurationError when the named file does not exist.
 */
export function findConfigFile(named: string | undefined, cwd: string): FoundFile | null {
  if (named !== undefined) {
    const file = resolve(cwd, named)
    if (!existsSync(file)) throw new ConfigurationError(`cannot load ${file}: there is no such file`)
    return { file, ignored: [] }
  }
  for (let folder = resolve(cwd); ; folder = dirname(folder)) {
    const [file, ...ignored] = names.map(name => join(folder, name)).filter(path => existsSync(path))
    if (file !== undefined) return { file, ignored }
    if (existsSync(join(folder, 'package.json')) || folder === dirname(folder)) return null
  }
}

/**
 * What a configuration file exports. A function is called with the name of the environment.
 * @throws ConfigurationError with the file's own error as `cause`.
 */
export async function readConfigFile(file: string, env: NodeJS.ProcessEnv): Promise<object> {
  let content: unknown
  try {
    content = await importDefault(file)
    if (typeof content === 'function')
      content = await content({ env: env.PGBUS_ENV || env.NODE_ENV || 'development' })
  } catch (error) {
    throw new ConfigurationError(`cannot load ${file}: ${importReason(error)}`, { cause: error })
  }
  if (content === undefined) throw new ConfigurationError(`${file} must have a default export`)
  if (typeof content !== 'object' || content === null || Array.isArray(content))
    throw new ConfigurationError(`${file} must export an object, or a function that gives one`)
  return content
}

async function importDefault(file: string): Promise<unknown> {
  if (file.endsWith('.json')) return JSON.parse(readFileSync(file, 'utf8'))
  if (!/\.m?ts$/.test(file)) return defaultOf(await import(pathToFileURL(file).href))
  // Node 20 reads no TypeScript. No cache: a start-up must not leave files behind.
  const jiti = createJiti(import.meta.url, { fsCache: false, moduleCache: false, interopDefault: false })
  return defaultOf(await jiti.import(file))
}

function defaultOf(module: unknown): unknown {
  return (module as { default?: unknown }).default
}
