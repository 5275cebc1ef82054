import { inspect } from 'node:util'
import type { ConfigIssue } from '../core/errors.ts'
import { defaultConcurrency, parseWorkers } from './capsules.ts'
import type { ResolvedWorkerEntry, WorkerEntry } from './options.ts'

const known = ['name', 'queues', 'concurrency', 'processes']

/** Checks `workers` in each of its forms; problems are added to `issues`. */
export function resolveWorkers(
  value: unknown,
  defaultQueue: string,
  issues: ConfigIssue[],
): readonly ResolvedWorkerEntry[] {
  const add = (path: string, rule: string, received: unknown, hint?: string) =>
    issues.push({ path, rule, received: inspect(received).slice(0, 80), hint })
  if (value === undefined)
    return [{ name: null, queues: [defaultQueue], concurrency: defaultConcurrency, processes: 1 }]
  if (value === null) return []
  let entries: readonly unknown[]
  let named = true
  if (typeof value === 'string') {
    try {
      entries = parseWorkers(value)
      // Names that were derived from the string form may overlap: they are several processes of one pool.
      named = false
    } catch (error) {
      add('workers', 'must follow the form "queue, queue: number; …"', value, (error as Error).message)
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
  for (const [position, queue] of queues.entries()) {
    if (typeof queue !== 'string') add(`${path}.queues[${position}]`, 'must be a non-empty string', queue)
    else if (queue.endsWith('*'))
      add(`${path}.queues[${position}]`, 'must name a queue', queue, 'wildcard queues are not supported')
    else if (!/^\w+$/.test(queue))
      add(`${path}.queues[${position}]`, 'may contain only letters, digits and underscores', queue)
    else if (queues.indexOf(queue) !== position) add(`${path}.queues`, `lists "${queue}" twice`, queues)
  }
  return { name, queues: queues.map(queue => String(queue).toLowerCase()), concurrency, processes }
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
