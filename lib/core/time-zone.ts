/**
 * Wall clocks of time zones. A wall time is written as the number that `Date.UTC` gives for its digits, so it can be
 * compared and computed with, and never be mistaken for an instant without a conversion in between.
 */
const formats = new Map<string, Intl.DateTimeFormat>()

/** Wall clocks go back by less than this. */
const overlapMs = 3 * 3_600_000
const stepMs = 12 * 3_600_000

/** Whether it is an IANA name, or an alias of one, that this Node.js knows. */
export function isTimeZone(name: string): boolean {
  try {
    formatOf(name)
    return true
  } catch {
    return false
  }
}

/** Ms that the wall clock of the zone is ahead of UTC at an instant. */
export function offsetAt(zone: string, instant: number): number {
  if (zone === 'UTC') return 0
  const whole = Math.floor(instant / 1_000) * 1_000
  const part: Record<string, number> = {}
  for (const { type, value } of formatOf(zone).formatToParts(whole)) part[type] = Number(value)
  const wall = Date.UTC(part.year!, part.month! - 1, part.day, part.hour, part.minute, part.second)
  return wall - whole
}

/**
 * The instant at which the wall clock first shows a time. One that it skips counts as the first instant after the
 * gap (`shifted`); one that it shows twice, as the first (`repeated`).
 */
export function firstInstantOf(
  zone: string,
  wall: number,
): { instant: number; shifted: boolean; repeated: boolean } {
  const before = offsetAt(zone, wall - stepMs)
  const after = offsetAt(zone, wall + stepMs)
  const shown = [...new Set([before, after])]
    .map(offset => wall - offset)
    .filter(instant => instant + offsetAt(zone, instant) === wall)
  if (shown.length > 0) return { instant: Math.min(...shown), shifted: false, repeated: shown.length > 1 }
  return { instant: nextChange(zone, wall - after - 1, wall - before)!, shifted: true, repeated: false }
}

/** The first instant in `(from, to]` at which the offset is another than before; undefined: there is none. */
export function nextChange(zone: string, from: number, to: number): number | undefined {
  const offset = offsetAt(zone, from)
  for (let at = from; at < to; at += stepMs) {
    const end = Math.min(at + stepMs, to)
    if (offsetAt(zone, end) !== offset) return bisect(at, end, instant => offsetAt(zone, instant) !== offset)
  }
  return undefined
}

/** The last instant in `(from, to]` at which the offset is another than before; undefined: there is none. */
export function lastChange(zone: string, from: number, to: number): number | undefined {
  const offset = offsetAt(zone, to)
  for (let at = to; at > from; at -= stepMs) {
    const begin = Math.max(at - stepMs, from)
    if (offsetAt(zone, begin) !== offset)
      return bisect(begin, at, instant => offsetAt(zone, instant) === offset)
  }
  return undefined
}

/** The highest wall time that the clock has shown up to an instant. */
export function highestWall(zone: string, instant: number): number {
  return instant + Math.max(offsetAt(zone, instant), offsetAt(zone, instant - overlapMs))
}

/** `test` is false at `low`, true at `high`, and changes once. */
function bisect(low: number, high: number, test: (instant: number) => boolean): number {
  let [no, yes] = [low, high]
  while (yes - no > 1) {
    const middle = Math.floor((no + yes) / 2)
    if (test(middle)) yes = middle
    else no = middle
  }
  return yes
}

function formatOf(zone: string): Intl.DateTimeFormat {
  let format = formats.get(zone)
  if (!format) {
    format = new Intl.DateTimeFormat('en-US', {
      timeZone: zone,
      calendar: 'iso8601',
      numberingSystem: 'latn',
      hourCycle: 'h23',
      year: 'numeric',
      month: 'numeric',
      day: 'numeric',
      hour: 'numeric',
      minute: 'numeric',
      second: 'numeric',
    })
    formats.set(zone, format)
  }
  return format
}
