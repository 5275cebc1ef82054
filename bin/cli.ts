/** What every command of `pgbus` shares: its shape, its way to the configuration, its errors. */
import type { LoadedConfig } from '../lib/config/load.ts'
import type { PgbusConfig } from '../lib/config/options.ts'
import type { Pgbus } from '../lib/pgbus.ts'

export interface Context {
  env: NodeJS.ProcessEnv
  cwd: string
  /** A line for stdout: the result. */
  print(line: string): void
  /** A line for stderr: everything else. */
  warn(line: string): void
}

/** Flags by their long name in camelCase. */
export type Flags = Record<string, string | boolean | undefined>

export interface Command {
  /** With a space: a command of a group, such as `dlq list`. */
  readonly name: string
  /** What follows the name, as commander writes it, for example `<id>`. */
  readonly args?: readonly (readonly [name: string, summary: string])[]
  readonly summary: string
  /** As commander writes them, with their explanations. */
  readonly options: readonly (readonly [flags: string, summary: string])[]
  /** Resolves to the exit code. An error is printed by the caller: exit code 1. */
  run(flags: Flags, context: Context, args: readonly string[]): Promise<number>
}

export const configOption = ['-c, --config <file>', 'configuration file'] as const
export const jsonOption = ['--json', 'print one JSON document'] as const

/** The configuration that the flags, the environment and the file give. */
export async function load(
  flags: Flags,
  { env, cwd }: Context,
  overrides: PgbusConfig = {},
): Promise<LoadedConfig> {
  const { loadConfig } = await import('../lib/config/load.ts')
  const file = typeof flags.config === 'string' ? { file: flags.config } : {}
  return loadConfig({ env, cwd, overrides, ...file })
}

/** Runs `work` with an instance, which is closed afterwards. A database that cannot be reached is named. */
export async function withPgbus(
  flags: Flags,
  context: Context,
  work: (pgbus: Pgbus) => Promise<number>,
): Promise<number> {
  const loaded = await load(flags, context)
  const { Pgbus: Instance } = await import('../lib/pgbus.ts')
  const pgbus = new Instance(loaded.config, { poolSize: 2 })
  try {
    return await work(pgbus)
  } catch (error) {
    const { isNoEntry, unreachable } = await import('../lib/processes/unreachable.ts')
    throw isNoEntry(error) ? unreachable(error, loaded, pgbus.connector) : error
  } finally {
    await pgbus.close()
  }
}

/** A flag's number; what is none is refused by whoever is given it. */
export function numberOf(flag: string | boolean | undefined): number | undefined {
  return typeof flag === 'string' ? Number(flag) : undefined
}

/** Prints what was done. */
export function tell(flags: Flags, context: Context, result: object, line: string): number {
  context.print(flags.json === true ? JSON.stringify(result) : line)
  return 0
}

/** Says what would be done. */
export function refuse(flags: Flags, context: Context, what: string): number {
  const message = `${what}; nothing was changed, repeat with --yes`
  if (flags.json === true) context.print(JSON.stringify({ error: { code: 'PGBUS_ERR_REFUSED', message } }))
  else context.warn(`pgbus: ${message}`)
  return 1
}

/** Prints a thing with all its parts. */
export function printDetail(flags: Flags, context: Context, detail: object): number {
  context.print(JSON.stringify(detail, null, flags.json === true ? 0 : 2))
  return 0
}

/** Of commands that print one page of a list. */
export const pageOptions = [
  ['--page <number>', 'counted from 1'],
  ['--per-page <number>', 'default 25'],
] as const

export function pageOf({ page, perPage }: Flags): { page: number | undefined; perPage: number | undefined } {
  return { page: numberOf(page), perPage: numberOf(perPage) }
}

/** The id of a message. `of`: what has it, for the error. @throws TypeError */
export function idOf(text: string | undefined, of: string): number {
  if (text !== undefined && /^\d+$/.test(text)) return Number(text)
  throw new TypeError(`the id of ${of} is a number, got "${text}"`)
}

/** Prints a table, nothing when it has no rows. */
export function printTable(
  context: Context,
  head: readonly string[],
  rows: readonly (readonly (string | number | null)[])[],
): void {
  if (rows.length > 0) for (const line of tableLines(head, rows)) context.print(line)
}

/** Lines of a table: columns as wide as their longest cell, numbers to the right. */
function tableLines(
  head: readonly string[],
  rows: readonly (readonly (string | number | null)[])[],
): string[] {
  const cells = [head, ...rows.map(row => row.map(cell => String(cell ?? '-')))]
  const widths = head.map((_, column) => Math.max(...cells.map(row => row[column]?.length ?? 0)))
  const isNumber = head.map(
    (_, column) => rows.length > 0 && rows.every(row => typeof row[column] !== 'string'),
  )
  return cells.map(row =>
    row
      .map((cell, column) =>
        isNumber[column] ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!),
      )
      .join('  ')
      .trimEnd(),
  )
}

/**
 * Keeps an unreadable stdout or stderr from ending the process by an exception. A reader that has seen enough (`head`)
 * is no failure; anything else, as a full disk, is.
 */
export function watchOutput(): void {
  let failed = false
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EPIPE' || failed) return
      failed = true
      if (stream === process.stdout)
        process.stderr.write(`pgbus: cannot write the output: ${error.message}\n`)
    })
  }
  process.once('exit', () => {
    if (failed) process.exitCode = 1
  })
}

/** Prints a failure as its reader wants it: one line, a JSON document, or with the stack at log level debug. */
export function printError(thrown: unknown, flags: Flags, context: Context): void {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown))
  const { code, issues } = error as { code?: unknown; issues?: readonly unknown[] }
  if (flags.json === true) {
    context.print(
      JSON.stringify({
        error: { code: typeof code === 'string' ? code : 'PGBUS_ERR', message: error.message },
      }),
    )
    return
  }
  // A report about a configuration has a line for each problem. All other errors are one line.
  const isReport = Array.isArray(issues) && issues.length > 0
  context.warn(`pgbus: ${isReport ? error.message : error.message.replace(/\s*\n\s*/g, ' ')}`)
  if (/^(debug|trace)$/.test(context.env.PGBUS_LOG_LEVEL ?? '')) context.warn(error.stack ?? '')
}
