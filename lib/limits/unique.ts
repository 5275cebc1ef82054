import { type KeyRule, type KeyScope, storedKey } from './keys.ts'

/** What an enqueue does when a job with its key has not ended yet. */
export type UniqueConflict = 'reject' | 'discard' | 'log' | 'replace'

export interface UniqueOptions<A = never> {
  /** `untilExecuted`: from its enqueue until it has ended, there is no second one. */
  strategy?: 'untilExecuted' | undefined
  /** What makes two jobs the same, a text of at least one character. Default: the name alone. */
  key?: ((args: A) => string) | undefined
  /** `job`: the key counts among jobs of this name. `global`: among all with this scope. Default `job`. */
  scope?: KeyScope | undefined
  /**
   * `reject`: JobNotUniqueError. `discard`: nothing is stored, the result says `duplicate`; `log`: a warning too.
   * `replace`: a job that waits gets these arguments and this due time; one that has begun rejects. Default `reject`.
   */
  onConflict?: UniqueConflict | undefined
}

/** {@link UniqueOptions}, checked. */
export interface UniqueRule extends KeyRule {
  readonly onConflict: UniqueConflict
}

/** A lock that an enqueue takes. */
export interface UniqueLock {
  readonly key: string
  readonly onConflict: UniqueConflict
}

const names = new Set(['strategy', 'key', 'scope', 'onConflict'])
const strategies = ['untilExecuted']
const conflicts = ['reject', 'discard', 'log', 'replace']
const scopes = ['job', 'global']

/** Checks the option `unique` of a job. `refuse` throws, naming the job. */
export function checkUnique(
  options: unknown,
  refuse: (rule: string, value: unknown) => never,
): UniqueRule | undefined {
  if (options === undefined) return undefined
  if (typeof options !== 'object' || options === null)
    return refuse('unique must be an object of strategy, key, scope and onConflict', options)
  for (const name of Object.keys(options))
    if (!names.has(name)) refuse(`unique has only ${[...names].join(', ')}`, name)
  const {
    strategy = 'untilExecuted',
    key,
    scope = 'job',
    onConflict = 'reject',
  } = options as Record<string, unknown>
  if (!strategies.includes(strategy as string))
    refuse(`unique.strategy must be one of ${strategies.join(', ')}`, strategy)
  if (!conflicts.includes(onConflict as string))
    refuse(`unique.onConflict must be one of ${conflicts.join(', ')}`, onConflict)
  if (!scopes.includes(scope as string)) refuse(`unique.scope must be one of ${scopes.join(', ')}`, scope)
  if (key !== undefined && typeof key !== 'function')
    refuse('unique.key must be a function of the arguments', key)
  if (scope === 'global' && key === undefined) refuse('unique.scope "global" needs a key', key)
  return Object.freeze({
    key: key as KeyRule['key'],
    scope: scope as KeyScope,
    onConflict: onConflict as UniqueConflict,
  })
}

/**
 * The lock of one job.
 * @throws TypeError naming the job: for a bad key, and for arguments that no key tells apart.
 */
export function uniqueLock(job: string, rule: UniqueRule, args: unknown): UniqueLock {
  if (!rule.key && !isEmpty(args)) {
    throw new TypeError(
      `job "${job}" is unique by its name alone, but has arguments: give unique.key, a function of the arguments, or enqueue it with null`,
    )
  }
  return { key: storedKey(job, 'unique', rule, args), onConflict: rule.onConflict }
}

function isEmpty(args: unknown): boolean {
  if (args === undefined || args === null) return true
  if (Array.isArray(args)) return args.length === 0
  return (
    typeof args === 'object' &&
    Object.getPrototypeOf(args) === Object.prototype &&
    Object.keys(args).length === 0
  )
}
