import type { ConfigIssue } from '../core/errors.ts'
import type { ResolvedConfig } from './options.ts'
import { isWildcard, queueNameProblem } from './queue-names.ts'
import { showValue } from './redact.ts'
import type { Source } from './resolve.ts'

const manyConnections = 50
const heartbeatMs = 60_000

interface Findings {
  issues: ConfigIssue[]
  warnings: ConfigIssue[]
  sources: ReadonlyMap<string, Source>
  production: boolean
}

/** What only several keys together can show. */
export function crossCheck(
  config: ResolvedConfig,
  { issues, warnings, sources, production }: Findings,
): void {
  const warn = (path: string, rule: string) => warnings.push({ path, rule, received: '' })
  const isSet = (path: string) => sources.get(path) !== 'default'
  if (config.databaseUrl !== null) {
    for (const part of ['host', 'port', 'database', 'user', 'password'] as const) {
      const value = config.connection[part]
      const path = `connection.${part}`
      if (value !== null)
        issues.push({ path, rule: 'conflicts with databaseUrl', received: showValue(path, value) })
    }
  }
  if (config.health.port !== null && config.health.port === config.web.port)
    issues.push({ path: 'health.port', rule: 'is also web.port', received: String(config.health.port) })
  if (config.web.tls === null && config.web.bind.some(bind => bind.startsWith('ssl://')))
    issues.push({
      path: 'web.tls',
      rule: 'is required for an address that begins with ssl://',
      received: 'null',
    })
  if (config.web.workerTimeout <= config.web.checkInterval)
    issues.push({
      path: 'web.workerTimeout',
      rule: 'must exceed web.checkInterval',
      received: String(config.web.workerTimeout),
    })
  checkQueueNames(config, issues)
  checkRecurring(config, issues)

  const { retry, priority, drainTimeout, shutdownTimeout, pool, workers, consumers, streams, log } = config
  if (retry.base > retry.max) warn('retry.base', 'is greater than retry.max')
  const { baseBackoff, maxBackoff } = config.circuitBreaker
  if (baseBackoff > maxBackoff)
    issues.push({
      path: 'circuitBreaker.baseBackoff',
      rule: 'must not exceed circuitBreaker.maxBackoff',
      received: showValue('circuitBreaker.baseBackoff', baseBackoff),
    })
  if (isSet('shutdownTimeout') && shutdownTimeout < drainTimeout)
    warn('shutdownTimeout', 'is below drainTimeout; workers will be killed while they drain')
  if (config.stallThreshold !== null && config.stallThreshold < heartbeatMs)
    warn(
      'stallThreshold',
      'is shorter than the 60s heartbeat; long pauses of a busy process may look like stalls',
    )
  const levels = priority.levels ?? 1
  if (levels > 1 && priority.default >= levels) warn('priority.default', `is clamped to ${levels - 1}`)
  const most = Math.max(0, ...[...workers, ...consumers].map(entry => entry.concurrency))
  if (pool.size !== null && pool.size < most)
    warn('pool.size', `is below a concurrency of ${most}; work will queue for connections`)
  const total =
    workers.reduce((sum, { concurrency, processes }) => sum + concurrency * processes, 0) +
    consumers.reduce((sum, { concurrency }) => sum + concurrency, 0)
  if (pool.size === null && total > manyConnections)
    warn('pool.size', `is automatic; the workers of one host may open ${total} connections`)
  if (production && streams.enabled && streams.secret.length === 0)
    warn('streams.secret', 'is not set; streams cannot be served')
  if (config.roles?.includes('outbox') && !config.outbox.enabled)
    warn('roles', 'includes outbox, but outbox.enabled is false; nothing is published')
  if (log.logger !== null && isSet('log.format'))
    warn('log.format', 'is ignored, because log.logger is given')
}

function checkQueueNames(config: ResolvedConfig, issues: ConfigIssue[]): void {
  const rules = { queuePrefix: config.queuePrefix, levels: config.priority.levels ?? 1 }
  const places = new Map([[config.defaultQueue.toLowerCase(), 'defaultQueue']])
  for (const [index, entry] of config.workers.entries())
    for (const queue of entry.queues)
      if (!isWildcard(queue) && !places.has(queue)) places.set(queue, `workers[${index}].queues`)
  for (const [queue, path] of places) {
    const problem = queueNameProblem(queue, rules)
    if (!problem) continue
    const { rule, hint } = problem
    issues.push({
      path,
      rule: `queue ${JSON.stringify(queue)} ${rule}`,
      received: showValue(path, queue),
      hint,
    })
  }
}

/** A record of a run that is deleted while the run could still be caught up would let it run again. */
function checkRecurring({ recurring }: ResolvedConfig, issues: ConfigIssue[]): void {
  const { tasks, executionRetention } = recurring
  for (const [key, { catchUpWindow }] of Object.entries(tasks ?? {})) {
    if (executionRetention === null || catchUpWindow < executionRetention) continue
    issues.push({
      path: `recurring.tasks.${key}.catchUpWindow`,
      rule: 'must be shorter than recurring.executionRetention',
      received: String(catchUpWindow),
    })
  }
}
