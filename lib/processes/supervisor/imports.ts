import { readdirSync } from 'node:fs'
import { dirname, extname, join, resolve, sep } from 'node:path'
import { pathToFileURL } from 'node:url'
import { BootError } from '../../core/errors.ts'
import { importReason } from '../../core/import-hint.ts'

const extensions = new Set(['.js', '.mjs', '.cjs', '.ts', '.mts', '.cts'])

export interface FoundModules {
  /** Absolute paths, each once, in the order of the patterns. */
  files: string[]
  /** Patterns that match nothing. */
  unmatched: string[]
}

/**
 * The modules that `imports` names: paths, or patterns with `*`, `?`, `**` and `{a,b}`. Both are relative to the
 * folder of the configuration file. A path is taken as it is; that it does not exist shows when it is imported.
 */
export function findModules(imports: readonly string[], configFile: string | null): FoundModules {
  const base = configFile === null ? process.cwd() : dirname(configFile)
  const files = new Set<string>()
  const unmatched: string[] = []
  for (const pattern of imports) {
    if (!/[*?{]/.test(pattern)) {
      files.add(resolve(base, pattern))
      continue
    }
    const matches = expand(resolve(base, pattern))
    if (matches.length === 0) unmatched.push(pattern)
    for (const file of matches) files.add(file)
  }
  return { files: [...files], unmatched }
}

/**
 * Imports them one after the other: what one module prepares, the next may use.
 * @throws BootError naming the file that failed.
 */
export async function importModules(files: readonly string[]): Promise<void> {
  for (const file of files) {
    try {
      await import(pathToFileURL(file).href)
    } catch (error) {
      throw new BootError(`cannot import ${file}: ${importReason(error)}`, { cause: error })
    }
  }
}

function expand(pattern: string): string[] {
  const parts = pattern.split(sep)
  const firstMagic = parts.findIndex(part => /[*?{]/.test(part))
  const root = parts.slice(0, firstMagic).join(sep) || sep
  const matcher = toRegExp(parts.slice(firstMagic).join('/'))
  const deep = parts.length - firstMagic > 1 || parts.some(part => part.includes('**'))
  return list(root, deep)
    .filter(name => matcher.test(name) && extensions.has(extname(name)) && !/\.d\.[mc]?ts$/.test(name))
    .sort()
    .map(name => join(root, name))
}

/** Files below a folder, with `/` between names. Dependencies and hidden folders are left out. */
function list(root: string, deep: boolean, prefix = ''): string[] {
  const names: string[] = []
  let entries: import('node:fs').Dirent[]
  try {
    entries = readdirSync(join(root, prefix), { withFileTypes: true })
  } catch {
    // No such folder: nothing matches.
    return []
  }
  for (const entry of entries) {
    const name = `${prefix}${entry.name}`
    if (entry.isDirectory()) {
      if (deep && entry.name !== 'node_modules' && !entry.name.startsWith('.'))
        names.push(...list(root, deep, `${name}/`))
    } else names.push(name)
  }
  return names
}

function toRegExp(pattern: string): RegExp {
  let source = ''
  let depth = 0
  for (let at = 0; at < pattern.length; at += 1) {
    const char = pattern.charAt(at)
    if (pattern.startsWith('**/', at)) {
      source += '(?:[^/]+/)*'
      at += 2
    } else if (pattern.startsWith('**', at)) {
      source += '.*'
      at += 1
    } else if (char === '*') source += '[^/]*'
    else if (char === '?') source += '[^/]'
    else if (char === '{') {
      depth += 1
      source += '(?:'
    } else if (char === '}' && depth > 0) {
      depth -= 1
      source += ')'
    } else if (char === ',' && depth > 0) source += '|'
    else source += char.replace(/[\\^$.|+()[\]{}]/, '\\$&')
  }
  return new RegExp(`^${source}${')'.repeat(depth)}$`)
}
