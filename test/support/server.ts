import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type EmbeddedServer, startEmbedded } from '../../lib/db/embedded/server.ts'

/** A PostgreSQL server of a test run: its URL (any database of it), and how to end it. */
export interface RunServer {
  url: string
  stop(): Promise<void>
}

/** No durability is needed by tests that do not crash the server, and fsync would only wear the disk. */
const fast = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off', max_connections: '400' }

/**
 * The server for a whole run, first that applies: `PGBUS_TEST_DATABASE_URL`, a container
 * (`PGBUS_TEST_POSTGRES=testcontainers`), the embedded server in a temporary folder.
 */
export async function startRunServer(env: NodeJS.ProcessEnv): Promise<RunServer> {
  const given = env.PGBUS_TEST_DATABASE_URL
  if (given) return { url: given, stop: async () => undefined }
  if (env.PGBUS_TEST_POSTGRES === 'testcontainers') {
    const { PostgreSqlContainer } = await import('@testcontainers/postgresql')
    const container = await new PostgreSqlContainer('postgres:18')
      .withCommand(['postgres', '-c', 'max_connections=400'])
      .start()
    return { url: container.getConnectionUri(), stop: async () => void (await container.stop()) }
  }
  const server = await startTemporaryServer(fast)
  return { url: server.url, stop: server.stop }
}

/** An embedded server in a folder of its own that goes with it. */
export async function startTemporaryServer(
  settings: Record<string, string> = {},
  port = 0,
): Promise<EmbeddedServer & { dataDir: string }> {
  const dataDir = mkdtempSync(join(tmpdir(), 'pgbus-test-pg-'))
  try {
    const server = await startEmbedded({ dataDir, port, persistent: false, settings })
    return Object.assign(server, { dataDir })
  } catch (error) {
    rmSync(dataDir, { recursive: true, force: true })
    throw error
  }
}
