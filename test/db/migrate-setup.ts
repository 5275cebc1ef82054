import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { Connector } from '../../lib/db/connector.ts'
import { migrate, migrationStatus } from '../../lib/db/migrate.ts'
import { migrationsFolder } from '../../lib/db/migration-files.ts'
import type { TestContext } from '../support/database.ts'

export const allFiles = [
  '001_pgmq.sql',
  '002_core.sql',
  '005_recurring.sql',
  '006_events.sql',
  '007_uniqueness.sql',
  '008_concurrency.sql',
  '009_streams.sql',
  '010_presence.sql',
  '011_outbox.sql',
  'R__events.sql',
  'R__functions.sql',
  'R__health.sql',
  'R__limits.sql',
  'R__outbox.sql',
  'R__pgmq_functions.sql',
  'N01_vt_index.sql',
]

export interface Migrator {
  migrate(o?: { dryRun?: boolean }): Promise<string[]>
  status(): ReturnType<typeof migrationStatus>
  /** Lines logged by the runs so far. */
  lines: string[]
}

/** A process that migrates the database of `url`. */
export function migrator(url: string, folder?: string, overrides: PgbusConfig = {}): Migrator {
  const config = resolveConfig({ databaseUrl: url, ...overrides })
  const lines: string[] = []
  const options = {
    connector: new Connector(config),
    config,
    folder,
    log: (line: string) => void lines.push(line),
  }
  return {
    migrate: o => migrate({ ...options, ...o }),
    status: () => migrationStatus(options),
    lines,
  }
}

export interface Folder {
  path: string
  write(name: string, text: string): void
  edit(name: string, change: (text: string) => string): void
}

/** A copy of the migrations that a test may change. */
export function copyMigrations(t: TestContext): Folder {
  const path = mkdtempSync(join(tmpdir(), 'pgbus-migrations-'))
  t.teardown(() => rmSync(path, { recursive: true }))
  cpSync(migrationsFolder, path, { recursive: true })
  const write = (name: string, text: string) => writeFileSync(join(path, name), text)
  return { path, write, edit: (name, change) => write(name, change(readFileSync(join(path, name), 'utf8'))) }
}
