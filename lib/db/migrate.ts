import type pg from 'pg'
import type { ResolvedConfig } from '../config/options.ts'
import { MigrationError, SchemaNotReadyError } from '../core/errors.ts'
import { beginLocked, migrationLock, releaseSessionLock, takeSessionLock } from './advisory-locks.ts'
import type { Connector } from './connector.ts'
import { isCreationRace } from './creation-race.ts'
import { type Database, sqlState } from './database.ts'
import { quoteIdentifier } from './identifier.ts'
import { kindOfMigration, type MigrationFile, migrationsFolder, readMigrations } from './migration-files.ts'
import {
  buildOf,
  choosePgmqMode,
  type FoundPgmq,
  findPgmq,
  mayFallBack,
  type PgmqMode,
  requireExtensionVersion,
} from './pgmq-mode.ts'

/**
 * Installs and upgrades the schema. Any number of processes may do so at once: every file is applied in a
 * transaction of its own, under one advisory lock, after looking again whether somebody else has applied it.
 * A file that fails rolls back alone. Nothing is ever dropped but functions that are created again.
 */

export interface MigrateOptions {
  connector: Connector
  config: Pick<ResolvedConfig, 'pgmq' | 'migrations'>
  /** Change nothing, only tell what would be applied. */
  dryRun?: boolean | undefined
  /** Receives one line per step. */
  log?: ((line: string) => void) | undefined
  /** Where the files are; default: those of this package. */
  folder?: string | undefined
}

export interface PgmqStatus {
  /** Whose functions are installed: ours, those of the extension, or none. */
  mode: PgmqMode | 'none'
  version: string | null
}

export interface MigrationStatus {
  applied: string[]
  pending: string[]
  /** Applied files whose text is another one now. Migrating refuses until that is undone. */
  changed: string[]
  pgmq: PgmqStatus
}

const pgmqVersion = '1.12.0'
const pgmqFiles = { schema: '001_pgmq.sql', functions: 'R__pgmq_functions.sql' }
const ledgerTable = 'pgbus_schema_migrations'

/**
 * Brings the database up to date.
 * @returns the names of the files this call applied, in order
 * @throws MigrationError
 */
export async function migrate(options: MigrateOptions): Promise<string[]> {
  return withClient(options, async client => {
    const run = new Run(client, options, await readMigrations(options.folder ?? migrationsFolder))
    return options.dryRun === true ? run.pending() : run.apply()
  })
}

/** What is applied and what is missing. Changes nothing. */
export async function migrationStatus(options: MigrateOptions): Promise<MigrationStatus> {
  return withClient(options, async client => {
    const run = new Run(client, options, await readMigrations(options.folder ?? migrationsFolder))
    return run.status()
  })
}

/** Names what the running code needs and the database lacks; empty when all is there. One query. */
export async function checkSchema(db: Pick<Database, 'query'>): Promise<string[]> {
  const { rows } = await db.query<{
    missing: string[]
  }>(`SELECT coalesce(array_agg(name), '{}') AS missing FROM (
  SELECT name FROM unnest(ARRAY['pgmq.meta', 'pgbus_processes', 'pgbus_failed_events', 'pgbus_stream_messages']) AS name
   WHERE to_regclass(name) IS NULL
  UNION ALL
  SELECT name FROM unnest(ARRAY['pgbus_create_queue(text,text,boolean,boolean)', 'pgbus_claim_many(text[],text[],integer,integer,integer,text,bigint[],text[])',
    'pgbus_stream_append(text,jsonb)', 'pgbus_enqueue(jsonb)',
    'pgbus_finish(text,bigint[],integer[],text,boolean,text,text,text[],boolean)']) AS name
   WHERE to_regprocedure(name) IS NULL) AS needed`)
  return rows[0]?.missing ?? []
}

/** @throws SchemaNotReadyError when the database was never migrated, or not far enough. */
export async function assertSchema(db: Pick<Database, 'query'>): Promise<void> {
  const missing = await checkSchema(db)
  if (missing.length > 0) {
    throw new SchemaNotReadyError(
      `pgbus is not installed in this database — run "pgbus migrate" (missing: ${missing.join(', ')})`,
    )
  }
}

async function withClient<T>(options: MigrateOptions, fn: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = await options.connector.connect({
    target: 'notify',
    applicationName: 'pgbus-admin',
    statementTimeout: 0,
    mustBePrimary: true,
  })
  try {
    return await fn(client)
  } finally {
    await client.end().catch(() => undefined)
  }
}

class Run {
  readonly #client: pg.Client
  readonly #options: MigrateOptions
  readonly #files: readonly MigrationFile[]
  readonly #lockTimeout: number
  #schema = 'public'

  constructor(client: pg.Client, options: MigrateOptions, files: readonly MigrationFile[]) {
    this.#client = client
    this.#options = options
    this.#files = files
    this.#lockTimeout = options.config.migrations.lockTimeout
  }

  async apply(): Promise<string[]> {
    this.#schema = await this.#currentSchema()
    const mode = await this.#locked(async () => {
      await this.#client.query(`CREATE TABLE IF NOT EXISTS ${ledgerTable} (
  name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), duration_ms int)`)
      this.#refuseChanged(await this.#ledger())
      return this.#installExtension()
    })

    const applied: string[] = []
    for (const file of this.#files) {
      const done =
        file.kind === 'nontransactional' ? await this.#applyOutside(file) : await this.#applyFile(file, mode)
      if (!done) continue
      applied.push(file.name)
      this.#log(`applied ${file.name}`)
    }
    return applied
  }

  async pending(): Promise<string[]> {
    const ledger = await this.#ledger()
    this.#refuseChanged(ledger)
    const found = await findPgmq(this.#client)
    const mode = choosePgmqMode(found, this.#options.config.pgmq.schemaMode)
    const names: string[] = []
    for (const file of this.#files) {
      if (file.kind !== 'always' && this.#isPending(file, mode, found, ledger)) names.push(file.name)
    }
    for (const name of names) this.#log(`would apply ${name}`)
    return names
  }

  async status(): Promise<MigrationStatus> {
    const ledger = await this.#ledger()
    const found = await findPgmq(this.#client)
    const mode = found.extension === null ? 'embedded' : 'extension'
    const files = this.#files.filter(file => file.kind !== 'always')
    const pending = files.filter(file => this.#isPending(file, mode, found, ledger))
    const { rows } =
      found.tables && ledger.has(pgmqFiles.functions) ? await this.#newestVersion() : { rows: [] }
    return {
      applied: files.filter(file => ledger.has(file.name) && !pending.includes(file)).map(file => file.name),
      pending: pending.map(file => file.name),
      changed: this.#changed(ledger),
      pgmq: {
        mode: found.extension === null ? (found.tables ? 'embedded' : 'none') : 'extension',
        version: found.extension ?? rows[0]?.version ?? null,
      },
    }
  }

  /** Applies one file unless somebody has. A race with a client that takes no lock is repeated once. */
  async #applyFile(file: MigrationFile, mode: PgmqMode): Promise<boolean> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        // Without the lock first: a fleet that boots on an up-to-date database does not queue up.
        if (!this.#isPending(file, mode, await findPgmq(this.#client), await this.#ledger())) return false
        return await this.#locked(async () => {
          const found = await findPgmq(this.#client)
          const ledger = await this.#ledger()
          if (!this.#isPending(file, mode, found, ledger)) return false
          const started = performance.now()
          const foreign = mode === 'extension' && isPgmqFile(file)
          if (!foreign) await this.#client.query(file.text)
          if (file.kind === 'always') return false
          await this.#record(file, performance.now() - started)
          if (file.name === pgmqFiles.functions) await this.#recordVersion(found)
          return true
        })
      } catch (error) {
        if (error instanceof MigrationError) throw error
        if (attempt === 1 && isCreationRace(error)) continue
        throw failure(file, error)
      }
    }
  }

  /** Runs the statements a file asks for. Needs the session lock, hence a direct connection, only if there are any. */
  async #applyOutside(file: MigrationFile): Promise<boolean> {
    const recorded = (await this.#ledger()).get(file.name) === file.checksum
    const started = performance.now()
    let changed = false
    if ((await this.#statements(file)).length > 0) {
      if (!(await takeSessionLock(this.#client, migrationLock, this.#lockTimeout))) throw this.#busy()
      try {
        await this.#client.query("SELECT set_config('lock_timeout', $1, false)", [`${this.#lockTimeout}ms`])
        for (const statement of await this.#statements(file)) {
          await this.#client.query(statement)
          changed = true
        }
      } catch (error) {
        if (sqlState(error) !== '55P03') throw failure(file, error)
        // A long transaction is in the way. The index only saves time, and the next run picks up what is left.
        this.#log(`${file.name}: a table is in use, the rest is left to the next run`)
        return false
      } finally {
        // When the connection is gone, so are both; the error that ended it is the one to tell.
        await this.#client.query('RESET lock_timeout').catch(() => undefined)
        await releaseSessionLock(this.#client, migrationLock).catch(() => undefined)
      }
    }
    if (recorded) return changed
    return this.#locked(async () => {
      if ((await this.#ledger()).get(file.name) === file.checksum) return changed
      await this.#record(file, performance.now() - started)
      return true
    })
  }

  async #statements(file: MigrationFile): Promise<string[]> {
    const { rows } = await this.#client.query<{ statement: string }>(file.text)
    return rows.map(row => row.statement)
  }

  #isPending(file: MigrationFile, mode: PgmqMode, found: FoundPgmq, ledger: Map<string, string>): boolean {
    const recorded = ledger.get(file.name)
    if (file.kind === 'always') return true
    if (file.kind === 'numbered') {
      // Recorded for the extension, which has been dropped since.
      if (file.name === pgmqFiles.schema && mode === 'embedded' && !found.tables) return true
      return recorded === undefined
    }
    if (file.kind === 'nontransactional') return recorded === undefined
    if (file.name === pgmqFiles.functions && mode === 'embedded') {
      const own = buildOf(file.text) ?? 0
      if (found.build === null || found.build < own) return true
      if (found.build > own) return false
    }
    // A newer version of this package has migrated here: its functions stay.
    if (recorded !== undefined && this.#isNewer(ledger)) return false
    return recorded !== file.checksum
  }

  #isNewer(ledger: Map<string, string>): boolean {
    const known = new Set(this.#files.map(file => file.name))
    return [...ledger.keys()].some(name => kindOfMigration(name) === 'numbered' && !known.has(name))
  }

  #changed(ledger: Map<string, string>): string[] {
    return this.#files
      .filter(file => file.kind === 'numbered' && (ledger.get(file.name) ?? file.checksum) !== file.checksum)
      .map(file => file.name)
  }

  #refuseChanged(ledger: Map<string, string>): void {
    const [name] = this.#changed(ledger)
    if (name !== undefined) throw new MigrationError(`migration ${name} was changed after it was applied`)
  }

  /** Creates the extension where it is wanted and possible. Runs inside a locked transaction. */
  async #installExtension(): Promise<PgmqMode> {
    const { schemaMode } = this.#options.config.pgmq
    const found = await findPgmq(this.#client)
    const mode = choosePgmqMode(found, schemaMode)
    if (found.extension !== null && schemaMode === 'embedded') {
      this.#log('pgmq is installed as an extension; embedded SQL is not applied')
    }
    if (mode === 'embedded' || found.extension !== null) return mode
    await this.#client.query('SAVEPOINT extension')
    try {
      await this.#client.query('CREATE EXTENSION IF NOT EXISTS pgmq')
    } catch (error) {
      if (schemaMode === 'extension' || !mayFallBack(error)) {
        throw new MigrationError(
          `the extension pgmq could not be created: ${messageOf(error)} (SQLSTATE ${sqlState(error)})`,
          { cause: error },
        )
      }
      await this.#client.query('ROLLBACK TO SAVEPOINT extension')
      this.#log(
        `the extension pgmq could not be created (${messageOf(error)}); installing its interface instead`,
      )
      return 'embedded'
    }
    requireExtensionVersion((await findPgmq(this.#client)).extension ?? '')
    return 'extension'
  }

  /** Name → checksum of what is applied. */
  async #ledger(): Promise<Map<string, string>> {
    const { rows: found } = await this.#client.query<{ exists: boolean }>(
      `SELECT to_regclass('${ledgerTable}') IS NOT NULL AS exists`,
    )
    if (found[0]?.exists !== true) return new Map()
    const { rows } = await this.#client.query<{ name: string; checksum: string }>(
      `SELECT name, checksum FROM ${ledgerTable}`,
    )
    return new Map(rows.map(row => [row.name, row.checksum]))
  }

  async #record(file: MigrationFile, duration: number): Promise<void> {
    await this.#client.query(
      `INSERT INTO ${ledgerTable} (name, checksum, duration_ms) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = now(), duration_ms = excluded.duration_ms`,
      [file.name, file.checksum, Math.round(duration)],
    )
  }

  /** Other clients read the newest row of this table to learn which PGMQ is there. */
  async #recordVersion(found: FoundPgmq): Promise<void> {
    const version = found.extension ?? pgmqVersion
    const method = found.extension !== null ? 'extension' : found.functions ? 'upgrade' : 'embedded'
    const { rows } = await this.#newestVersion()
    if (rows[0]?.version === version) return
    await this.#client.query(
      'INSERT INTO pgbus_pgmq_schema_versions (version, install_method) VALUES ($1, $2)',
      [version, method],
    )
  }

  #newestVersion(): Promise<{ rows: { version: string }[] }> {
    return this.#client.query<{ version: string }>(
      'SELECT version FROM pgbus_pgmq_schema_versions ORDER BY installed_at DESC, id DESC LIMIT 1',
    )
  }

  /** The schema our tables go to: the first of the role's search path that exists. */
  async #currentSchema(): Promise<string> {
    const { rows } = await this.#client.query<{ schema: string | null }>('SELECT current_schema() AS schema')
    const schema = rows[0]?.schema
    if (!schema)
      throw new MigrationError('no schema of the search_path exists; create one or set search_path')
    return schema
  }

  /** Runs `fn` in a transaction that holds the migration lock. */
  async #locked<T>(fn: () => Promise<T>): Promise<T> {
    if (!(await beginLocked(this.#client, migrationLock, this.#lockTimeout))) throw this.#busy()
    try {
      await this.#client.query(
        "SELECT set_config('lock_timeout', $1, true), set_config('search_path', $2, true)",
        [`${this.#lockTimeout}ms`, `${quoteIdentifier(this.#schema)}, pg_temp`],
      )
      const result = await fn()
      await this.#client.query('COMMIT')
      return result
    } catch (error) {
      await this.#client.query('ROLLBACK').catch(() => undefined)
      throw error
    }
  }

  #busy(): MigrationError {
    return new MigrationError(`another process is migrating (waited ${this.#lockTimeout / 1000}s)`)
  }

  #log(line: string): void {
    this.#options.log?.(line)
  }
}

function isPgmqFile(file: MigrationFile): boolean {
  return file.name === pgmqFiles.schema || file.name === pgmqFiles.functions
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

function failure(file: MigrationFile, error: unknown): MigrationError {
  const position = Number((error as { position?: unknown }).position)
  const line = Number.isInteger(position) ? ` at line ${file.text.slice(0, position).split('\n').length}` : ''
  return new MigrationError(
    `migration ${file.name} failed${line}: ${messageOf(error)} (SQLSTATE ${sqlState(error)})`,
    {
      cause: error,
    },
  )
}
