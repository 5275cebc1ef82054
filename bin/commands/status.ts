import { hostname } from 'node:os'
import { type Command, configOption, jsonOption, printTable, withPgbus } from '../cli.ts'

/** A process that has not written its heartbeat for this long is taken for dead. */
const staleSeconds = 300

interface ProcessRow {
  kind: string
  hostname: string
  pid: number
  heartbeat_age: number | null
  metadata: Record<string, unknown>
}

/** `pgbus status`: which processes are alive, by their heartbeats. */
export const status: Command = {
  name: 'status',
  summary: 'show the processes that have a heartbeat',
  options: [jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const { rows } = await pgbus.db.query<ProcessRow>(
        `SELECT kind, hostname, pid, metadata,
       extract(epoch FROM (clock_timestamp() AT TIME ZONE 'UTC') - last_heartbeat_at)::float8 AS heartbeat_age
  FROM pgbus_processes ORDER BY hostname, kind, pid`,
      )
      const processes = rows.map(row => ({
        kind: row.kind,
        host: row.hostname,
        pid: row.pid,
        heartbeatAge: row.heartbeat_age === null ? null : Math.max(0, Math.round(row.heartbeat_age)),
        status: row.heartbeat_age !== null && row.heartbeat_age < staleSeconds ? 'alive' : 'stale',
        metadata: row.metadata,
      }))
      if (flags.json === true) context.print(JSON.stringify({ processes }))
      else if (processes.length === 0) context.print(`no process is registered; is "pgbus start" running?`)
      else {
        const head = ['KIND', 'HOST', 'PID', 'HEARTBEAT (s ago)', 'STATUS', 'QUEUES', 'BUSY']
        const table = processes.map(({ kind, host, pid, heartbeatAge, status: state, metadata }) => [
          kind,
          host === hostname() ? `${host} (here)` : host,
          pid,
          heartbeatAge,
          state,
          Array.isArray(metadata.queues) ? metadata.queues.join(',') : null,
          typeof metadata.busy === 'number' ? `${metadata.busy}/${metadata.capacity}` : null,
        ])
        printTable(context, head, table)
      }
      return 0
    }),
}
