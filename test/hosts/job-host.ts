/** Starts `pgbus start` for a test and knows its children. */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext, TestDatabase } from '../support/database.ts'
import { compiled, isAlive, type SpawnedProcess, type SpawnOptions, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'

export interface JobHost extends SpawnedProcess {
  /** Log lines so far. */
  lines(): Record<string, unknown>[]
  /** Children in the order in which they became ready. */
  ready(): { slot: string; pid: number }[]
  /** Waits until `n` children have become ready, counted from the start. */
  booted(n: number, timeout?: number): Promise<{ slot: string; pid: number }[]>
  /** Everything that this host started and that still runs, itself included. */
  survivors(): number[]
}

export interface JobHostOptions extends SpawnOptions {
  /** Name of a module in test/fixtures/jobs, or the path of another, from the root of the project. */
  jobs?: string
  workers?: string
  /** Default: workers, so that tests count nothing but these. */
  roles?: string
}

/** Runs `pgbus start` in an empty folder. */
export function spawnJobs(
  t: TestContext,
  db: Pick<TestDatabase, 'url'>,
  { jobs = 'jobs', workers = 'default: 5', roles = 'workers', env = {}, ...options }: JobHostOptions = {},
): JobHost {
  const cwd = mkdtempSync(join(tmpdir(), 'pgbus-jobs-'))
  const mark = `test-${randomUUID()}`
  t.teardown(() => {
    // A supervisor that a test killed leaves children, which end by themselves; a failed test must not wait.
    for (const pid of marked(mark)) kill(pid)
    rmSync(cwd, { recursive: true, force: true })
  })
  const host = spawnNode(t, compiled('bin/pgbus.ts'), ['start'], {
    cwd,
    env: {
      PGBUS_DATABASE_URL: db.url,
      PGBUS_WORKERS: workers,
      PGBUS_ROLES: roles,
      PGBUS_IMPORTS: compiled(jobs.includes('/') ? jobs : `test/fixtures/jobs/${jobs}.ts`),
      ...env,
      TEST_MARK: mark,
    },
    ...options,
  })
  const lines = () =>
    host
      .output()
      .split('\n')
      .flatMap(line => {
        try {
          return [JSON.parse(line) as Record<string, unknown>]
        } catch {
          return []
        }
      })
  const ready = () =>
    lines()
      .filter(({ msg, slot }) => msg === `${String(slot)} is ready`)
      .map(({ slot, child_pid }) => ({ slot: String(slot), pid: Number(child_pid) }))
  return Object.assign(host, {
    lines,
    ready,
    booted: async (n: number, timeout = 30_000) => {
      const enough = waitFor(() => ready().length >= n, { timeout, message: `${n} children` })
      const ended = host.exited.then(() => {
        throw new Error('the host ended')
      })
      try {
        await Promise.race([enough, ended])
        return ready()
      } catch (error) {
        enough.catch(() => undefined)
        throw new Error(`${(error as Error).message}\n--- output ---\n${host.output()}`)
      } finally {
        ended.catch(() => undefined)
      }
    },
    survivors: () => marked(mark),
  })
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // Gone meanwhile.
  }
}

/** Processes with this value in their environment. Empty where there is no /proc. */
function marked(mark: string): number[] {
  let names: string[] = []
  try {
    names = readdirSync('/proc')
  } catch {
    return []
  }
  return names
    .filter(name => /^\d+$/.test(name))
    .filter(name => {
      try {
        return readFileSync(`/proc/${name}/environ`, 'latin1').includes(mark)
      } catch {
        // Gone meanwhile, or not ours.
        return false
      }
    })
    .map(Number)
}

/** Waits until none of these processes runs. */
export async function gone(pids: number[], timeout = 10_000): Promise<void> {
  await waitFor(async () => (await Promise.all(pids.map(isAlive))).every(alive => !alive), {
    timeout,
    message: `the end of ${pids.join(', ')}`,
  })
}
