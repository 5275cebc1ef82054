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

const pattern = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)$/i

/** Milliseconds of a duration, or `undefined` when it is none (`NaN`, infinite and negative numbers are none). */
export function parseDuration(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isFinite(value) && value >= 0 ? value : undefined
  if (typeof value !== 'string') return undefined
  const match = pattern.exec(value.trim())
  if (!match) return undefined
  return Number(match[1]) * unitMs[match[2]!.toLowerCase()]!
}
