import type { ResolvedConfig } from '../../config/options.ts'
import { hasRole, roles } from '../../config/roles.ts'
import { packageVersion } from '../../core/version.ts'
import type { Connector } from '../../db/connector.ts'
import type { MigrationStatus } from '../../db/migrate.ts'
import { activeConsumers, activeWorkers, planSlots, poolSize } from './roles.ts'

const unknown = 'unknown'

/** What a person looks for first in a log, one line each. A part that cannot be told is `unknown`. */
export function bannerLines(config: ResolvedConfig, connector: Connector): string[] {
  const pools = planSlots(config).reduce((sum, { spec }) => sum + poolSize(config, spec), 0)
  return [
    `pgbus ${attempt(packageVersion)} pid=${process.pid} node=${process.versions.node}`,
    `connection=${attempt(() => connector.describe('base'))} pool=${pools}`,
    `notify=${config.notify.enabled}`,
    `roles=${roles.filter(role => hasRole(config, role)).join(',')}`,
    ...activeWorkers(config).map(
      ({ name, queues, concurrency, processes }) =>
        `worker=${name ?? 'anonymous'} queues=${queues.join(',')} concurrency=${concurrency} processes=${processes}`,
    ),
    ...activeConsumers(config).map(
      ({ topics, concurrency }) => `consumer topics=${topics.join(',')} concurrency=${concurrency}`,
    ),
  ].map(line => `boot: ${line}`)
}

/** The line about the schema, known only once the database has answered. */
export function schemaLine(config: ResolvedConfig, status: MigrationStatus | undefined): string {
  return `boot: pgmq_schema_mode=${config.pgmq.schemaMode} pgmq_version=${status?.pgmq.version ?? unknown}`
}

function attempt(tell: () => string): string {
  try {
    return tell()
  } catch {
    return unknown
  }
}
