/** A duration: a number of milliseconds, or a string such as `'250ms'`, `'30s'`, `'5m'`, `'1h'`, `'7d'`, `'2w'`. */
export type Duration = number | string

const unitMs: Record<string, number> = {
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
}

/** A delay above this is a mistake, and dates beyond it do not fit everywhere. A hundred years, in milliseconds. */
export const longestDelayMs = 100 * 365.25 * 86_400_000

const pattern = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)$/i

/** Milliseconds of a duration, or `undefined` when it is none (`NaN`, infinite and negative numbers are none). */
export function parseDuration(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isFinite(value) && value >= 0 ? value : undefined
  if (typeof value !== 'string') return undefined
  const match = pattern.exec(value.trim())
  if (!match) return undefined
  const ms = Number(match[1]) * unitMs[match[2]!.toLowerCase()]!
  return Number.isFinite(ms) ? ms : undefined
}

/**
 * Milliseconds of a delay given by a caller; `where` begins the error's text.
 * @throws TypeError when it is no duration, RangeError when it is above {@link longestDelayMs}.
 */
export function parseDelay(where: string, value: unknown): number {
  const ms = parseDuration(value)
  if (ms === undefined) throw new TypeError(`${where} must be a duration such as "30s", got ${String(value)}`)
  if (ms > longestDelayMs) throw new RangeError(`${where} is above 100 years: ${String(value)}`)
  return ms
}
