#!/usr/bin/env node
import { Command, CommanderError, InvalidArgumentError } from 'commander'
import { packageVersion } from '../lib/core/version.ts'
import { RestartSignals } from '../lib/processes/web/restart-signals.ts'

/** Exit codes: 0 done, 1 could not boot or run, 2 wrong usage or configuration. */
async function main(): Promise<number> {
  // First of all: without a listener the first opens Node's inspector, and the second ends the process.
  const restartSignals = new RestartSignals()
  const version = packageVersion()

  let code = 0
  const program = new Command('pgbus-web')
    .description('Serves an application from a cluster of worker processes that share one LISTEN connection.')
    .usage('[start] [app] [options]')
    .argument('[app]', 'application module; default: web.app of the configuration')
    .option('-c, --config <file>', 'configuration file')
    .option('-p, --port <port>', 'TCP port; 0: a free one', toPort)
    .option('-H, --host <host>', 'address or host name to listen on')
    .option(
      '-b, --bind <uri...>',
      'addresses instead: tcp://host:port, ssl://host:port, unix:///path?mode=0660',
    )
    .option('-w, --workers <n>', 'worker processes, or "auto"; 0: serve from this process', toWorkers)
    .option('--directory <path>', 'working directory of workers; may be a symbolic link')
    .version(version)
    .exitOverride()
    .configureOutput({ outputError: (text, write) => write(`pgbus-web: ${text.replace(/^error: /, '')}`) })
    .action(async (app: string | undefined, flags: Flags) => {
      const { launch } = await import('../lib/processes/web/launcher.ts')
      const { config, ...rest } = flags
      code = await launch({
        setup: { ...rest, app, file: config, env: process.env },
        version,
        restartSignals,
      })
    })
  const args = process.argv.slice(2)
  // There is one thing to do; its name may be said.
  if (args[0] === 'start') args.shift()
  try {
    await program.parseAsync(args, { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
    process.stderr.write(`pgbus-web: ${error instanceof Error ? error.message : String(error)}\n`)
    return (error as { code?: unknown } | null)?.code === 'PGBUS_ERR_CONFIG' ? 2 : 1
  }
}

interface Flags {
  config?: string
  port?: number
  host?: string
  workers?: number | 'auto'
  directory?: string
  bind?: string[]
}

function toPort(text: string): number {
  const port = Number(text)
  if (!/^\d+$/.test(text) || port > 65_535) throw new InvalidArgumentError('Use an integer from 0 to 65535.')
  return port
}

function toWorkers(text: string): number | 'auto' {
  if (text === 'auto') return 'auto'
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError('Use a number of processes, or "auto".')
  return Number(text)
}

process.exitCode = await main()
// An application served from this process may have left something open; it does not keep the process.
setTimeout(() => process.exit(), 1_000).unref()
