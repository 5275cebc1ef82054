import type { PgbusConfig } from '../../lib/config/options.ts'
import { type Command, configOption, load } from '../cli.ts'

/** `pgbus start`: the job host, until it is told to stop. */
export const start: Command = {
  name: 'start',
  summary: 'run the job workers of the configuration',
  options: [
    ['-q, --queues <workers>', 'workers to run instead, for example "critical: 5; default, mail: 10"'],
    configOption,
  ],
  async run(flags, context) {
    const overrides: PgbusConfig = typeof flags.queues === 'string' ? { workers: flags.queues } : {}
    const loaded = await load(flags, context, overrides)
    const { startSupervisor } = await import('../../lib/processes/supervisor/supervisor.ts')
    process.title = 'pgbus: supervisor'
    const supervisor = await startSupervisor({ loaded, signals: true })
    return supervisor.done
  },
}
