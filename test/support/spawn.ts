import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { TestContext } from './database.ts'
import { waitFor } from './wait-for.ts'

export interface SpawnedProcess {
  pid: number
  child: ChildProcess
  /** Everything written to stdout and stderr so far. */
  output(): string
  waitForOutput(pattern: RegExp, timeout?: number): Promise<RegExpExecArray>
  /** Messages received over IPC. */
  messages: unknown[]
  signal(signal: NodeJS.Signals): void
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}

export interface SpawnOptions {
  /** Added to a small environment of PATH, HOME and TMPDIR. */
  env?: Record<string, string | undefined>
  cwd?: string
  execArgv?: string[]
  /** Open an IPC channel. Default false: a process with one ends when its parent leaves. */
  ipc?: boolean
}

/** Absolute path of a compiled file, from its path below the project's root, for example `bin/pgbus.ts`. */
export function compiled(path: string): string {
  return fileURLToPath(new URL(`../../${path.replace(/\.ts$/, '.js')}`, import.meta.url))
}

/** Starts a Node program; ended at teardown if it still runs. */
export function spawnNode(
  t: TestContext,
  file: string,
  args: string[] = [],
  options: SpawnOptions = {},
): SpawnedProcess {
  const { PATH, HOME, TMPDIR } = process.env
  const child = fork(file, args, {
    cwd: options.cwd,
    execArgv: options.execArgv ?? [],
    env: Object.fromEntries(
      Object.entries({ PATH, HOME, TMPDIR, ...options.env }).filter(
        (entry): entry is [string, string] => entry[1] !== undefined,
      ),
    ),
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  if (!options.ipc) child.disconnect()
  let text = ''
  const messages: unknown[] = []
  child.stdout?.setEncoding('utf8').on('data', chunk => {
    text += chunk
  })
  child.stderr?.setEncoding('utf8').on('data', chunk => {
    text += chunk
  })
  child.on('message', message => messages.push(message))
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>(resolve => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    child.once('error', () => resolve({ code: null, signal: null }))
  })
  const isRunning = () => child.exitCode === null && child.signalCode === null
  t.teardown(async () => {
    if (!isRunning()) return
    child.kill('SIGTERM')
    await Promise.race([exited, new Promise(resolve => setTimeout(resolve, 5_000).unref())])
    if (isRunning()) child.kill('SIGKILL')
    await exited
  })
  return {
    pid: child.pid ?? -1,
    child,
    output: () => text,
    messages,
    exited,
    signal: signal => void child.kill(signal),
    waitForOutput: async (pattern, timeout = 20_000) => {
      const failed = (why: string) => new Error(`${why} before it wrote ${pattern}\n--- output ---\n${text}`)
      await waitFor(() => pattern.test(text) || !isRunning(), { timeout }).catch(() => {
        throw failed(`${timeout} ms passed`)
      })
      const match = pattern.exec(text)
      if (!match) throw failed('the process ended')
      return match
    },
  }
}

/** The process exists (a zombie does not count). */
export async function isAlive(pid: number): Promise<boolean> {
  const { readFile } = await import('node:fs/promises')
  try {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3) !== 'Z'
  } catch {
    try {
      process.kill(pid, 0)
      return process.platform !== 'linux'
    } catch {
      return false
    }
  }
}
