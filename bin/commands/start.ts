import type { PgbusConfig } from '../../lib/config/options.ts'
import { type Command, configOption, load } from '../cli.ts'

/** `pgbus start`: the job host, until it is told to stop. */
export const start: Command = {
  name: 'start',
  summary: 'run the job workers of the configuration',
  options: [
    ['-q, --queues <workers>', 'workers to run instead, for example "critical: 5; default, mail: 10"'],
    ['--health-port <port>', 'port of /livez and /readyz; wins over health.port'],
    configOption,
  ],
  async run(flags, context) {
    const { queues, healthPort } = flags
    const overrides: PgbusConfig = {
      ...(typeof queues === 'string' && { workers: queues }),
      ...(typeof healthPort === 'string' && { health: { port: toPort(healthPort) } }),
    }
    const loaded = await load(flags, context, overrides)
    const { startSupervisor } = await import('../../lib/processes/supervisor/supervisor.ts')
    process.title = 'pgbus: supervisor'
    const supervisor = await startSupervisor({ loaded, signals: true })
    return supervisor.done
  },
}

/** What is no number stays as it is: the configuration refuses it by its rule, showing what was written. */
function toPort(text: string): number {
  return /^\d+$/.test(text) ? Number(text) : (text as unknown as number)
}
