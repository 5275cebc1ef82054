import { Cron } from 'croner'
import { firstInstantOf, highestWall, isTimeZone, lastChange, nextChange, offsetAt } from './time-zone.ts'

/** One time at which a schedule is due. */
export interface Occurrence {
  /** Whole seconds. */
  readonly at: Date
  /** The wall clock skips the time that was meant: this is the first instant after it. */
  readonly shifted: boolean
  /** The wall clock shows this time twice: this is the first. */
  readonly repeated: boolean
}

const names: Record<string, string> = { minute: '* * * * *', hour: '0 * * * *', day: '0 0 * * *' }
const steps: Record<string, [size: number, cron: (n: number) => string]> = {
  second: [60, n => `*/${n} * * * * *`],
  minute: [60, n => `*/${n} * * * *`],
  hour: [24, n => `0 */${n} * * *`],
}

/**
 * When something is due: a cron expression, read on the wall clock of a time zone.
 *
 * The expression is evaluated by croner on wall times only, where no hour is missing or doubled; this class turns
 * them into instants. A schedule that names its hours runs once per time meant: one that the clock skips in spring
 * runs at the first instant after the gap, one that it shows twice in autumn runs the first time. A schedule for
 * every hour (`*`) runs in each real hour, so it follows the clock.
 */
export class Schedule {
  /** As given. */
  readonly text: string
  readonly timeZone: string
  readonly #cron: Cron
  readonly #everyHour: boolean

  /**
   * @param text Five fields, or six with seconds first; `@daily` and its like; `every 15 minutes`, `every hour`. An
   * IANA name at its end wins over `timeZone`.
   * @throws TypeError that quotes the schedule, or the zone.
   */
  constructor(text: string, timeZone = 'UTC') {
    if (typeof text !== 'string' || text.trim() === '') throw refuse(text, 'it is empty')
    const words = text.trim().split(/\s+/)
    const zone =
      words.length > 1 && /^(UTC|[A-Z]\w+\/[\w/+-]+)$/.test(words.at(-1)!) ? words.pop()! : timeZone
    if (typeof zone !== 'string' || !isTimeZone(zone))
      throw new TypeError(`unknown time zone "${zone}"; write an IANA name such as Europe/Berlin`)
    this.text = text
    this.timeZone = zone
    const pattern = translate(text, words)
    try {
      this.#cron = new Cron(pattern, { timezone: 'UTC', paused: true })
    } catch (error) {
      throw refuse(text, (error as Error).message.replace(/^CronPattern: /, ''))
    }
    if (this.#cron.nextRun(new Date(Date.UTC(2000, 0, 1))) === null) throw refuse(text, 'it is never due')
    const fields = pattern.split(/\s+/)
    this.#everyHour = pattern === '@hourly' || fields.at(-4) === '*'
  }

  /** The first occurrence after an instant; undefined: there is none. */
  next(after: Date): Occurrence | undefined {
    return this.#everyHour ? this.#nextShown(after.getTime()) : this.#nextMeant(after.getTime())
  }

  /** The first `count` occurrences after an instant. */
  nextRuns(count: number, after: Date): Occurrence[] {
    const runs: Occurrence[] = []
    for (let last = this.next(after); last && runs.length < count; last = this.next(last.at)) runs.push(last)
    return runs
  }

  /** The last occurrence at or before an instant; undefined: there is none. */
  latest(now: Date): Date | undefined {
    const instant = this.#everyHour ? this.#latestShown(now.getTime()) : this.#latestMeant(now.getTime())
    return instant === undefined ? undefined : new Date(instant)
  }

  #nextMeant(after: number): Occurrence | undefined {
    // What the clock showed up to now lies behind, so the search begins with what it shows.
    let wall = this.#wallAfter(after + offsetAt(this.timeZone, after))
    while (wall !== undefined) {
      const { instant, ...kind } = firstInstantOf(this.timeZone, wall)
      if (instant > after) return { at: new Date(instant), ...kind }
      wall = this.#wallAfter(wall)
    }
    return undefined
  }

  #latestMeant(now: number): number | undefined {
    let wall = this.#wallUpTo(highestWall(this.timeZone, now))
    while (wall !== undefined) {
      const { instant } = firstInstantOf(this.timeZone, wall)
      if (instant <= now) return instant
      wall = this.#wallUpTo(wall - 1_000)
    }
    return undefined
  }

  #nextShown(after: number): Occurrence | undefined {
    let from = after
    let offset = offsetAt(this.timeZone, after)
    for (;;) {
      const wall = this.#wallAfter(from + offset)
      if (wall === undefined) return undefined
      const change = nextChange(this.timeZone, from, wall - offset)
      if (change === undefined) return { at: new Date(wall - offset), shifted: false, repeated: false }
      // The clock was changed before that: look again from there, the moment itself included.
      from = change
      offset = offsetAt(this.timeZone, change)
      const there = this.#wallUpTo(change + offset)
      if (there === change + offset) return { at: new Date(change), shifted: false, repeated: false }
    }
  }

  #latestShown(now: number): number | undefined {
    let to = now
    for (;;) {
      const offset = offsetAt(this.timeZone, to)
      const wall = this.#wallUpTo(to + offset)
      if (wall === undefined) return undefined
      const change = lastChange(this.timeZone, wall - offset, to)
      if (change === undefined) return wall - offset
      to = change - 1
    }
  }

  #wallAfter(wall: number): number | undefined {
    return this.#cron.nextRun(new Date(wall))?.getTime()
  }

  /** The instant given to croner is excluded, so it is the next whole second. */
  #wallUpTo(wall: number): number | undefined {
    return this.#cron.previousRuns(1, new Date(Math.floor(wall / 1_000) * 1_000 + 1_000))[0]?.getTime()
  }
}

/** The cron expression of what was written. */
function translate(text: string, words: readonly string[]): string {
  const joined = words.join(' ')
  if (/^@(yearly|annually|monthly|weekly|daily|midnight|hourly)$/i.test(joined)) {
    return joined.toLowerCase().replace('@midnight', '@daily')
  }
  const every = /^every (?:(\d+) )?(second|minute|hour|day)s?$/i.exec(joined)
  if (every) {
    const unit = every[2]!.toLowerCase()
    if (every[1] === undefined && names[unit]) return names[unit]
    const [size, cron] = steps[unit] ?? []
    const count = Number(every[1] ?? 1)
    if (size && cron && count > 0 && size % count === 0)
      return count === 1 ? (names[unit] ?? cron(1)) : cron(count)
    if (size && count > 0) throw refuse(text, `${count} does not divide ${size} evenly; use a cron list`)
  }
  if (words.length !== 5 && words.length !== 6)
    throw refuse(text, 'write five fields, six with seconds first, "@daily", or "every 15 minutes"')
  return joined
}

function refuse(text: unknown, why: string): TypeError {
  return new TypeError(`cannot parse schedule ${JSON.stringify(text) ?? String(text)}: ${why}`)
}
