import { hostname } from 'node:os'
import { type Command, configOption, jsonOption, printTable, withPgbus } from '../cli.ts'

/** `pgbus status`: which processes there are, and how they are by their heartbeats. */
export const status: Command = {
  name: 'status',
  summary: 'show the processes that have a heartbeat',
  options: [jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const { listProcesses } = await import('../../lib/health/process-list.ts')
      const processes = await listProcesses(pgbus.db, pgbus.config)
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
