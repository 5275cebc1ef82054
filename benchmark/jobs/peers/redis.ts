import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createConnection, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export type Fsync = 'always' | 'everysec'

const startTimeoutMs = 10_000

export interface Redis {
  readonly port: number
  readonly version: string
  connections(): Promise<number>
  commands(): Promise<number>
  stop(): Promise<void>
}

/** Whether there is a `redis-server` on the PATH. */
export function hasRedis(): boolean {
  try {
    execFileSync('redis-server', ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

/** A server of its own on a free port, with an append-only file in a folder that goes with it. */
export async function startRedis(fsync: Fsync): Promise<Redis> {
  const dir = mkdtempSync(join(tmpdir(), 'pgbus-bench-redis-'))
  const port = await freePort()
  const settings = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', dir, '--save', '']
  const server = spawn('redis-server', [...settings, '--appendonly', 'yes', '--appendfsync', fsync], {
    stdio: 'ignore',
  })
  const endWithUs = () => server.kill('SIGKILL')
  process.once('exit', endWithUs)
  try {
    const socket = await connectTo(port, server)
    const info = async (section: string) => ask(socket, `INFO ${section}`)
    const number = async (section: string, field: string) =>
      Number(new RegExp(`${field}:(\\d+)`).exec(await info(section))?.[1])
    return {
      port,
      version: /redis_version:(\S+)/.exec(await info('server'))?.[1] ?? 'unknown',
      connections: () => number('clients', 'connected_clients'),
      commands: () => number('stats', 'total_commands_processed'),
      stop: async () => {
        process.removeListener('exit', endWithUs)
        socket.destroy()
        const ended = once(server, 'exit')
        server.kill('SIGTERM')
        await ended
        rmSync(dir, { recursive: true, force: true })
      },
    }
  } catch (error) {
    endWithUs()
    throw error
  }
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const address = probe.address()
  probe.close()
  if (typeof address !== 'object' || address === null) throw new Error('no free port')
  return address.port
}

async function connectTo(port: number, server: ChildProcess): Promise<Socket> {
  const deadline = Date.now() + startTimeoutMs
  for (;;) {
    const socket = createConnection(port, '127.0.0.1')
    try {
      await once(socket, 'connect')
      return socket
    } catch (error) {
      if (Date.now() > deadline || server.exitCode !== null) throw error
      await sleep(50)
    }
  }
}

/** One command at a time; its answer is a bulk string. */
async function ask(socket: Socket, command: string): Promise<string> {
  socket.write(`${command}\r\n`)
  let answer = ''
  for (;;) {
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    answer += chunk.toString()
    const [head] = answer.split('\r\n', 1)
    if (head !== undefined && answer.length >= head.length + 4 + Number(head.slice(1))) return answer
  }
}
