import { deadLetterSuffix, maxQueueNameLength } from './constants.ts'

/** Why a queue cannot have this name, or nothing. Found here, it does not wait for the first message. */
export function queueNameProblem(
  name: string,
  { queuePrefix, levels }: { queuePrefix: string; levels: number },
): string | undefined {
  const logical = name.toLowerCase()
  if (!/^[a-z0-9_]+$/.test(logical)) return 'may contain only letters, digits and underscores'
  if (logical.endsWith(deadLetterSuffix)) return `queue "${name}" ends like a dead-letter queue`
  if (levels > 1 && /_p\d+$/.test(logical)) return `queue "${name}" ends like a priority level`
  // No other suffix is longer: there are at most ten levels, `_p0` to `_p9`.
  const longest = `${queuePrefix.toLowerCase()}_${logical}${deadLetterSuffix}`
  if (longest.length <= maxQueueNameLength) return undefined
  return `queue "${name}" becomes "${longest}" (${longest.length} characters, the limit is ${maxQueueNameLength})`
}
