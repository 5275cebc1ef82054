import type { ResolvedConfig } from '../config/options.ts'
import { deadLetterSuffix, queueNameProblem } from '../config/queue-names.ts'
import { InvalidQueueNameError } from '../core/errors.ts'

/** What a queue's tables are called, without `q_` and `a_`: prefix, logical name and, with priorities, the level. */
export type PhysicalName = string & { readonly __brand: 'PhysicalName' }

/** The part of the configuration that decides names. */
export type NameRules = Pick<ResolvedConfig, 'queuePrefix' | 'priority'>

/** Number of priority levels; 1 when priorities are off. */
export function priorityLevels(config: NameRules): number {
  return Math.max(1, config.priority.levels ?? 1)
}

/**
 * Checks a name given by a user and returns it in lower case.
 * @throws InvalidQueueNameError
 */
export function validateQueueName(config: NameRules, name: string): string {
  if (typeof name !== 'string' || name === '') {
    throw new InvalidQueueNameError(`queue name must be a non-empty string, got ${JSON.stringify(name)}`)
  }
  const problem = queueNameProblem(name, { queuePrefix: config.queuePrefix, levels: priorityLevels(config) })
  if (problem) {
    const { rule, hint } = problem
    throw new InvalidQueueNameError(
      `queue name ${JSON.stringify(name)} ${rule}${hint === undefined ? '' : `; ${hint}`}`,
    )
  }
  return name.toLowerCase()
}

/** Name of a queue without priorities. Messages go to {@link targetQueue}, which knows the levels. */
export function physicalName(config: NameRules, logical: string): PhysicalName {
  return join(config, validateQueueName(config, logical))
}

/** Where a message of this priority goes. Every producer asks here; lower numbers are more urgent. */
export function targetQueue(config: NameRules, logical: string, priority?: number | null): PhysicalName {
  const levels = priorityLevels(config)
  const bare = physicalName(config, logical)
  if (levels === 1) return bare
  const level = Math.min(Math.max(Math.trunc(priority ?? config.priority.default), 0), levels - 1)
  return `${bare}_p${level}` as PhysicalName
}

/** Tables a worker of these queues reads, in order: all levels of a queue before the next queue. */
export function workerTables(config: NameRules, queues: readonly string[]): PhysicalName[] {
  const levels = priorityLevels(config)
  const tables = new Set<PhysicalName>()
  for (const queue of queues) {
    for (let level = 0; level < levels; level += 1) tables.add(targetQueue(config, queue, level))
  }
  return [...tables]
}

/** Every table that a queue of this name may have: those of jobs, by priority, and the one of event handlers. */
export function everyTable(config: NameRules, queue: string): PhysicalName[] {
  return [...new Set([...workerTables(config, [queue]), physicalName(config, queue)])]
}

/** The one dead-letter queue of a logical queue, whatever its priorities. */
export function deadLetterName(config: NameRules, logical: string): PhysicalName {
  return `${physicalName(config, logical)}${deadLetterSuffix}` as PhysicalName
}

/** The logical name behind a physical one; a name without our prefix is returned as it is. */
export function logicalOf(config: NameRules, physical: string): string {
  let name = failedName(config, physical)
  if (name.endsWith(deadLetterSuffix)) return name.slice(0, -deadLetterSuffix.length)
  if (priorityLevels(config) > 1) name = name.replace(/_p\d+$/, '')
  return name
}

/**
 * Name under which failures of a table are recorded: the physical name without the prefix. Message ids are
 * unique per table, so the levels of one queue must not share a name.
 */
export function failedName(config: NameRules, physical: string): string {
  const prefix = `${config.queuePrefix.toLowerCase()}_`
  return physical.startsWith(prefix) && physical.length > prefix.length
    ? physical.slice(prefix.length)
    : physical
}

/** LISTEN channel of inserts into a queue. */
export function insertChannel(physical: string): string {
  return `pgmq.q_${physical}.INSERT`
}

function join(config: NameRules, logical: string): PhysicalName {
  return `${config.queuePrefix.toLowerCase()}_${logical}` as PhysicalName
}
