import { parseDuration } from '../core/duration.ts'
import { maxTimerMs } from '../core/sleep.ts'

/** What a rule makes of a value: the resolved value, or why it is refused. A warning lets the value pass. */
export type Checked = { value: unknown; warning?: string } | { rule: string; hint?: string }

export interface Rule {
  /** Name of the type in the documentation. */
  readonly type: string
  /** How a variable of the environment is read before it is checked. */
  readonly env: 'text' | 'textOrJson' | 'number' | 'boolean' | 'list' | 'json' | 'duration'
  check(value: unknown): Checked
}

const accept = (value: unknown): Checked => ({ value })
const refuse = (rule: string, hint?: string): Checked => (hint === undefined ? { rule } : { rule, hint })

interface DurationOptions {
  /** 0 is allowed. */
  zero?: boolean
  /** `null` means off. */
  nullable?: boolean
  /** Passed to a timer, which takes 31 bits of milliseconds. */
  timer?: boolean
  /** The database counts it in whole seconds. */
  wholeSeconds?: boolean
  /** The default is a second or more, so a small bare number is probably meant in seconds. */
  seconds?: boolean
}

export function duration(options: DurationOptions = {}): Rule {
  const { zero = false, nullable = false, timer = false, wholeSeconds = false, seconds = false } = options
  const wording = zero
    ? 'must be a duration of zero or more'
    : nullable
      ? 'must be a positive duration or null to disable'
      : 'must be a positive duration such as "30s" or a number of milliseconds'
  return {
    type: `duration${wholeSeconds ? ' ≥ 1s' : zero ? ' ≥ 0' : ''}${nullable ? ' or null' : ''}`,
    env: 'duration',
    check(value) {
      if (value === null && nullable) return accept(null)
      const ms = parseDuration(value)
      if (ms === undefined || (ms === 0 && !zero)) return refuse(wording)
      if (timer && ms > maxTimerMs) return refuse(`must be at most ${maxTimerMs} milliseconds (24 days)`)
      const slip = seconds && typeof value === 'number' && value > 0 && value < 1_000
      if (wholeSeconds && ms < 1_000) {
        return refuse('must be at least 1s', slip ? `numbers are milliseconds, write "${value}s"` : undefined)
      }
      if (!slip) return accept(wholeSeconds ? Math.ceil(ms / 1_000) * 1_000 : ms)
      return {
        value: ms,
        warning: `is ${value} milliseconds; numbers are milliseconds, write "${value}s" if you meant seconds`,
      }
    },
  }
}

export function integer(options: { min: number; max?: number; nullable?: boolean; rule: string }): Rule {
  const { min, max = Number.MAX_SAFE_INTEGER, nullable = false, rule } = options
  return {
    type: `integer ${max === Number.MAX_SAFE_INTEGER ? `≥ ${min}` : `${min} to ${max}`}${nullable ? ' or null' : ''}`,
    env: 'number',
    check: value => {
      if (value === null && nullable) return accept(null)
      return Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max
        ? accept(value)
        : refuse(rule)
    },
  }
}

export const positiveInteger = integer({ min: 1, rule: 'must be a positive integer' })
export const positiveIntegerOrNull = integer({
  min: 1,
  nullable: true,
  rule: 'must be a positive integer or null',
})
export const integerOrZero = integer({ min: 0, rule: 'must be an integer of zero or more' })
export const portOrNull = integer({
  min: 1,
  max: 65_535,
  nullable: true,
  rule: 'must be an integer between 1 and 65535 or null',
})

export function number(options: { min: number; max: number; rule: string }): Rule {
  return {
    type: `number ${options.min} to ${options.max}`,
    env: 'number',
    check: value =>
      typeof value === 'number' && value >= options.min && value <= options.max
        ? accept(value)
        : refuse(options.rule),
  }
}

export const boolean: Rule = {
  type: 'boolean',
  env: 'boolean',
  check: value => (typeof value === 'boolean' ? accept(value) : refuse('must be true or false')),
}

export function text(
  options: { nullable?: boolean; also?: (value: string) => string | undefined } = {},
): Rule {
  return {
    type: `string${options.nullable ? ' or null' : ''}`,
    env: 'text',
    check(value) {
      if (value === null && options.nullable) return accept(null)
      if (typeof value !== 'string' || value.trim() === '') return refuse('must be a non-empty string')
      const broken = options.also?.(value)
      return broken === undefined ? accept(value) : refuse(broken)
    },
  }
}

export function oneOf(values: readonly string[]): Rule {
  return {
    type: values.map(value => `\`${value}\``).join(' \\| '),
    env: 'text',
    check: value =>
      values.includes(value as string) ? accept(value) : refuse(`must be one of: ${values.join(', ')}`),
  }
}

export const databaseUrl: Rule = {
  type: 'URL or null',
  env: 'text',
  check(value) {
    if (value === null) return accept(null)
    if (typeof value !== 'string' || value.trim() === '') return refuse('must be a non-empty string')
    const rule = 'must be a postgres:// URL'
    if (!/^postgres(ql)?:\/\//i.test(value))
      return refuse(rule, /^\w+\s*=/.test(value) ? 'use connection: { … }' : undefined)
    // The driver takes an absent host after a user; the URL class does not.
    if (URL.canParse(value) || URL.canParse(value.replace('@/', '@host/'))) return accept(value)
    return refuse(rule, 'percent-encode special characters of the password')
  },
}

/** A string or a pattern; text written `/source/flags` becomes a pattern, for JSON and the environment. */
export const patterns: Rule = {
  type: 'array of strings and patterns',
  env: 'json',
  check(value) {
    const rule = 'must be an array of strings or regular expressions'
    if (!Array.isArray(value)) return refuse(rule)
    const read: (string | RegExp)[] = []
    for (const item of value) {
      const pattern = readPattern(item)
      if (pattern === undefined) return refuse(rule)
      if (pattern === null) return refuse(rule, `${item} is not a regular expression`)
      read.push(pattern)
    }
    return accept(read)
  },
}

/** Undefined: neither text nor a pattern; null: written like a pattern, but none. */
function readPattern(item: unknown): string | RegExp | undefined | null {
  if (item instanceof RegExp) return item
  if (typeof item !== 'string') return undefined
  const slashed = /^\/(.+)\/([a-z]*)$/s.exec(item)
  try {
    return slashed ? new RegExp(slashed[1] as string, slashed[2]) : item
  } catch {
    return null
  }
}

/** Durations by name or pattern, as an object or as pairs; resolved to pairs, in the order given. */
export const durationsByPattern: Rule = {
  type: 'object of durations, or array of `[pattern, duration]`',
  env: 'json',
  check(value) {
    const rule = 'must be an object or an array of [pattern, duration]'
    if (typeof value !== 'object' || value === null) return refuse(rule)
    const read: [string | RegExp, number][] = []
    for (const entry of Array.isArray(value) ? value : Object.entries(value)) {
      if (!Array.isArray(entry) || entry.length !== 2) return refuse(rule)
      const [pattern, ms] = [readPattern(entry[0]), parseDuration(entry[1])]
      if (typeof pattern !== 'string' && !(pattern instanceof RegExp)) return refuse(rule)
      if (ms === undefined) return refuse(rule, `${String(entry[0])} needs a duration such as "7d", or 0`)
      read.push([pattern, ms])
    }
    return accept(read)
  },
}

export const stringList: Rule = {
  type: 'array of strings',
  env: 'list',
  check: value =>
    Array.isArray(value) && value.every(item => typeof item === 'string' && item.trim() !== '')
      ? accept(value)
      : refuse('must be an array of non-empty strings'),
}

/** Any check that fits nowhere else. */
export function custom(type: string, env: Rule['env'], check: (value: unknown) => Checked): Rule {
  return { type, env, check }
}

/** Which reading of groups; the spelling of other clients is accepted. */
export const groupMode: Rule = custom('`fifo`, `roundRobin` or null', 'text', value => {
  if (value === null || value === 'fifo' || value === 'roundRobin') return { value }
  if (value === 'round_robin') return { value: 'roundRobin' }
  return { rule: 'must be one of fifo, roundRobin, or null' }
})
