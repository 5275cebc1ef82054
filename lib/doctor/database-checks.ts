/** What only the database can tell. */
import { isWildcard } from '../config/queue-names.ts'
import { driverMessage } from '../db/driver-message.ts'
import { ListenConnection } from '../db/listen-connection.ts'
import { workerTables } from '../pgmq/names.ts'
import { type Check, type Finding, fail, ok, type Subject, warn } from './check.ts'

const oldestServer = 140_000
const answerMs = 2_000

const server: Check = {
  name: 'Database',
  async examine({ pgbus: { db } }) {
    const { rows } = await db.query<{ version: string; number: number }>(
      `SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number`,
    )
    const { version, number } = rows[0]!
    const detail = `PostgreSQL ${version} at ${db.description}`
    return number < oldestServer ? warn(`${detail}; pgbus is made for 14 and newer`) : ok(detail)
  },
}

const pgmq: Check = {
  name: 'PGMQ schema',
  async examine({ pgbus: { schema } }) {
    const { pgmq: found, pending } = await schema.status()
    if (found.mode === 'none') return fail('absent — run "pgbus migrate"')
    if (found.version === null)
      return warn('present, of a version that nobody recorded — run "pgbus migrate"')
    const detail = `${found.version} (${found.mode})`
    const isOlder = pending.some(name => name.includes('pgmq'))
    return isOlder ? warn(`${detail}, older than this package — run "pgbus migrate"`) : ok(detail)
  },
}

const migrations: Check = {
  name: 'Migrations',
  async examine({ pgbus: { schema } }) {
    const { applied, pending, changed } = await schema.status()
    if (changed.length > 0)
      return fail(`${changed.join(', ')} were changed after they were applied; migrating refuses that`)
    if (applied.length === 0) return fail('none is applied — run "pgbus migrate"')
    if (pending.length > 0) return warn(`pending: ${pending.join(', ')} — run "pgbus migrate"`)
    return ok('up to date')
  },
}

const queues: Check = {
  name: 'Queues',
  async examine(subject) {
    const known = new Set((await subject.pgbus.queues.list()).map(({ physical }) => physical))
    const wanted = configuredTables(subject)
    const missing = wanted.filter(table => !known.has(table))
    if (missing.length === 0) return ok(`${wanted.length} of ${wanted.length} are there`)
    // No failure: a host makes them before it forks, and whoever enqueues makes the one that it needs.
    return warn(`not there yet: ${missing.join(', ')}; "pgbus start" makes them`)
  },
}

const triggers: Check = {
  name: 'LISTEN/NOTIFY',
  async examine(subject) {
    const { pgbus } = subject
    if (!pgbus.config.notify.enabled) return ok('disabled; workers poll')
    const { rows } = await pgbus.db.query<{ physical: string }>(
      `SELECT physical FROM unnest($1::text[]) AS physical
 WHERE to_regclass(format('pgmq.%I', 'q_' || physical)) IS NOT NULL AND NOT pgbus_has_insert_trigger(physical)`,
      [configuredTables(subject)],
    )
    if (rows.length === 0) return ok('every queue notifies')
    return warn(`no insert trigger on ${rows.map(row => row.physical).join(', ')}; workers poll these queues`)
  },
}

const liveness: Check = {
  name: 'Process liveness',
  async examine({ pgbus }) {
    const { status, reasons } = await pgbus.health()
    if (status === 'OK') return ok('OK')
    const detail = `${status}: ${reasons[0]}${reasons.length > 1 ? ` (+${reasons.length - 1} more)` : ''}`
    return status === 'STALLED' ? fail(detail) : warn(detail)
  },
}

const primary: Check = {
  name: 'Primary affinity',
  onError: 'warn',
  async examine({ pgbus: { db } }) {
    const { rows } = await db.query<{ standby: boolean }>('SELECT pg_is_in_recovery() AS standby')
    return rows[0]?.standby === true ? warn(`${db.description} is a standby`) : ok('on the primary')
  },
}

const dedicated: Check = {
  name: 'Dedicated connections',
  async examine(subject) {
    const { notify, streams } = subject.pgbus.config
    const targets = [
      ...(notify.enabled ? (['notify'] as const) : []),
      ...(streams.enabled ? (['streams'] as const) : []),
    ]
    if (targets.length === 0) return ok('none is needed')
    const findings = await Promise.all(targets.map(target => listens(subject, target)))
    const worst = (['fail', 'warn'] as const).find(status => findings.some(own => own.status === status))
    const shown = worst === undefined ? findings : findings.filter(({ status }) => status !== 'ok')
    return { status: worst ?? 'ok', detail: shown.map(({ detail }) => detail).join('; ') }
  },
}

/** Connects as a listener does and sends it a notification by another session, as somebody who enqueues does. */
async function listens({ pgbus: { connector } }: Subject, target: 'notify' | 'streams'): Promise<Finding> {
  const label = `${target} (${connector.describe(target)})`
  let connection: ListenConnection
  try {
    connection = await ListenConnection.open({
      connector,
      target,
      commandTimeout: answerMs,
      onNotification: () => undefined,
    })
  } catch (error) {
    return fail(`${label}: ${driverMessage(error)}`)
  }
  try {
    if (await connection.probe(true)) return ok(`${label} delivers`)
    if (connection.broken) return fail(`${label}: ${(await connection.lost).message}`)
    return warn(
      `${label}: notifications do not arrive, as behind a pooler in transaction mode — set ${target}.databaseUrl to the server itself`,
    )
  } finally {
    await connection.close()
  }
}

/** Tables of the default queue and of those that workers name, all priority levels included. */
function configuredTables({ loaded: { config } }: Subject): string[] {
  const named = config.workers.flatMap(entry => entry.queues).filter(queue => !isWildcard(queue))
  return workerTables(config, [...new Set([config.defaultQueue.toLowerCase(), ...named])])
}

export const databaseChecks: readonly Check[] = [server, pgmq, migrations, queues, triggers, liveness]
export const connectionChecks: readonly Check[] = [primary, dedicated]
