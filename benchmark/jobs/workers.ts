import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Peer } from './peers/peer.ts'
import type { Report } from './report.ts'

const startTimeoutMs = 60_000
const stopTimeoutMs = 20_000
const lookMs = 3

/** Worker processes of one peer, which wait at their gate until {@link Workers.start}. */
export class Workers {
  readonly #peer: Peer
  readonly #dir = mkdtempSync(join(tmpdir(), 'pgbus-bench-'))
  readonly #children: ChildProcess[] = []
  readonly #sockets: Socket[] = []
  readonly #reports = new Map<Socket, Report>()
  readonly #latencies: number[] = []
  #server: Server | undefined

  private constructor(peer: Peer) {
    this.#peer = peer
  }

  /** Resolves when all of them are loaded and wait. */
  static async fork(peer: Peer, processes: number, concurrency: number): Promise<Workers> {
    const workers = new Workers(peer)
    try {
      await workers.#fork(processes, concurrency)
      return workers
    } catch (error) {
      await workers.stop()
      throw error
    }
  }

  async #fork(processes: number, concurrency: number): Promise<void> {
    const path = join(this.#dir, 'report.sock')
    this.#server = createServer(socket => {
      this.#sockets.push(socket)
      socket.on('error', () => undefined)
      createInterface(socket).on('line', line => {
        const report = JSON.parse(line) as Report
        this.#reports.set(socket, report)
        this.#latencies.push(...report.latencies)
      })
    }).listen(path)
    await once(this.#server, 'listening')
    const { file, args, env } = this.#peer.workerOptions(concurrency)
    for (let n = 0; n < processes; n += 1) {
      this.#children.push(
        spawn(process.execPath, [file, ...args], {
          env: { ...process.env, ...env, BENCH_SOCKET: path },
          stdio: ['ignore', 'ignore', 'inherit'],
        }),
      )
    }
    await this.#until(() => this.#sockets.length === processes, startTimeoutMs, 'start')
  }

  start(): void {
    for (const socket of this.#sockets) socket.write('go\n')
  }

  get done(): number {
    return [...this.#reports.values()].reduce((sum, { done }) => sum + done, 0)
  }

  /** Machine time when the first handler began, and the latest one that was told of. */
  get first(): number {
    return Math.min(...[...this.#reports.values()].map(({ first }) => first))
  }

  get last(): number {
    return Math.max(...[...this.#reports.values()].map(({ last }) => last))
  }

  get latencies(): readonly number[] {
    return this.#latencies
  }

  /** Largest resident memory of a process that runs handlers, MiB. */
  get rss(): number {
    return Math.max(...[...this.#reports.values()].map(({ rssBytes }) => rssBytes)) / 2 ** 20
  }

  waitForDone(count: number, timeoutMs: number): Promise<void> {
    return this.#until(() => this.done >= count, timeoutMs, `handle ${count} jobs`)
  }

  async stop(): Promise<void> {
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      const hard = setTimeout(() => child.kill('SIGKILL'), stopTimeoutMs)
      await ended
      clearTimeout(hard)
    }
    for (const socket of this.#sockets) socket.destroy()
    this.#server?.close()
    rmSync(this.#dir, { recursive: true, force: true })
  }

  async #until(met: () => boolean, timeoutMs: number, what: string): Promise<void> {
    const deadline = Date.now() + timeoutMs
    while (!met()) {
      const dead = this.#children.find(child => child.exitCode !== null || child.signalCode !== null)
      if (dead)
        throw new Error(`a worker of ${this.#peer.name} ended with ${dead.exitCode ?? dead.signalCode}`)
      if (Date.now() > deadline) throw new Error(`the workers of ${this.#peer.name} did not ${what} in time`)
      await sleep(lookMs)
    }
  }
}
