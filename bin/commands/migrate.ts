import type { LoadedConfig } from '../../lib/config/load.ts'
import type { MigrationStatus } from '../../lib/db/migrate.ts'
import { type Command, configOption, jsonOption, load } from '../cli.ts'

/** `pgbus migrate`: installs the schema and brings it up to date. Safe to run from many processes at once. */
export const migrate: Command = {
  name: 'migrate',
  summary: 'install the database schema, or bring it up to date',
  options: [
    ['--status', 'show what is applied and what is pending; change nothing'],
    ['--dry-run', 'show what would be applied; change nothing'],
    jsonOption,
    configOption,
  ],
  async run(flags, context) {
    const loaded = await load(flags, context)
    const { Connector } = await import('../../lib/db/connector.ts')
    const migrations = await import('../../lib/db/migrate.ts')
    const { config } = loaded
    const options = { connector: new Connector(config), config }
    const json = flags.json === true

    if (flags.status === true) {
      const status = await reached(loaded, () => migrations.migrationStatus(options))
      if (json) context.print(JSON.stringify(status))
      else for (const line of statusLines(status)) context.print(line)
      return 0
    }
    const dryRun = flags.dryRun === true
    const names = await reached(loaded, () =>
      migrations.migrate({ ...options, dryRun, log: json ? context.warn : context.print }),
    )
    if (json) context.print(JSON.stringify(dryRun ? { pending: names } : { applied: names }))
    else if (names.length === 0) context.print('the database is up to date')
    else context.print(`${names.length} migrations ${dryRun ? 'would be applied' : 'applied'}`)
    return 0
  },
}

/** A database that cannot be reached is named; what goes wrong in it is told as it is. */
async function reached<T>(loaded: LoadedConfig, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const { MigrationError } = await import('../../lib/core/errors.ts')
    if (error instanceof MigrationError) throw error
    const { Connector } = await import('../../lib/db/connector.ts')
    const { unreachable } = await import('../../lib/processes/unreachable.ts')
    throw unreachable(error, loaded, new Connector(loaded.config), 'notify')
  }
}

function statusLines({ applied, pending, changed, pgmq }: MigrationStatus): string[] {
  return [
    `pgmq: ${pgmq.mode}${pgmq.version === null ? '' : ` ${pgmq.version}`}`,
    ...applied.map(name => `applied  ${name}`),
    ...changed.map(name => `changed  ${name}`),
    ...pending.map(name => `pending  ${name}`),
    pending.length === 0
      ? 'the database is up to date'
      : `${pending.length} migrations are pending — run "pgbus migrate"`,
  ]
}
