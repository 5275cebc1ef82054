import { CapsuleParseError } from '../core/errors.ts'
import type { WorkerEntry } from './options.ts'

/** Jobs in progress at once, when an entry does not say. */
export const defaultConcurrency = 5

/**
 * Reads the string form of `workers`: `;` separates workers, `,` their queues (most urgent first), the last
 * `:` the concurrency. `critical: 5; default, mail: 10` is two workers, named after their first queues. `*` stands
 * for every job queue, `mail_*` for those that begin so.
 * @throws CapsuleParseError naming the part that is wrong.
 */
export function parseWorkers(dsl: string): WorkerEntry[] {
  if (typeof dsl !== 'string')
    throw new CapsuleParseError(
      `workers must be a string such as "critical: 5; default: 10" (got ${typeof dsl})`,
    )
  if (dsl.trim() === '')
    throw new CapsuleParseError('the worker string is blank; write for example "default: 5"')
  const parts = dsl.split(';')
  if (parts.at(-1)?.trim() === '') parts.pop()
  const entries = parts.map(part => parseCapsule(part, dsl))
  const firsts = entries.map(entry => entry.queues[0])
  return entries.map((entry, index) => {
    const unique = firsts.filter(first => first === firsts[index]).length === 1
    return { ...entry, name: unique && firsts[index] !== '*' ? (firsts[index] as string) : null }
  })
}

function parseCapsule(part: string, dsl: string): { queues: string[]; concurrency: number } {
  const shown = JSON.stringify(part.trim())
  if (part.trim() === '')
    throw new CapsuleParseError(`there is an empty worker in ${JSON.stringify(dsl)}; remove the extra ";"`)
  const colon = part.lastIndexOf(':')
  const names = colon === -1 ? part : part.slice(0, colon)
  if (names.trim() === '') throw new CapsuleParseError(`${shown} names no queue before ":"`)
  const concurrency =
    colon === -1 ? defaultConcurrency : parseConcurrency(part.slice(colon + 1).trim(), shown)
  const queues = names.split(',').map(name => name.trim())
  for (const [index, queue] of queues.entries()) {
    if (queue === '') throw new CapsuleParseError(`${shown} has an empty queue name`)
    if (!/^(\w+|\w*\*)$/.test(queue))
      throw new CapsuleParseError(
        `${shown}: queue "${queue}" may contain only letters, digits and underscores, and end with *`,
      )
    if (queues.indexOf(queue) !== index) throw new CapsuleParseError(`${shown} lists "${queue}" twice`)
  }
  return { queues, concurrency }
}

function parseConcurrency(digits: string, shown: string): number {
  if (digits === '') throw new CapsuleParseError(`${shown} has no number after ":"`)
  if (!/^\d+$/.test(digits)) throw new CapsuleParseError(`${shown}: "${digits}" is not a number of jobs`)
  const concurrency = Number(digits)
  if (concurrency < 1) throw new CapsuleParseError(`${shown}: at least one job must run at once`)
  return concurrency
}
