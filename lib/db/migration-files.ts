import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'

/**
 * The files of `migrations/`, plain SQL, by the first letter of their names:
 * - `001_…`: applied once, in order. May never change afterwards; each is written so that a second run, or a run
 *   on tables that another client made, only adds what is missing.
 * - `R__…`: applied again whenever its text changes (functions).
 * - `A__…`: applied at every run; changes only what is not as it should be.
 * - `N01_…`: a query whose rows are statements, each run outside a transaction; asked at every run.
 */
export type MigrationKind = 'numbered' | 'repeatable' | 'always' | 'nontransactional'

export interface MigrationFile {
  name: string
  kind: MigrationKind
  text: string
  /** SHA-256 of the text. */
  checksum: string
}

const kinds: readonly [RegExp, MigrationKind][] = [
  [/^\d{3}_\w+\.sql$/, 'numbered'],
  [/^R__\w+\.sql$/, 'repeatable'],
  [/^A__\w+\.sql$/, 'always'],
  [/^N\d{2}_\w+\.sql$/, 'nontransactional'],
]

/** Where the package keeps them: beside `dist/`. */
export const migrationsFolder = fileURLToPath(new URL('../../../migrations/', import.meta.url))

export function kindOfMigration(name: string): MigrationKind | undefined {
  return kinds.find(([pattern]) => pattern.test(name))?.[1]
}

/** All files, in the order in which they are applied. */
export async function readMigrations(folder: string): Promise<MigrationFile[]> {
  const names = (await readdir(folder)).sort()
  const files: MigrationFile[] = []
  for (const [, kind] of kinds) {
    for (const name of names) {
      if (kindOfMigration(name) !== kind) continue
      const text = await readFile(`${folder}/${name}`, 'utf8')
      files.push({ name, kind, text, checksum: createHash('sha256').update(text).digest('hex') })
    }
  }
  return files
}
