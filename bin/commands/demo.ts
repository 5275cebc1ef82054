/**
 * `pgbus demo`: the order desk of `example/` on an embedded PostgreSQL, with the real hosts: one job
 * supervisor with two workers and one web cluster with two workers. Everything ends with this process.
 */
import { type ChildProcess, fork, type StdioOptions } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { BootError } from '../../lib/core/errors.ts'
import { toError } from '../../lib/core/report.ts'
import { sleep } from '../../lib/core/sleep.ts'
import { type EmbeddedServer, startEmbedded } from '../../lib/db/embedded/server.ts'
import { createPgbus, type Pgbus } from '../../lib/pgbus.ts'
import { isNoEntry, unreachable } from '../../lib/processes/unreachable.ts'

const host = '127.0.0.1'
const firstPort = 3000
const lastPort = 3099
const readyTimeoutMs = 60_000
const stopTimeoutMs = 40_000
const tickerIntervalMs = 1_000

const example = new URL('../../example/order-desk/', import.meta.url)

export interface DemoOptions {
  env: NodeJS.ProcessEnv
  /** Folder that gets `.pgbus`. */
  cwd: string
  print(line: string): void
}

/** Runs until a signal, a host that ends by itself, or a parent that is gone. Resolves to the exit code. */
export async function runDemo(options: DemoOptions): Promise<number> {
  const cleanups: (() => unknown)[] = []
  try {
    return await run(options, cleanup => cleanups.push(cleanup))
  } finally {
    for (const cleanup of cleanups.reverse()) {
      try {
        await cleanup()
      } catch (error) {
        // The others must still run: a database that nobody stops would stay.
        options.print(`pgbus demo: ${toError(error).message}`)
      }
    }
  }
}

async function run(
  { env, cwd, print }: DemoOptions,
  onEnd: (cleanup: () => unknown) => void,
): Promise<number> {
  const folder = resolve(cwd, '.pgbus')
  mkdirSync(folder, { recursive: true })
  const interrupted = stopSignal()
  const stopped = once(interrupted, 'abort').then(() => 'stop' as const)
  const port = await choosePort(env.PORT)

  const server = env.DATABASE_URL ? undefined : await embedded(folder, onEnd, print)
  const databaseUrl = server?.url ?? env.DATABASE_URL!
  const secret = rememberedSecret(join(folder, 'secret'))
  const pgbus = createPgbus({ databaseUrl, streams: { secret }, log: { level: 'silent' } })
  onEnd(() => pgbus.close())
  if (interrupted.aborted) return 0
  await pgbus.schema.migrate().catch(error => {
    const loaded = { config: pgbus.config, sources: new Map() }
    throw isNoEntry(error) ? unreachable(error, loaded, pgbus.connector) : error
  })
  const { OrderTable } = (await import(
    new URL('orders.js', example).href
  )) as typeof import('../../example/order-desk/orders.ts')
  const orders = new OrderTable(databaseUrl)
  onEnd(() => orders.close())
  await orders.create()
  if (interrupted.aborted) return 0

  const logFile = join(folder, 'demo.log')
  const log = openSync(logFile, 'a', 0o600)
  onEnd(() => closeSync(log))
  const hostEnv = {
    ...env,
    PGBUS_DATABASE_URL: databaseUrl,
    PGBUS_STREAMS_SECRET: secret,
    PGBUS_LOG_FORMAT: 'text',
    NODE_ENV: env.NODE_ENV ?? 'development',
  }
  const config = fileURLToPath(new URL('pgbus.config.js', example))
  const webArgs = ['--config', config, '--port', String(port), '--host', host, '--workers', '2']
  const shared = { env: hostEnv, log, lifeline: server?.lifeline }
  const jobs = new Host('the job host', 'pgbus.js', ['start', '--config', config], shared)
  const web = new Host('the web host', 'pgbus-web.js', webArgs, shared)
  onEnd(() => Promise.all([jobs.stop(), web.stop()]))

  const databaseEnded = server?.exited.then(() => 'the embedded PostgreSQL ended')
  const ended = Promise.race([jobs.exited, web.exited, ...(databaseEnded ? [databaseEnded] : [])])
  const ready = Promise.all([jobs.ready, web.ready]).then(() => 'ready' as const)
  const outcome = await Promise.race([stopped, ended, ready])
  if (outcome !== 'ready') return finish(outcome, logFile)

  const address = `http://${host}:${port}`
  await waitUntilHealthy(`${address}/healthz`)
  print(`pgbus demo ready: ${address}`)
  print(`logs: ${logFile} · Ctrl-C stops everything`)
  onEnd(startTicker(pgbus, orders))
  return finish(await Promise.race([stopped, ended]), logFile)
}

function finish(outcome: string, logFile: string): number {
  if (outcome === 'stop') return 0
  throw new BootError(`${outcome}; see ${logFile}`)
}

/** One of the two host programs, as a process of its own in a session of its own: Ctrl-C reaches only us. */
class Host {
  readonly ready: Promise<void>
  /** What happened, in words, once the process has ended. */
  readonly exited: Promise<string>
  readonly #child: ChildProcess

  constructor(
    name: string,
    program: string,
    args: string[],
    { env, log, lifeline }: { env: NodeJS.ProcessEnv; log: number; lifeline: Socket | undefined },
  ) {
    const file = fileURLToPath(new URL(`../${program}`, import.meta.url))
    // The channel is what ties the host to us: when we die, it closes, and the host drains and ends. Until then it
    // keeps the database up, which it needs for its last words.
    const stdio: StdioOptions = ['ignore', log, log, 'ipc', ...(lifeline ? [lifeline] : [])]
    this.#child = fork(file, args, { env, detached: true, stdio })
    this.exited = new Promise(resolveExit => {
      this.#child.once('error', error => resolveExit(`${name} could not be started: ${error.message}`))
      this.#child.once('exit', (code, signal) => resolveExit(`${name} ended (${signal ?? `code ${code}`})`))
    })
    this.ready = new Promise(resolveReady => {
      this.#child.on('message', message => {
        const { pgbus, t } = message as { pgbus?: unknown; t?: unknown }
        if (pgbus === 'host' && t === 'ready') resolveReady()
      })
    })
  }

  /** Resolves when the host and everything that it forked are gone; what a killed host left is draining. */
  async stop(): Promise<void> {
    this.#child.kill('SIGTERM')
    const until = performance.now() + stopTimeoutMs
    while (this.#signalAll(0)) {
      await sleep(50)
      if (performance.now() > until) this.#signalAll('SIGKILL')
    }
    await this.exited
  }

  /** False when nobody of the group is left. */
  #signalAll(signal: NodeJS.Signals | 0): boolean {
    if (this.#child.pid === undefined) return false
    try {
      return process.kill(-this.#child.pid, signal)
    } catch {
      return false
    }
  }
}

async function embedded(
  folder: string,
  onEnd: (cleanup: () => unknown) => void,
  print: (line: string) => void,
): Promise<EmbeddedServer> {
  const server = await startEmbedded({
    dataDir: join(folder, 'postgres'),
    port: 0,
    persistent: true,
    log: print,
  })
  onEnd(() => server.stop())
  return server
}

/** Pages that stay open over a restart of the demo hold tokens made with this secret. */
function rememberedSecret(file: string): string {
  if (!existsSync(file)) writeFileSync(file, randomBytes(32).toString('hex'), { mode: 0o600 })
  return readFileSync(file, 'utf8').trim()
}

/** Orders done in the last second, told to every open page; nobody needs it later, so it is not stored. */
function startTicker(
  pgbus: Pgbus,
  orders: { totals(): Promise<{ done: number; open: number }> },
): () => void {
  const stream = pgbus.stream('orders')
  let before: number | undefined
  const timer = setInterval(async () => {
    try {
      const { done, open } = await orders.totals()
      const rate = done - (before ?? done)
      before = done
      await stream.broadcast({ done, open, rate }, { event: 'ticker', durable: false })
    } catch {
      // The database may be restarting; the next tick tells the figures again.
    }
  }, tickerIntervalMs)
  return () => clearInterval(timer)
}

/** `PORT`, else the first free one from 3000 on. */
async function choosePort(wanted: string | undefined): Promise<number> {
  if (wanted) {
    const port = Number(wanted)
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new BootError(`PORT must be an integer between 1 and 65535 (got ${JSON.stringify(wanted)})`)
    if (!(await isFree(port)))
      throw new BootError(`port ${port} of ${host} is in use; choose another with PORT`)
    return port
  }
  for (let port = firstPort; port <= lastPort; port += 1) if (await isFree(port)) return port
  throw new BootError(`no free port from ${firstPort} to ${lastPort}; choose one with PORT`)
}

function isFree(port: number): Promise<boolean> {
  return new Promise(resolveFree => {
    const server = createServer()
    server.once('error', () => resolveFree(false))
    server.listen(port, host, () => server.close(() => resolveFree(true)))
  })
}

async function waitUntilHealthy(url: string): Promise<void> {
  const until = Date.now() + readyTimeoutMs
  for (;;) {
    const ok = await fetch(url).then(
      response => response.ok,
      () => false,
    )
    if (ok) return
    if (Date.now() > until) throw new BootError(`${url} does not answer 200`)
    await sleep(50)
  }
}

/** Aborts at the first INT, TERM or HUP, and when the process that started us is gone. A second signal ends at once. */
function stopSignal(): AbortSignal {
  const parent = process.ppid
  const stopping = new AbortController()
  const stop = () => {
    if (stopping.signal.aborted) process.exit(1)
    stopping.abort()
  }
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop)
  const watch = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(watch)
    stop()
  }, 1_000)
  watch.unref()
  return stopping.signal
}
