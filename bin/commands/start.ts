import type { LoadedConfig } from '../../lib/config/load.ts'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { type Role, roles } from '../../lib/config/roles.ts'
import { ConfigurationError } from '../../lib/core/errors.ts'
import { type Command, configOption, type Flags, load } from '../cli.ts'

/** `pgbus start`: the job host, until it is told to stop. */
export const start: Command = {
  name: 'start',
  summary: 'run what the configuration says: job workers and maintenance',
  options: [
    ['-q, --queues <workers>', 'workers to run instead, for example "critical: 5; default, mail: 10"'],
    ['--capsule <name>', 'of the workers only the entry with this name'],
    ...roles.map(role => [`--${role}-only`, `only the role "${role}"; wins over roles`] as const),
    ['--health-port <port>', 'port of /livez and /readyz; wins over health.port'],
    configOption,
  ],
  async run(flags, context) {
    const { queues, healthPort, capsule } = flags
    const role = onlyRole(flags)
    const overrides: PgbusConfig = {
      ...(typeof queues === 'string' && { workers: queues }),
      ...(role !== undefined && { roles: role }),
      ...(typeof healthPort === 'string' && { health: { port: toPort(healthPort) } }),
    }
    let loaded = await load(flags, context, overrides)
    if (typeof capsule === 'string') loaded = onlyCapsule(loaded, capsule)
    const { startSupervisor } = await import('../../lib/processes/supervisor/supervisor.ts')
    process.title = 'pgbus: supervisor'
    const supervisor = await startSupervisor({ loaded, signals: true })
    return supervisor.done
  },
}

function onlyRole(flags: Flags): Role | undefined {
  const [chosen, another] = roles.filter(role => flags[`${role}Only`] === true)
  if (another !== undefined) {
    throw new ConfigurationError(`--${chosen}-only and --${another}-only are mutually exclusive`)
  }
  return chosen
}

function onlyCapsule(loaded: LoadedConfig, name: string): LoadedConfig {
  const { config } = loaded
  const entry = config.workers.find(worker => worker.name === name)
  if (entry === undefined) {
    const names = config.workers.flatMap(worker => worker.name ?? [])
    throw new ConfigurationError(
      `no entry of workers is called "${name}"; there ${names.length > 0 ? `are: ${names.join(', ')}` : 'is none with a name'}`,
    )
  }
  return { ...loaded, config: { ...config, workers: [entry] } }
}

/** What is no number stays as it is: the configuration refuses it by its rule, showing what was written. */
function toPort(text: string): number {
  return /^\d+$/.test(text) ? Number(text) : (text as unknown as number)
}
