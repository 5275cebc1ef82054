import { checkTopicPattern } from '../core/topics.ts'
import { isPlain } from './plain.ts'
import { type Checked, custom, type Rule } from './rules.ts'

/** One entry of `consumers`: which events, and how many of them are handled at once. One process each. */
export interface ConsumerEntry {
  /** Patterns of routing keys. It serves every handler that one of these keys can reach. */
  topics: readonly string[]
  /** Events in progress at once. Default 3. */
  concurrency?: number | undefined
}

export interface ResolvedConsumerEntry {
  readonly topics: readonly string[]
  readonly concurrency: number
}

const defaultConcurrency = 3

/** An entry with its defaults. @throws TypeError that says what is wrong. */
export function resolveConsumer(entry: unknown): ResolvedConsumerEntry {
  if (!isPlain(entry) || Array.isArray(entry)) throw new TypeError('must be an object with topics')
  const { topics, concurrency = defaultConcurrency, ...others } = entry as Record<string, unknown>
  const [unknown] = Object.keys(others)
  if (unknown !== undefined) throw new TypeError(`unknown key "${unknown}"; there are topics, concurrency`)
  if (!Array.isArray(topics) || topics.length === 0) throw new TypeError('topics must be a non-empty array')
  if (!Number.isSafeInteger(concurrency) || (concurrency as number) < 1)
    throw new TypeError('concurrency must be a positive integer')
  return { topics: topics.map(checkTopicPattern), concurrency: concurrency as number }
}

/** Several consumers, or null for none. */
export const consumerList: Rule = custom('array of entries or null', 'json', check)

function check(value: unknown): Checked {
  if (value === null) return { value: [] }
  if (!Array.isArray(value)) return { rule: 'must be an array or null' }
  const entries: ResolvedConsumerEntry[] = []
  for (const [index, entry] of value.entries()) {
    try {
      entries.push(resolveConsumer(entry))
    } catch (error) {
      return { rule: `[${index}]: ${(error as Error).message}` }
    }
  }
  return { value: entries }
}
