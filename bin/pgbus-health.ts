#!/usr/bin/env node
/**
 * Asks a host's health port, for probes that run a command. A probe runs every few seconds, so this file loads
 * one module of Node and nothing of ours. Exit codes: 0 the answer was 200, 1 it was not or none came, 2 wrong
 * usage.
 */
import { connect } from 'node:net'

const usage = `Usage: pgbus-health [--port N] [--path P] [--timeout S]

  --port N     health port of the host; default: PGBUS_HEALTH_PORT
  --path P     what to ask for; default: /readyz
  --timeout S  seconds for connecting and answering together; default: 2
`
const statusLine = /^HTTP\/\d+(?:\.\d+)? (\d{3})(?: [^\r\n]*)?\r?\n/
/** A status line that has not ended by then is none. */
const longestLine = 1_024

interface Probe {
  port: number
  path: string
  timeoutMs: number
}

class UsageError extends Error {}

function readProbe(args: readonly string[], env: NodeJS.ProcessEnv): Probe | 'help' {
  const given = new Map<string, string>()
  const rest = [...args]
  for (let arg = rest.shift(); arg !== undefined; arg = rest.shift()) {
    if (arg === '--help' || arg === '-h') return 'help'
    const [, flag = '', inline] = /^(--[a-z]+)(?:=(.*))?$/s.exec(arg) ?? []
    if (!['--port', '--path', '--timeout'].includes(flag)) throw new UsageError(`unknown argument ${arg}`)
    const value = inline ?? rest.shift()
    // What looks like a flag is none's value: the real one was forgotten.
    if (value === undefined || value === '' || (inline === undefined && value.startsWith('--')))
      throw new UsageError(`${flag} needs a value`)
    given.set(flag, value)
  }
  const port = given.get('--port') ?? env.PGBUS_HEALTH_PORT ?? ''
  if (port === '') throw new UsageError('no port: give --port or set PGBUS_HEALTH_PORT')
  if (!/^\d{1,5}$/.test(port) || Number(port) < 1 || Number(port) > 65_535)
    throw new UsageError(`the port must be an integer from 1 to 65535, got ${port}`)
  const path = given.get('--path') ?? '/readyz'
  if (!/^\/[!-~]*$/.test(path)) throw new UsageError(`the path must start with "/", got ${path}`)
  const timeout = given.get('--timeout') ?? '2'
  const timeoutMs = Number(timeout) * 1_000
  // The upper limit is that of a timer.
  if (!/^(\d+\.?\d*|\.\d+)$/.test(timeout) || !(timeoutMs > 0) || timeoutMs > 2_147_483_647)
    throw new UsageError(`the timeout must be a number of seconds greater than 0, got ${timeout}`)
  return { port: Number(port), path, timeoutMs }
}

/** The status code of the answer; null: none, or none that HTTP knows. */
function ask({ port, path, timeoutMs }: Probe): Promise<{ code: number | null; reason: string }> {
  return new Promise(resolve => {
    let head = ''
    const socket = connect({ port, host: '127.0.0.1' })
    const finish = (code: number | null, reason = '') => {
      clearTimeout(timer)
      socket.destroy()
      resolve({ code, reason })
    }
    const timer = setTimeout(() => finish(null, `no answer within ${timeoutMs / 1_000} s`), timeoutMs)
    socket.setEncoding('latin1')
    socket.on('error', error => finish(null, error.message))
    socket.on('end', () => finish(null, 'the connection was closed without an answer'))
    socket.on('data', chunk => {
      // The line may come in any pieces.
      head += String(chunk)
      const match = statusLine.exec(head)
      if (match) finish(Number(match[1]))
      else if (head.includes('\n') || head.length > longestLine) finish(null, 'the answer is not HTTP')
    })
    socket.write(`GET ${path} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n`)
  })
}

async function main(): Promise<number> {
  let probe: Probe | 'help'
  try {
    probe = readProbe(process.argv.slice(2), process.env)
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    process.stderr.write(`pgbus-health: ${error.message}\n${usage}`)
    return 2
  }
  if (probe === 'help') {
    process.stdout.write(usage)
    return 0
  }
  const { code, reason } = await ask(probe)
  process.stdout.write(`pgbus-health: ${probe.path} -> ${code ?? 'no response'}\n`)
  if (reason !== '') process.stderr.write(`pgbus-health: 127.0.0.1:${probe.port}: ${reason}\n`)
  return code === 200 ? 0 : 1
}

process.exitCode = await main()
