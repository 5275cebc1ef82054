import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { Connector } from '../../lib/db/connector.ts'
import { type EmbeddedServer, startEmbedded } from '../../lib/db/embedded/server.ts'
import { migrate } from '../../lib/db/migrate.ts'
import { startRunServer } from './server.ts'
import { waitFor } from './wait-for.ts'

/** The part of a tap test that is needed here. */
export interface TestContext {
  teardown(fn: () => unknown): unknown
}

export interface CensusRow {
  application_name: string
  state: string | null
  pid: number
}

/** A database of one test; dropped at its end, which fails when connections of ours are still open. */
export interface TestDatabase {
  url: string
  name: string
  query<R = Record<string, unknown>>(text: string, values?: unknown[]): Promise<R[]>
  /** Sessions of pgbus on this database. */
  census(): Promise<CensusRow[]>
  /**
   * Resolves when pgbus has no session here any more: the server notices a moment later that a client has left.
   * Fails after 15 s, naming those that are left.
   */
  vacated(): Promise<void>
}

const templateName = 'pgbus_test_template'
let serverUrl: Promise<string> | undefined

/** A database with the schema of pgbus. */
export async function createDatabase(t: TestContext): Promise<TestDatabase> {
  const url = await server(t)
  await ensureTemplate(url)
  return open(t, url, templateName)
}

/** A database with nothing in it. */
export async function createEmptyDatabase(t: TestContext): Promise<TestDatabase> {
  return open(t, await server(t), 'template1')
}

/** A server of one test, for those that stop and start it; migrated, with full durability. */
export async function startServer(
  t: TestContext,
  settings: Record<string, string> = {},
): Promise<{
  url: string
  stop(): Promise<void>
  start(): Promise<void>
  query<R = Record<string, unknown>>(text: string, values?: unknown[]): Promise<R[]>
}> {
  const dataDir = mkdtempSync(join(tmpdir(), 'pgbus-test-pg-'))
  let running: EmbeddedServer | undefined = await startEmbedded({
    dataDir,
    port: 0,
    persistent: true,
    settings,
  })
  const { url, port } = running
  const start = async () => {
    running ??= await startEmbedded({ dataDir, port, persistent: true, settings })
  }
  const stop = async () => {
    await running?.stop()
    running = undefined
  }
  t.teardown(async () => {
    await stop()
    rmSync(dataDir, { recursive: true, force: true })
  })
  await migrateUrl(url)
  return { url, start, stop, query: (text, values) => queryOnce(url, text, values) }
}

/** The server of the run, or, when one file is run by itself, a server of this process. */
function server(t: TestContext): Promise<string> {
  const shared = process.env.PGBUS_TEST_SERVER_URL
  if (shared) return Promise.resolve(shared)
  void t
  serverUrl ??= startRunServer(process.env).then(own => {
    // Ends with the process: the guard of the embedded server stops it and a later hook removes its files.
    process.once('beforeExit', () => void own.stop())
    return own.url
  })
  return serverUrl
}

/** Makes the migrated template, once per server, whoever comes first. */
async function ensureTemplate(url: string): Promise<void> {
  const admin = await connect(databaseUrl(url, 'postgres'))
  try {
    await admin.query('SELECT pg_advisory_lock(20260101)')
    const ready = await admin.query('SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate', [
      templateName,
    ])
    if (ready.rowCount) return
    await admin.query(`DROP DATABASE IF EXISTS ${templateName}`)
    await admin.query(`CREATE DATABASE ${templateName}`)
    await migrateUrl(databaseUrl(url, templateName))
    await admin.query(`ALTER DATABASE ${templateName} IS_TEMPLATE true`)
  } finally {
    await admin.end()
  }
}

async function migrateUrl(url: string): Promise<void> {
  const config = resolveConfig({ databaseUrl: url, log: { level: 'silent' } })
  await migrate({ connector: new Connector(config), config })
}

async function open(t: TestContext, url: string, template: string): Promise<TestDatabase> {
  const name = `pgbus_t_${randomBytes(6).toString('hex')}`
  const adminUrl = databaseUrl(url, 'postgres')
  await queryOnce(adminUrl, `CREATE DATABASE ${name} TEMPLATE ${template}`)
  const ownUrl = databaseUrl(url, name)
  const pool = new pg.Pool({
    connectionString: ownUrl,
    max: 4,
    application_name: 'test',
    allowExitOnIdle: true,
  })
  pool.on('error', () => undefined)
  const query = async <R>(text: string, values?: unknown[]) => (await pool.query(text, values)).rows as R[]
  const census = () =>
    query<CensusRow>(
      `SELECT application_name, state, pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pgbus%' ORDER BY pid`,
    )
  const vacated = async () => {
    await waitFor(async () => (await census()).length === 0, { timeout: 15_000 }).catch(async () => {
      throw new Error(`connections were left open: ${JSON.stringify(await census())}`)
    })
  }
  t.teardown(async () => {
    try {
      await vacated()
    } finally {
      await pool.end()
      await queryOnce(adminUrl, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
    }
  })
  return { url: ownUrl, name, query, census, vacated }
}

function databaseUrl(url: string, database: string): string {
  const changed = new URL(url)
  changed.pathname = `/${database}`
  return changed.toString()
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, application_name: 'test' })
  client.on('error', () => undefined)
  await client.connect()
  return client
}

async function queryOnce<R>(url: string, text: string, values?: unknown[]): Promise<R[]> {
  const client = await connect(url)
  try {
    return (await client.query(text, values)).rows as R[]
  } finally {
    await client.end()
  }
}
