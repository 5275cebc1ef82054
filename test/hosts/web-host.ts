/** Starts `pgbus-web` for a test and knows its workers. */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from '../support/database.ts'
import { compiled, isAlive, type SpawnedProcess, type SpawnOptions, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'

export interface WebHost extends SpawnedProcess {
  /** Pids of workers in the order in which they became ready. */
  ready(): { index: number; pid: number }[]
  /** Everything that this host started and that still runs, itself included. */
  survivors(): number[]
}

export interface WebOptions extends SpawnOptions {
  /** Name of a module in test/fixtures/web. */
  app?: string
  args?: string[]
}

export const fixture = (name: string) => compiled(`test/fixtures/web/${name}.ts`)

/** Runs `pgbus-web` in an empty folder, without streams unless `env` says otherwise. */
export function spawnWeb(t: TestContext, { app, args = [], env = {}, ...options }: WebOptions): WebHost {
  const cwd = mkdtempSync(join(tmpdir(), 'pgbus-web-'))
  t.teardown(() => rmSync(cwd, { recursive: true, force: true }))
  const mark = `test-${randomUUID()}`
  const host = spawnNode(
    t,
    compiled('bin/pgbus-web.ts'),
    [...(app === undefined ? [] : [fixture(app)]), ...args],
    { cwd, env: { PGBUS_STREAMS_ENABLED: 'false', ...env, TEST_MARK: mark }, ...options },
  )
  return Object.assign(host, {
    ready: () =>
      [...host.output().matchAll(/worker (\d+) \(pid (\d+)\) is ready/g)].map(([, index, pid]) => ({
        index: Number(index),
        pid: Number(pid),
      })),
    survivors: () => marked(mark),
  })
}

/** The URL that the host printed. */
export async function addressOf(host: SpawnedProcess): Promise<string> {
  const [, address] = await host.waitForOutput(/listening on (http:\/\/[^",\s]+)/, bootTimeout)
  return address!
}

/** A machine that runs everything else too may be slow. */
export const bootTimeout = 60_000

/** Waits until `n` workers are ready; returns the address. */
export async function booted(host: WebHost, n: number): Promise<string> {
  await host.waitForOutput(new RegExp(`booted ${n} workers in`), bootTimeout)
  return addressOf(host)
}

/** Processes with this value in their environment. Empty where there is no /proc. */
function marked(mark: string): number[] {
  const found: number[] = []
  let names: string[] = []
  try {
    names = readdirSync('/proc')
  } catch {
    return []
  }
  for (const name of names) {
    if (!/^\d+$/.test(name)) continue
    try {
      if (readFileSync(`/proc/${name}/environ`, 'latin1').includes(mark)) found.push(Number(name))
    } catch {
      // Gone meanwhile, or not ours.
    }
  }
  return found
}

/** Waits until none of these processes runs. */
export async function gone(pids: number[], timeout = 10_000): Promise<void> {
  await waitFor(async () => (await Promise.all(pids.map(isAlive))).every(alive => !alive), {
    timeout,
    message: `the end of ${pids.join(', ')}`,
  })
}

/** Listens on a port for a moment: fails while somebody else does. */
export function listenOn(port: number): Promise<{ port: number; close(): Promise<void> }> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(port, '127.0.0.1', () =>
      resolve({
        port: (server.address() as import('node:net').AddressInfo).port,
        close: () => new Promise(done => server.close(() => done())),
      }),
    )
  })
}

export async function isFree(port: number): Promise<boolean> {
  try {
    await (await listenOn(port)).close()
    return true
  } catch {
    return false
  }
}
