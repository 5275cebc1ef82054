import pg from 'pg'
import { sleep } from '../../lib/core/sleep.ts'
import { freeze } from '../../test/support/freeze.ts'
import { waitFor } from '../../test/support/wait-for.ts'
import type { Fleet } from './fleet.ts'
import type { Random } from './random.ts'

export interface Server {
  url: string
  stop(): Promise<void>
  start(): Promise<void>
}

/** A time in which connections were cut, epoch milliseconds. */
export interface Break {
  from: number
  to: number
}

/** Pauses between two acts, ms. */
const shortestPause = 800
const longestPause = 3_000

/** Does harm, each kind as often as the others, in random order. */
export class Violence {
  /** How often each kind was done. */
  readonly counts: Record<string, number> = {}
  readonly breaks: Break[] = []
  readonly #fleet: Fleet
  readonly #server: Server
  readonly #random: Random
  readonly #acts: Record<string, () => Promise<void>>

  constructor(options: { fleet: Fleet; server: Server; random: Random }) {
    this.#fleet = options.fleet
    this.#server = options.server
    this.#random = options.random
    this.#acts = {
      'workers killed': () => this.#killWorker(),
      'workers frozen': () => this.#freezeWorker(),
      'backends terminated': () => this.#terminateBackends(),
      'listen backends terminated': () => this.#broken(() => this.#terminate('pgbus-listen', 9)),
      'supervisors killed': () => this.#killSupervisor(),
      'rolling restarts': () => this.#rollingRestart(),
      'server crashes': () => this.#broken(() => this.#crashServer()),
    }
  }

  /** Goes on for `ms`, with one restart of PostgreSQL in the middle. */
  async run(ms: number): Promise<void> {
    const began = performance.now()
    const left = () => ms - (performance.now() - began)
    let restarted = false
    let bag: string[] = []
    while (left() > 0) {
      await sleep(Math.min(left(), this.#random.between(shortestPause, longestPause)))
      if (!restarted && left() < ms / 2) {
        restarted = true
        await this.#do('restarts of PostgreSQL', () => this.#broken(() => this.#restartServer()))
        continue
      }
      // Killing a worker is what happens most.
      if (bag.length === 0) bag = [...Object.keys(this.#acts), 'workers killed', 'workers killed']
      const act = this.#random.pick(bag) as string
      bag.splice(bag.indexOf(act), 1)
      await this.#do(act, this.#acts[act] as () => Promise<void>)
    }
  }

  async #do(name: string, act: () => Promise<void>): Promise<void> {
    this.counts[name] = (this.counts[name] ?? 0) + 1
    await act()
  }

  async #broken(act: () => Promise<void>): Promise<void> {
    const from = Date.now()
    try {
      await act()
    } finally {
      this.breaks.push({ from, to: Date.now() })
    }
  }

  async #killWorker(): Promise<void> {
    const pid = this.#random.pick(await this.#fleet.children())
    if (pid !== undefined) this.#fleet.kill(pid)
  }

  async #freezeWorker(): Promise<void> {
    const pid = this.#random.pick(await this.#fleet.children())
    if (pid === undefined) return
    const thaw = freeze(pid)
    await sleep(this.#random.between(500, 3_000))
    thaw()
  }

  async #terminateBackends(): Promise<void> {
    await this.#broken(() => this.#terminate('%', 1 + Math.floor(this.#random.next() * 4)))
  }

  async #killSupervisor(): Promise<void> {
    const host = this.#random.pick(this.#fleet.hosts)
    if (!host) return
    await this.#fleet.killHost(host)
    await this.#fleet.start()
  }

  async #rollingRestart(): Promise<void> {
    const old = this.#random.pick(this.#fleet.hosts)
    await this.#fleet.start()
    if (old) await this.#fleet.stop(old)
  }

  /** One backend killed by the system makes PostgreSQL end all and recover. */
  async #crashServer(): Promise<void> {
    const pids = await this.#backends('pgbus%')
    const pid = this.#random.pick(pids)
    if (pid !== undefined) process.kill(pid, 'SIGKILL')
    await this.#answers()
  }

  async #restartServer(): Promise<void> {
    await this.#server.stop()
    await this.#server.start()
    await this.#answers()
  }

  async #answers(): Promise<void> {
    await waitFor(() => this.#query('SELECT 1'), { timeout: 30_000, interval: 100, message: 'PostgreSQL' })
  }

  async #backends(like: string): Promise<number[]> {
    const rows = await this.#query<{ pid: number }>(
      `SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE $1 ORDER BY pid`,
      [like],
    )
    return rows.map(({ pid }) => pid)
  }

  async #terminate(like: string, most: number): Promise<void> {
    const pids = await this.#backends(like)
    for (let n = 0; n < most && pids.length > 0; n += 1) {
      const pid = this.#random.pick(pids) as number
      pids.splice(pids.indexOf(pid), 1)
      await this.#query('SELECT pg_terminate_backend($1)', [pid])
    }
  }

  async #query<R>(text: string, values?: unknown[]): Promise<R[]> {
    const client = new pg.Client({ connectionString: this.#server.url, application_name: 'violence' })
    client.on('error', () => undefined)
    await client.connect()
    try {
      return (await client.query(text, values)).rows as R[]
    } finally {
      await client.end()
    }
  }
}
