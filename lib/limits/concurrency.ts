import { type KeyRule, type KeyScope, storedKey } from './keys.ts'

/** What an enqueue does while as many jobs with its key as are allowed have not ended yet. */
export type LimitConflict = 'block' | 'discard' | 'raise'

export interface ConcurrencyOptions<A = never> {
  /** So many jobs with one key at a time, at least 1: in their queue, running, or waiting for their next attempt. */
  limit: number
  /** Which jobs share the limit, a text of at least one character. Default: the name, for all jobs of that name. */
  key?: ((args: A) => string) | undefined
  /** `job`: the key counts among jobs of this name. `global`: among all with this scope. Default `job`. */
  scope?: KeyScope | undefined
  /**
   * `block`: it waits outside its queue, the more urgent and older one first. `discard`: nothing is stored, the
   * result says `discarded`. `raise`: ConcurrencyLimitExceededError. Default `block`.
   */
  onConflict?: LimitConflict | undefined
}

/** {@link ConcurrencyOptions}, checked. */
export interface ConcurrencyRule extends KeyRule {
  readonly limit: number
  readonly onConflict: LimitConflict
}

/** A slot that a job needs. */
export interface NeededSlot {
  readonly key: string
  readonly max: number
  readonly onConflict: LimitConflict
}

const names = new Set(['limit', 'key', 'scope', 'onConflict'])
const conflicts = ['block', 'discard', 'raise']
const scopes = ['job', 'global']
const maxLimit = 2_147_483_647

/** Checks the option `concurrency` of a job. `refuse` throws, naming the job. */
export function checkConcurrency(
  options: unknown,
  refuse: (rule: string, value: unknown) => never,
): ConcurrencyRule | undefined {
  if (options === undefined) return undefined
  if (typeof options !== 'object' || options === null)
    return refuse('concurrency must be an object of limit, key, scope and onConflict', options)
  for (const name of Object.keys(options))
    if (!names.has(name)) refuse(`concurrency has only ${[...names].join(', ')}`, name)
  const { limit, key, scope = 'job', onConflict = 'block' } = options as Record<string, unknown>
  if (!Number.isSafeInteger(limit) || (limit as number) < 1 || (limit as number) > maxLimit)
    refuse('concurrency.limit must be an integer of at least 1', limit)
  if (!conflicts.includes(onConflict as string))
    refuse(`concurrency.onConflict must be one of ${conflicts.join(', ')}`, onConflict)
  if (!scopes.includes(scope as string))
    refuse(`concurrency.scope must be one of ${scopes.join(', ')}`, scope)
  if (key !== undefined && typeof key !== 'function')
    refuse('concurrency.key must be a function of the arguments', key)
  if (scope === 'global' && key === undefined) refuse('concurrency.scope "global" needs a key', key)
  return Object.freeze({
    limit: limit as number,
    key: key as KeyRule['key'],
    scope: scope as KeyScope,
    onConflict: onConflict as LimitConflict,
  })
}

/** The slot that one job needs. @throws TypeError naming the job, for a bad key. */
export function neededSlot(job: string, rule: ConcurrencyRule, args: unknown): NeededSlot {
  return { key: storedKey(job, 'concurrency', rule, args), max: rule.limit, onConflict: rule.onConflict }
}
