#!/usr/bin/env node
/** Picks the command, and turns its outcome into an exit code: 0 done, 1 failed, refused or misused. */
import { Command, CommanderError } from 'commander'
import { packageVersion } from '../lib/core/version.ts'
import {
  type Command as CommandDefinition,
  type Context,
  type Flags,
  printError,
  watchOutput,
} from './cli.ts'
import { config } from './commands/config.ts'
import { deadLetterCommands } from './commands/dlq.ts'
import { doctor } from './commands/doctor.ts'
import { eventCommands } from './commands/events.ts'
import { jobCommands } from './commands/jobs.ts'
import { lockCommands } from './commands/locks.ts'
import { migrate } from './commands/migrate.ts'
import { outboxCommands } from './commands/outbox.ts'
import { queueCommands } from './commands/queues.ts'
import { recurringCommands } from './commands/recurring.ts'
import { start } from './commands/start.ts'
import { status } from './commands/status.ts'

/** What a command left open does not keep its process for longer. */
const lingerMs = 1_000

const demo: CommandDefinition = {
  name: 'demo',
  summary:
    'try pgbus out: an order desk on an embedded PostgreSQL, or on DATABASE_URL; PORT is its port (3000, else the next free one)',
  options: [],
  async run(_flags, { env, cwd, print }) {
    // It needs packages that an installation for production does not have.
    const { runDemo } = await import('./commands/demo.ts')
    return runDemo({ env, cwd, print })
  },
}

const commands: readonly CommandDefinition[] = [
  start,
  migrate,
  status,
  doctor,
  ...queueCommands,
  ...jobCommands,
  ...lockCommands,
  ...deadLetterCommands,
  ...eventCommands,
  ...outboxCommands,
  ...recurringCommands,
  config,
  demo,
]

const groups: Record<string, string> = {
  queues: 'look at queues, pause, resume, empty and drop them',
  jobs: 'look at jobs and cancel them',
  locks: 'look at locks of unique jobs and discard them',
  events: 'look at the routes of events, remove old ones',
  outbox: 'look at what waits to be published, publish, retry or discard it',
  recurring: 'look at recurring tasks, run, enable and disable them',
  dlq: 'look at dead letters, retry or discard them',
}

async function main(args: string[], context: Context): Promise<number> {
  let code = 0
  const version = `pgbus ${packageVersion()}`
  const program = new Command('pgbus')
    .description('Background jobs and streams on PostgreSQL.')
    .version(version, '-v, --version', 'print the version')
    .exitOverride()
    .showHelpAfterError()
    .configureOutput({ outputError: (text, write) => write(`pgbus: ${text.replace(/^error: /, '')}`) })
  program
    .command('version')
    .description('print the version')
    .action(() => context.print(version))
  for (const definition of commands) {
    const command = commandAt(program, definition.name).description(definition.summary)
    for (const [name, summary] of definition.args ?? []) command.argument(name, summary)
    for (const [flags, summary] of definition.options) command.option(flags, summary)
    command.action(async () => {
      const flags: Flags = command.opts()
      try {
        code = await definition.run(flags, context, command.args)
      } catch (error) {
        printError(error, flags, context)
        code = 1
      }
    })
  }
  try {
    await program.parseAsync(args, { from: 'user' })
    return code
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode
    throw error
  }
}

/** The command of this name; `dlq list` is `list` in the group `dlq`. */
function commandAt(program: Command, name: string): Command {
  const [group, own] = name.split(' ')
  if (own === undefined) return program.command(name)
  const parent =
    program.commands.find(command => command.name() === group) ??
    program.command(group!).description(groups[group!] ?? '')
  return parent.command(own)
}

watchOutput()
process.exitCode = await main(process.argv.slice(2), {
  env: process.env,
  cwd: process.cwd(),
  print: line => process.stdout.write(`${line}\n`),
  warn: line => process.stderr.write(`${line}\n`),
})
setTimeout(() => process.exit(), lingerMs).unref()
