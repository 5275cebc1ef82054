import { createHash } from 'node:crypto'

/** Which jobs share a key: those of the same name, or all that give the same key. */
export type KeyScope = 'job' | 'global'

/** How a definition makes the key of a job from its arguments. */
export interface KeyRule {
  readonly scope: KeyScope
  /** Undefined: the name of the job is the key. */
  readonly key: ((args: never) => unknown) | undefined
}

const maxBytes = 255
const keptBytes = 180

/**
 * The key as it is stored. A long one is cut and made distinct by its hash, because an index entry has a limit.
 * @throws TypeError naming the job when its function throws, or returns no text that can be stored.
 */
export function storedKey(job: string, option: string, rule: KeyRule, args: unknown): string {
  if (!rule.key) return shorten(job)
  let key: unknown
  try {
    key = rule.key(args as never)
  } catch (error) {
    throw new TypeError(`job "${job}": ${option}.key threw: ${String(error)}`, { cause: error })
  }
  if (typeof key !== 'string' || key === '' || key.includes('\0') || !isWellFormed(key)) {
    throw new TypeError(
      `job "${job}": ${option}.key must return a text that is not empty, got ${JSON.stringify(key)}`,
    )
  }
  return shorten(rule.scope === 'global' ? key : `${job}:${key}`)
}

function shorten(key: string): string {
  const bytes = Buffer.from(key)
  if (bytes.length <= maxBytes) return key
  let end = keptBytes
  // Not within a character.
  while ((bytes[end]! & 0xc0) === 0x80) end -= 1
  return `${bytes.toString('utf8', 0, end)}:${createHash('sha256').update(bytes).digest('hex')}`
}

function isWellFormed(text: string): boolean {
  return (text as string & { isWellFormed(): boolean }).isWellFormed()
}
