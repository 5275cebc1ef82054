/** What every command of `pgbus` shares: its shape, its way to the configuration, its errors. */
import type { LoadedConfig } from '../lib/config/load.ts'
import type { PgbusConfig } from '../lib/config/options.ts'

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
  readonly name: string
  readonly summary: string
  /** As commander writes them, with their explanations. */
  readonly options: readonly (readonly [flags: string, summary: string])[]
  /** Resolves to the exit code. An error is printed by the caller: exit code 1. */
  run(flags: Flags, context: Context): Promise<number>
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
