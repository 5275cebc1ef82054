import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import pg from 'pg'
import { serverAccount } from '../../lib/db/embedded/place.ts'
import type { TestContext } from './database.ts'
import { freePort } from './free-port.ts'
import { waitFor } from './wait-for.ts'

/** Server connections: few, so that clients must share them. */
const poolSize = 4

/** The program of the system, if there is one. */
export function findPgBouncer(): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin']
  return folders.map(folder => join(folder, 'pgbouncer')).find(existsSync)
}

/**
 * Starts the system's PgBouncer in transaction mode before the server of `url`; resolves to the URL through it.
 * @throws when there is no `pgbouncer` on the PATH: `apt-get install pgbouncer`.
 */
export async function startPgBouncer(t: TestContext, url: string): Promise<string> {
  const program = findPgBouncer()
  if (program === undefined) throw new Error('no pgbouncer on the PATH: apt-get install pgbouncer')
  const target = new URL(url)
  const port = await freePort()
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-bouncer-'))
  // It does not run as root.
  chmodSync(folder, 0o755)
  const file = join(folder, 'pgbouncer.ini')
  const login = `user=${target.username} password=${decodeURIComponent(target.password)}`
  writeFileSync(
    file,
    `[databases]
* = host=${target.hostname} port=${target.port} ${login}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 200
`,
  )
  chmodSync(file, 0o644)
  const child = spawn(program, [file], {
    ...serverAccount(),
    cwd: folder,
    env: {},
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let output = ''
  child.stderr.setEncoding('utf8').on('data', chunk => {
    output += chunk
  })
  const exited = new Promise<void>(resolve => {
    child.once('exit', () => resolve())
    child.once('error', error => {
      output += error.message
      resolve()
    })
  })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await exited
    rmSync(folder, { recursive: true, force: true })
  })
  const through = new URL(url)
  through.hostname = '127.0.0.1'
  through.port = String(port)
  const answers = waitFor(
    async () => {
      const client = new pg.Client({ connectionString: through.toString(), application_name: 'test' })
      client.on('error', () => undefined)
      await client.connect()
      await client.query('SELECT 1').finally(() => client.end())
      return true
    },
    { message: 'pgbouncer' },
  )
  answers.catch(() => undefined)
  const ended = exited.then(() => {
    throw new Error(`pgbouncer ended: ${output}`)
  })
  ended.catch(() => undefined)
  await Promise.race([answers, ended])
  return through.toString()
}
