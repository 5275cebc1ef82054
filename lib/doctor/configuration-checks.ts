/** What the configuration alone tells. */
import type { ResolvedConfig } from '../config/options.ts'
import { queueMatcher } from '../config/queue-names.ts'
import { counted } from '../core/wording.ts'
import {
  activeConsumers,
  activeWorkers,
  listens,
  planSlots,
  poolSize,
} from '../processes/supervisor/roles.ts'
import { type Check, fail, ok, warn } from './check.ts'

/** A configuration with an error makes no instance, and no diagnosis but that one. */
export const validity: Check = {
  name: 'Configuration',
  examine({ loaded: { warnings, file } }) {
    if (warnings.length === 0) return ok(`valid (${file ?? 'no file'})`)
    return warn(warnings.map(({ path, rule }) => `${path} ${rule}`).join('; '))
  },
}

const secret: Check = {
  name: 'Streams secret',
  examine({ loaded: { config }, production }) {
    const { enabled, secret: secrets } = config.streams
    if (!enabled) return ok('streams are disabled')
    if (secrets.length > 0) return ok('set')
    const detail = 'streams.secret is not set; set it, or set streams.enabled to false'
    return production ? fail(detail) : warn(detail)
  },
}

const broadcastQueue: Check = {
  name: 'Broadcast queue',
  examine({ loaded: { config } }) {
    const queue = config.streams.broadcastQueue?.toLowerCase()
    if (queue === undefined) return ok(`none of its own, broadcastLater uses "${config.defaultQueue}"`)
    const isRead = queueMatcher(config.workers.flatMap(({ queues }) => queues))
    if (isRead(queue)) return ok(queue)
    return warn(`no worker of this configuration reads "${queue}" (streams.broadcastQueue)`)
  },
}

const budget: Check = {
  name: 'Connection budget',
  onError: 'warn',
  examine: ({ loaded: { config } }) => ok(`${hostBudget(config)}${webBudget(config)}`),
}

function hostBudget(config: ResolvedConfig): string {
  const slots = planSlots(config)
  const readers = slots.filter(({ spec }) => listens(spec)).length
  const { enabled, scope } = config.notify
  const direct = !enabled || readers === 0 ? 0 : scope === 'supervisor' ? 1 : readers
  const pooled = slots.reduce((sum, { spec }) => sum + poolSize(config, spec), 0)
  const entries = [
    counted(activeWorkers(config).length, 'worker entry', 'worker entries'),
    counted(activeConsumers(config).length, 'consumer'),
  ]
  return `per job host ${counted(direct, 'LISTEN connection')} and at most ${counted(pooled, 'pooled one')} for ${entries.join(' and ')} in ${counted(slots.length, 'process', 'processes')}`
}

function webBudget({ streams }: ResolvedConfig): string {
  if (!streams.enabled) return ''
  const listens =
    streams.listenScope === 'master'
      ? '1 LISTEN connection per web host (per web process while its hub is down)'
      : '1 LISTEN connection per web process'
  return `; streams: ${listens} and at most ${counted(streams.pool.size, 'pooled one')} per web process`
}

const shutdown: Check = {
  name: 'Shutdown budget',
  examine({ loaded: { config } }) {
    const drain = config.drainTimeout / 1_000
    const end = config.shutdownTimeout / 1_000
    if (end < drain)
      return warn(
        `shutdownTimeout (${end} s) is below drainTimeout (${drain} s); workers are killed while they drain`,
      )
    return ok(
      `drainTimeout ${drain} s, shutdownTimeout ${end} s; the orchestrator has to wait for more than ${end} s`,
    )
  },
}

export const streamChecks: readonly Check[] = [secret, broadcastQueue]
export const budgets: readonly Check[] = [budget, shutdown]
