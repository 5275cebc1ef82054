import type { LoadedConfig } from '../../lib/config/load.ts'
import { ConfigurationError } from '../../lib/core/errors.ts'
import type { Diagnosis } from '../../lib/doctor/doctor.ts'
import { type Command, type Context, configOption, type Flags, jsonOption, load } from '../cli.ts'

/** Several checks ask the database at once. */
const poolSize = 5

/** `pgbus doctor`: what is wrong between this configuration, its modules and its database. */
export const doctor: Command = {
  name: 'doctor',
  summary: 'check configuration, database, connections, queues and jobs; change nothing',
  options: [jsonOption, configOption],
  async run(flags, context) {
    const { reportLines, shownConfig } = await import('../../lib/doctor/report.ts')
    const loaded = await tryLoad(flags, context)
    const diagnosis =
      loaded instanceof ConfigurationError ? invalid(loaded) : await diagnoseQuietly(loaded, context)
    const config = loaded instanceof ConfigurationError ? undefined : shownConfig(loaded.config)
    if (flags.json === true) context.print(JSON.stringify({ ...diagnosis, config: config ?? null }))
    else
      for (const line of reportLines(diagnosis, config, { utf8: isUtf8Terminal(context) }))
        context.print(line)
    return diagnosis.ok ? 0 : 1
  },
}

async function tryLoad(flags: Flags, context: Context): Promise<LoadedConfig | ConfigurationError> {
  try {
    return await load(flags, context)
  } catch (error) {
    if (error instanceof ConfigurationError) return error
    throw error
  }
}

/** Without a configuration nothing else can be looked at. */
function invalid(error: ConfigurationError): Diagnosis {
  const detail = error.message.replace(/\s*\n\s*/g, '; ')
  return { ok: false, checks: [{ name: 'Configuration', status: 'fail', detail }] }
}

/** What modules of the application print while they are imported is no part of the report. */
async function diagnoseQuietly(loaded: LoadedConfig, { env }: Context): Promise<Diagnosis> {
  const { Pgbus } = await import('../../lib/pgbus.ts')
  const { diagnose } = await import('../../lib/doctor/doctor.ts')
  // The findings are the report; nobody is alerted by them.
  const quiet = { log: { ...loaded.config.log, logger: null, level: 'silent' as const }, errorReporters: [] }
  const pgbus = new Pgbus({ ...loaded.config, ...quiet }, { poolSize })
  const { write } = process.stdout
  process.stdout.write = process.stderr.write.bind(process.stderr)
  try {
    return await diagnose({ pgbus, loaded, production: env.NODE_ENV === 'production' })
  } finally {
    process.stdout.write = write
    await pgbus.close()
  }
}

function isUtf8Terminal({ env }: Context): boolean {
  return process.stdout.isTTY === true && /utf-?8/i.test(env.LC_ALL || env.LC_CTYPE || env.LANG || '')
}
