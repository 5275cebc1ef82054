import { execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  chmodSync,
  chownSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { platform } from 'node:os'
import { join } from 'node:path'
import { EmbeddedDatabaseError } from '../../core/errors.ts'
import { sleep } from '../../core/sleep.ts'
import type { Account, Place } from './place.ts'

const predecessorTimeoutMs = 20_000
/** The one user of the cluster. */
export const user = 'pgbus'

/** Makes the cluster when there is none; returns the password of its one user. */
export async function initialise(place: Place, account: Account | undefined): Promise<string> {
  removeLeftovers(place.root)
  if (existsSync(join(place.cluster, 'PG_VERSION'))) return readFileSync(place.passwordFile, 'utf8').trim()
  const password = randomBytes(24).toString('base64url')
  writeFileSync(place.passwordFile, `${password}\n`, { mode: 0o600 })
  if (account) chownSync(place.passwordFile, account.uid, account.gid)
  for (const name of ['initdb', 'postgres']) makeExecutable(join(place.bin, name))

  // A folder of its own until it is complete: an interrupted run must not leave half a cluster behind.
  const partial = join(place.root, `cluster.${process.pid}`)
  rmSync(partial, { recursive: true, force: true })
  const failure = await runApart(
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
    { ...account, env: serverEnvironment(), cwd: place.root },
  )
  if (failure !== undefined) {
    rmSync(partial, { recursive: true, force: true })
    throw new EmbeddedDatabaseError(`initdb failed in ${place.root}: ${failure}`)
  }
  renameSync(partial, place.cluster)
  return password
}

/** Runs a program that a Ctrl-C at the terminal does not reach. Resolves to what it said when it failed. */
function runApart(
  file: string,
  args: string[],
  options: { uid?: number; gid?: number; env: NodeJS.ProcessEnv; cwd: string },
): Promise<string | undefined> {
  return new Promise(resolve => {
    const child = spawn(file, args, { ...options, detached: true, stdio: ['ignore', 'ignore', 'pipe'] })
    let output = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-4_000)
    })
    child.once('error', error => resolve(error.message))
    child.once('close', code =>
      resolve(code === 0 ? undefined : output.trim().split('\n').at(-1) || `code ${code}`),
    )
  })
}

/** Clusters that were never completed, of processes that are gone. */
function removeLeftovers(root: string): void {
  for (const name of readdirSync(root)) {
    const pid = /^cluster\.(\d+)$/.exec(name)?.[1]
    if (pid !== undefined && !isAlive(Number(pid))) rmSync(join(root, name), { recursive: true, force: true })
  }
}

/** The server of a process that was killed a moment ago is still shutting down; one that stays is in use. */
export async function waitForPredecessor(cluster: string): Promise<void> {
  const pidFile = join(cluster, 'postmaster.pid')
  const until = performance.now() + predecessorTimeoutMs
  while (existsSync(pidFile)) {
    const pid = Number(readFileSync(pidFile, 'utf8').split('\n')[0])
    if (!isAlive(pid)) return
    if (!runsPostgres(pid)) {
      // The machine went down meanwhile and the number belongs to somebody else: the server would refuse it too.
      rmSync(pidFile)
      return
    }
    if (performance.now() > until) {
      throw new EmbeddedDatabaseError(
        `the embedded database in ${cluster} is in use by another process (pid ${pid})`,
      )
    }
    await sleep(100)
  }
}

/** Nothing of the caller's PG* variables may reach the server. */
export function serverEnvironment(): NodeJS.ProcessEnv {
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

/** When in doubt, yes: a pid file that is in use must stay. */
function runsPostgres(pid: number): boolean {
  try {
    const command =
      platform() === 'linux'
        ? readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        : execFileSync('ps', ['-o', 'command=', '-p', String(pid)], { encoding: 'utf8' })
    return command.includes('postgres')
  } catch {
    return true
  }
}
