import type { ConfigIssue } from '../core/errors.ts'
import { defaultConcurrency, parseWorkers } from './capsules.ts'
import type { ResolvedConfig, ResolvedWorkerEntry } from './options.ts'
import { showValue } from './redact.ts'
import { groupMode } from './rules.ts'

const known = [
  'name',
  'queues',
  'concurrency',
  'processes',
  'order',
  'prefetchLimit',
  'groupMode',
  'singleActiveConsumer',
  'consumerPriority',
]

/** Keys of the whole configuration that an entry of `workers` starts from. */
export type WorkerDefaults = Pick<ResolvedConfig, 'defaultQueue' | 'prefetchLimit' | 'groupMode'>

/** Checks `workers` in each of its forms; problems are added to `issues`. */
export function resolveWorkers(
  value: unknown,
  defaults: WorkerDefaults,
  issues: ConfigIssue[],
): readonly ResolvedWorkerEntry[] {
  const add = adder(issues)
  if (value === undefined) {
    const entry = blank(defaults)
    return [{ ...entry, queues: [defaults.defaultQueue.toLowerCase()] }]
  }
  if (value === null) return []
  let entries: readonly unknown[]
  let named = true
  if (typeof value === 'string') {
    try {
      entries = parseWorkers(value)
      // Names that were derived from the string form may overlap: they are several processes of one pool.
      named = false
    } catch (error) {
      // The parser quotes the text, which may be a connection URL in the wrong place.
      const hint = value.includes('://') ? undefined : (error as Error).message
      add('workers', 'must follow the form "queue, queue: number; …"', value, hint)
      return []
    }
  } else if (Array.isArray(value)) entries = value
  else {
    add('workers', 'must be a string, an array of entries, or null', value)
    return []
  }
  const resolved = entries.map((entry, index) => resolveEntry(entry, `workers[${index}]`, defaults, add))
  if (named) checkOverlap(resolved, add)
  return resolved
}

/** Checks one entry that does not come from the configuration; problems are added to `issues`. */
export function resolveWorker(
  value: unknown,
  defaults: WorkerDefaults,
  issues: ConfigIssue[],
): ResolvedWorkerEntry {
  return resolveEntry(value, 'worker', defaults, adder(issues))
}

type Add = (path: string, rule: string, received: unknown, hint?: string) => void

function adder(issues: ConfigIssue[]): Add {
  return (path, rule, received, hint) =>
    issues.push({ path, rule, received: showValue(path, received), hint })
}

function blank({ prefetchLimit, groupMode }: WorkerDefaults): ResolvedWorkerEntry {
  return {
    name: null,
    queues: [],
    concurrency: defaultConcurrency,
    processes: 1,
    order: 'strict',
    prefetchLimit,
    groupMode,
    singleActiveConsumer: false,
    consumerPriority: 0,
  }
}

function resolveEntry(value: unknown, path: string, defaults: WorkerDefaults, add: Add): ResolvedWorkerEntry {
  const fallback = blank(defaults)
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    const index = /\[(\d+)\]$/.exec(path)?.[1]
    if (index === undefined) add(path, 'must be an object', value)
    else add('workers', `entry ${index} must be an object`, value)
    return fallback
  }
  for (const [key, own] of Object.entries(value)) {
    if (!known.includes(key)) add(`${path}.${key}`, 'unknown key', own, `keys are: ${known.join(', ')}`)
  }
  const given = Object.fromEntries(Object.entries(value).filter(([, own]) => own !== undefined))
  const entry = { ...fallback, ...given } as ResolvedWorkerEntry
  if (entry.name !== null && (typeof entry.name !== 'string' || entry.name.trim() === ''))
    add(`${path}.name`, 'must be a non-empty string', entry.name)
  for (const key of ['concurrency', 'processes'] as const) {
    if (!isPositive(entry[key])) add(`${path}.${key}`, 'must be a positive integer', entry[key])
  }
  if (entry.prefetchLimit !== null && !isPositive(entry.prefetchLimit))
    add(`${path}.prefetchLimit`, 'must be a positive integer or null', entry.prefetchLimit)
  if (entry.order !== 'strict' && entry.order !== 'fair')
    add(`${path}.order`, 'must be one of strict, fair', entry.order)
  const mode = groupMode.check(entry.groupMode)
  if ('rule' in mode) add(`${path}.groupMode`, mode.rule, entry.groupMode)
  if (typeof entry.singleActiveConsumer !== 'boolean')
    add(`${path}.singleActiveConsumer`, 'must be true or false', entry.singleActiveConsumer)
  if (!Number.isSafeInteger(entry.consumerPriority))
    add(`${path}.consumerPriority`, 'must be an integer', entry.consumerPriority)
  return {
    ...entry,
    groupMode: 'value' in mode ? (mode.value as ResolvedWorkerEntry['groupMode']) : null,
    queues: resolveQueues(entry.queues, path, add),
  }
}

function isPositive(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 1
}

function resolveQueues(queues: unknown, path: string, add: Add): readonly string[] {
  if (!Array.isArray(queues) || queues.length === 0) {
    add(`${path}.queues`, 'must be a non-empty array', queues ?? undefined)
    return []
  }
  const names = queues.map(queue => (typeof queue === 'string' ? queue.trim().toLowerCase() : queue))
  return names.filter((queue, position) => {
    const place = `${path}.queues[${position}]`
    if (typeof queue !== 'string' || queue === '') add(place, 'must be a non-empty string', queue)
    else if (!/^([a-z0-9_]+|[a-z0-9_]*\*)$/.test(queue))
      add(place, 'may contain only letters, digits and underscores, and end with *', queue)
    else if (names.indexOf(queue) !== position) add(`${path}.queues`, `lists "${queue}" twice`, queues)
    else return true
    return false
  })
}

function checkOverlap(entries: readonly ResolvedWorkerEntry[], add: Add): void {
  const named = entries.filter(entry => entry.name !== null)
  for (const [index, entry] of named.entries()) {
    for (const other of named.slice(0, index)) {
      if (other.name === entry.name) add('workers', `duplicate worker name "${entry.name}"`, entry.name)
      const queue = entry.queues.find(name => other.queues.includes(name))
      if (queue !== undefined)
        add(
          'workers',
          `worker "${entry.name}" overlaps worker "${other.name}" on queue "${queue}"`,
          entry.queues,
        )
    }
  }
}
