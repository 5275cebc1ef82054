/** What a dead-letter queue's name ends with. */
export const deadLetterSuffix = '_dlq'

/** PGMQ's limit for a physical name: 63 bytes of an identifier less its longest prefix and suffix. */
export const maxPhysicalLength = 47

export interface QueueNameProblem {
  /** What is wrong, to be read after the name. */
  rule: string
  /** What to do about it, where that can be told. */
  hint?: string
}

/** A pattern of queue names: `*`, or the beginning of names and `*`. */
export function isWildcard(queue: string): boolean {
  return queue.endsWith('*')
}

/** Whether a logical name is one of these names, or follows one of the patterns among them. */
export function queueMatcher(queues: readonly string[]): (name: string) => boolean {
  const names = new Set(queues.filter(queue => !isWildcard(queue)))
  const beginnings = queues.filter(isWildcard).map(pattern => pattern.slice(0, -1))
  return name => names.has(name) || beginnings.some(beginning => name.startsWith(beginning))
}

/** Why a queue cannot have this name, or nothing. The one place where these rules are kept. */
export function queueNameProblem(
  name: string,
  { queuePrefix, levels }: { queuePrefix: string; levels: number },
): QueueNameProblem | undefined {
  const logical = name.toLowerCase()
  if (!/^[a-z0-9_]+$/.test(logical)) {
    const suggestion = logical.replace(/[-.: ]/g, '_')
    const rule = 'may contain only letters, digits and underscores'
    return /^[a-z0-9_]+$/.test(suggestion) ? { rule, hint: `did you mean "${suggestion}"?` } : { rule }
  }
  const nobody = 'nobody would work on it'
  if (logical.endsWith(deadLetterSuffix)) return { rule: 'ends like a dead-letter queue', hint: nobody }
  if (levels > 1 && /_p\d+$/.test(logical)) return { rule: 'ends like a priority level', hint: nobody }
  // No other suffix is longer: there are at most ten levels, `_p0` to `_p9`.
  const longest = `${queuePrefix.toLowerCase()}_${logical}${deadLetterSuffix}`
  const excess = longest.length - maxPhysicalLength
  if (excess <= 0) return undefined
  return {
    rule: `becomes "${longest}" (${longest.length} characters, the limit is ${maxPhysicalLength})`,
    hint: `shorten it to ${logical.length - excess} characters`,
  }
}
