import type { ResolvedConfig } from '../config/options.ts'
import { redactConfig } from '../config/redact.ts'
import { roles } from '../config/roles.ts'
import { planSlots, poolSize } from '../processes/supervisor/roles.ts'
import type { CheckStatus } from './check.ts'
import type { Diagnosis } from './doctor.ts'

const nameWidth = 22
const keyWidth = 20

const icons = {
  utf8: { ok: '✓', warn: '!', fail: '✗' },
  ascii: { ok: 'ok', warn: '!!', fail: 'XX' },
} satisfies Record<string, Record<CheckStatus, string>>

/** What of the configuration helps whoever reads the report; without secrets. */
export function shownConfig(config: ResolvedConfig): Record<string, string> {
  const redacted = redactConfig(config) as {
    databaseUrl: string | null
    connection: Record<string, unknown>
  }
  const connection = Object.entries(redacted.connection).filter(([, value]) => value !== null)
  const pooled = planSlots(config).reduce((sum, { spec }) => sum + poolSize(config, spec), 0)
  return {
    queue_prefix: config.queuePrefix,
    default_queue: config.defaultQueue,
    pgmq_schema_mode: config.pgmq.schemaMode,
    resolved_pool_size: String(config.pool.size ?? `${pooled} per job host`),
    listen_notify: config.notify.enabled ? config.notify.scope : 'off',
    roles: (config.roles ?? roles).join(', '),
    capsules: config.workers.map(({ name, queues }) => name ?? queues.join('+')).join(', '),
    ...(redacted.databaseUrl === null ? {} : { database_url: redacted.databaseUrl }),
    connection: connection
      .map(([key, value]) => `${key}=${typeof value === 'object' ? JSON.stringify(value) : value}`)
      .join(' '),
  }
}

/** Lines for a terminal. */
export function reportLines(
  { checks }: Diagnosis,
  config: Record<string, string> | undefined,
  { utf8 }: { utf8: boolean },
): string[] {
  const icon = utf8 ? icons.utf8 : icons.ascii
  const lines = ['pgbus doctor', '='.repeat(40)]
  for (const { name, status, detail } of checks)
    lines.push(`${icon[status]} ${name.padEnd(nameWidth)} ${detail}`)
  if (config === undefined) return lines
  lines.push('', 'Configuration', '-'.repeat(40))
  for (const [key, value] of Object.entries(config)) lines.push(`  ${key.padEnd(keyWidth)} ${value}`)
  return lines
}
