import { type KeyRule, type KeyScope, storedKey } from './keys.ts'

export type UniqueStrategy = 'untilExecuted' | 'whileExecuting'

/** What happens to a job whose key another one has; which of these there are depends on the strategy. */
export type UniqueConflict = 'reject' | 'discard' | 'log' | 'replace' | 'wait'

export interface UniqueOptions<A = never> {
  /**
   * `untilExecuted`: from its enqueue until it has ended, there is no second one. `whileExecuting`: there may be any
   * number, of which one runs. Default `untilExecuted`.
   */
  strategy?: UniqueStrategy | undefined
  /** What makes two jobs the same, a text of at least one character. Default: the name alone. */
  key?: ((args: A) => string) | undefined
  /** `job`: the key counts among jobs of this name. `global`: among all with this scope. Default `job`. */
  scope?: KeyScope | undefined
  /**
   * `untilExecuted`, at the second enqueue. `reject`: JobNotUniqueError. `discard`: nothing is stored, the result says
   * `duplicate`; `log`: a warning too. `replace`: a job that waits gets these arguments and this due time; one that has
   * begun rejects. Default `reject`.
   *
   * `whileExecuting`, when the second is to run. `wait`: it is looked at again after about 5 s, and no attempt is
   * counted. `discard`: it is archived unrun. Default `wait`.
   */
  onConflict?: UniqueConflict | undefined
}

/** {@link UniqueOptions}, checked. */
export interface UniqueRule extends KeyRule {
  readonly strategy: UniqueStrategy
  readonly onConflict: UniqueConflict
}

/** The lock of one job. */
export interface UniqueLock {
  readonly key: string
  /** `untilExecuted`: its enqueue takes it. `whileExecuting`: its worker does. */
  readonly strategy: UniqueStrategy
  readonly onConflict: UniqueConflict
}

const names = new Set(['strategy', 'key', 'scope', 'onConflict'])
/** The first is the default. */
const conflicts: Record<UniqueStrategy, readonly UniqueConflict[]> = {
  untilExecuted: ['reject', 'discard', 'log', 'replace'],
  whileExecuting: ['wait', 'discard'],
}
const strategies = Object.keys(conflicts)
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
  const { strategy = 'untilExecuted', key, scope = 'job', onConflict } = options as Record<string, unknown>
  if (!strategies.includes(strategy as string))
    refuse(`unique.strategy must be one of ${strategies.join(', ')}`, strategy)
  const policies = conflicts[strategy as UniqueStrategy]
  if (onConflict !== undefined && !policies.includes(onConflict as UniqueConflict))
    refuse(`unique.onConflict of "${strategy}" must be one of ${policies.join(', ')}`, onConflict)
  if (!scopes.includes(scope as string)) refuse(`unique.scope must be one of ${scopes.join(', ')}`, scope)
  if (key !== undefined && typeof key !== 'function')
    refuse('unique.key must be a function of the arguments', key)
  if (scope === 'global' && key === undefined) refuse('unique.scope "global" needs a key', key)
  return Object.freeze({
    strategy: strategy as UniqueStrategy,
    key: key as KeyRule['key'],
    scope: scope as KeyScope,
    onConflict: (onConflict ?? policies[0]) as UniqueConflict,
  })
}

/**
 * The lock of one job.
 * @throws TypeError naming the job: for a bad key, and for arguments that no key tells apart.
 */
export function uniqueLock(job: string, rule: UniqueRule, args: unknown): UniqueLock {
  const { strategy, onConflict } = rule
  // While they run it makes sense to have one of them at a time, whatever their arguments.
  if (strategy === 'untilExecuted' && !rule.key && !isEmpty(args)) {
    throw new TypeError(
      `job "${job}" is unique by its name alone, but has arguments: give unique.key, a function of the arguments, or enqueue it with null`,
    )
  }
  return { key: storedKey(job, 'unique', rule, args), strategy, onConflict }
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
