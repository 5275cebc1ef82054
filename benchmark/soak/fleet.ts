import { type JobHost, spawnJobs } from '../../test/hosts/job-host.ts'
import type { TestContext } from '../../test/support/database.ts'
import { isAlive } from '../../test/support/spawn.ts'
import { waitFor } from '../../test/support/wait-for.ts'

const workers = 'alpha, beta: 6; beta, gamma, alpha: 6'
const childrenPerHost = 3
/** On a busy machine, with a database that goes away meanwhile. */
const bootMs = 120_000

/** The supervisors of the soak, those that run and those that are gone. */
export class Fleet {
  /** Processes that were killed, workers and supervisors. */
  readonly killed = new Set<number>()
  readonly #scope: TestContext
  readonly #url: string
  readonly #visibilityTimeout: number
  readonly #running = new Set<JobHost>()
  readonly #all: JobHost[] = []

  constructor(scope: TestContext, url: string, visibilityTimeout: number) {
    this.#scope = scope
    this.#url = url
    this.#visibilityTimeout = visibilityTimeout
  }

  get hosts(): JobHost[] {
    return [...this.#running]
  }

  /** Starts a supervisor; resolves when all its children are ready. */
  async start(): Promise<JobHost> {
    const host = spawnJobs(
      this.#scope,
      { url: this.#url },
      {
        jobs: 'benchmark/soak/handlers.ts',
        workers,
        roles: 'workers,dispatcher',
        env: {
          PGBUS_VISIBILITY_TIMEOUT: `${this.#visibilityTimeout}ms`,
          // A job may be held by a process that is killed again and again.
          PGBUS_MAX_RETRIES: '10',
        },
      },
    )
    this.#all.push(host)
    this.#running.add(host)
    await host.booted(childrenPerHost, bootMs)
    return host
  }

  /** Running child processes. */
  async children(): Promise<number[]> {
    const pids = this.hosts.flatMap(host => host.ready().map(({ pid }) => pid))
    const alive = await Promise.all(pids.map(isAlive))
    return pids.filter((_, index) => alive[index])
  }

  kill(pid: number): void {
    this.killed.add(pid)
    process.kill(pid, 'SIGKILL')
  }

  async killHost(host: JobHost): Promise<void> {
    this.#running.delete(host)
    this.kill(host.pid)
    await host.exited
  }

  /** Drains a supervisor. */
  async stop(host: JobHost): Promise<void> {
    this.#running.delete(host)
    host.signal('SIGTERM')
    const { code, signal } = await host.exited
    if (code !== 0)
      throw new Error(`a supervisor ended with ${code ?? signal}\n${host.output().slice(-5_000)}`)
  }

  /** Stops all; resolves to the processes that are left some seconds later. */
  async close(): Promise<number[]> {
    await Promise.all(this.hosts.map(host => this.stop(host)))
    const left = () => this.#all.flatMap(host => host.survivors())
    await waitFor(() => left().length === 0, { timeout: 10_000, interval: 200 }).catch(() => undefined)
    return left()
  }

  /** What every supervisor and worker wrote. */
  output(): string {
    return this.#all.map(host => host.output()).join('')
  }
}
