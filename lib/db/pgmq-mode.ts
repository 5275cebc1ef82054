import type pg from 'pg'
import type { ResolvedConfig } from '../config/options.ts'
import { MigrationError } from '../core/errors.ts'
import { sqlState } from './database.ts'

/** Whose `pgmq` functions a database uses: those of this package, or those of the extension. */
export type PgmqMode = 'embedded' | 'extension'

/** What a database has of PGMQ. */
export interface FoundPgmq {
  /** Version of the installed extension. */
  extension: string | null
  /** The server could install it. */
  available: boolean
  /** `pgmq.meta` exists. */
  tables: boolean
  /** There are functions in schema `pgmq`, whoever made them. */
  functions: boolean
  /** Build of our functions, from the comment of the schema; null: those of somebody else, or none. */
  build: number | null
}

/** The oldest extension whose tables have the columns we use. */
const oldest = [1, 11] as const

/** The extension is listed, but this role may not, or this server cannot, create it. */
const refusals = new Set(['42501', '0A000', '58P01'])

export async function findPgmq(client: pg.ClientBase): Promise<FoundPgmq> {
  const { rows } = await client.query<Omit<FoundPgmq, 'build'> & { comment: string | null }>(
    `SELECT (SELECT extversion FROM pg_extension WHERE extname = 'pgmq') AS extension,
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pgmq') AS available,
       to_regclass('pgmq.meta') IS NOT NULL AS tables,
       EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('pgmq')) AS functions,
       obj_description(to_regnamespace('pgmq'), 'pg_namespace') AS comment`,
  )
  const { comment, ...found } = rows[0]!
  return { ...found, build: comment === null ? null : buildOf(comment) }
}

/**
 * Decides once, when migrating. What is installed stays; `auto` prefers the extension where there is nothing yet.
 * @throws MigrationError when the configured mode cannot be had
 */
export function choosePgmqMode(found: FoundPgmq, wanted: ResolvedConfig['pgmq']['schemaMode']): PgmqMode {
  if (found.extension !== null) {
    requireExtensionVersion(found.extension)
    return 'extension'
  }
  if (wanted === 'embedded') return 'embedded'
  if (found.tables) {
    if (wanted === 'auto') return 'embedded'
    throw new MigrationError('pgmq is installed without the extension; drop it or use schemaMode "embedded"')
  }
  if (found.available) return 'extension'
  if (wanted === 'auto') return 'embedded'
  throw new MigrationError('extension "pgmq" is not available on this server')
}

/** @throws MigrationError when the extension is too old */
export function requireExtensionVersion(version: string): void {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > oldest[0] || (major === oldest[0] && minor >= oldest[1])) return
  throw new MigrationError(
    `pgmq ${version} is too old, run ALTER EXTENSION pgmq UPDATE (${oldest.join('.')} or newer needed)`,
  )
}

/** Creating the extension failed in a way that our own SQL can make up for. */
export function mayFallBack(error: unknown): boolean {
  return refusals.has(sqlState(error))
}

/** The build number that our SQL leaves in the comment of the schema. */
export function buildOf(text: string): number | null {
  const match = /pgbus build (\d+)/.exec(text)
  return match ? Number(match[1]) : null
}
