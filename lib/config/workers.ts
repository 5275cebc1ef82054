import type { ConfigIssue } from '../core/errors.ts'
import { defaultConcurrency, parseWorkers } from './capsules.ts'
import type { ResolvedWorkerEntry, WorkerEntry } from './options.ts'
import { showValue } from './redact.ts'

const known = ['name', 'queues', 'concurrency', 'processes']

/** Checks `workers` in each of its forms; problems are added to `issues`. */
export function resolveWorkers(
  value: unknown,
  defaultQueue: string,
  issues: ConfigIssue[],
): readonly ResolvedWorkerEntry[] {
  const add = (path: string, rule: string, received: unknown, hint?: string) =>
    issues.push({ path, rule, received: showValue(path, received), hint })
  if (value === undefined)
    return [
      { name: null, queues: [defaultQueue.toLowerCase()], concurrency: defaultConcurrency, processes: 1 },
    ]
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
  const resolved = entries.map((entry, index) => resolveEntry(entry, index, add))
  if (named) checkOverlap(resolved, add)
  return resolved
}

type Add = (path: string, rule: string, received: unknown, hint?: string) => void

function resolveEntry(entry: unknown, index: number, add: Add): ResolvedWorkerEntry {
  const path = `workers[${index}]`
  const fallback = { name: null, queues: [], concurrency: defaultConcurrency, processes: 1 }
  if (typeof entry !== 'object' || entry === null || Array.isArray(entry)) {
    add('workers', `entry ${index} must be an object`, entry)
    return fallback
  }
  const { name = null, queues, concurrency = defaultConcurrency, processes = 1 } = entry as WorkerEntry
  for (const key of Object.keys(entry)) {
    if (!known.includes(key))
      add(
        `${path}.${key}`,
        'unknown key',
        (entry as Record<string, unknown>)[key],
        `keys are: ${known.join(', ')}`,
      )
  }
  if (name !== null && (typeof name !== 'string' || name.trim() === ''))
    add(`${path}.name`, 'must be a non-empty string', name)
  for (const [key, number] of [
    ['concurrency', concurrency],
    ['processes', processes],
  ] as const) {
    if (!Number.isSafeInteger(number) || number < 1)
      add(`${path}.${key}`, 'must be a positive integer', number)
  }
  if (!Array.isArray(queues) || queues.length === 0) {
    add(`${path}.queues`, 'must be a non-empty array', queues)
    return { ...fallback, name, concurrency, processes }
  }
  const names = queues.map(queue => (typeof queue === 'string' ? queue.trim().toLowerCase() : queue))
  const good = names.filter((queue, position) => {
    const place = `${path}.queues[${position}]`
    if (typeof queue !== 'string' || queue === '') add(place, 'must be a non-empty string', queue)
    else if (queue.endsWith('*')) add(place, 'wildcard queues are not supported', queue, 'name each queue')
    else if (!/^[a-z0-9_]+$/.test(queue))
      add(place, 'may contain only letters, digits and underscores', queue)
    else if (names.indexOf(queue) !== position) add(`${path}.queues`, `lists "${queue}" twice`, queues)
    else return true
    return false
  })
  return { name, queues: good, concurrency, processes }
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
