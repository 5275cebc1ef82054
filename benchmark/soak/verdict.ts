import type { Break } from './violence.ts'

/** One start of a job, as its handler wrote it. Times are epoch milliseconds. */
export interface Entry {
  n: number
  pid: number
  started: number
  ended: number | null
  threw: boolean
}

export interface Evidence {
  /** Jobs that must have run. */
  expected: readonly number[]
  /** Jobs that may have run. */
  maybe: ReadonlySet<number>
  /** In order of start. */
  ledger: readonly Entry[]
  killed: ReadonlySet<number>
  breaks: readonly Break[]
}

export interface Tally {
  lost: number[]
  /** Ran although nobody enqueued them. */
  unknown: number[]
  /** Started again because the process of the start before was killed. */
  afterKill: number
  /** Started again because connections were cut when the start before ended. */
  afterBreak: number
  /** Started again for no reason that is allowed. */
  unexplained: number[]
  /** Ended well more than once, for whatever reason. */
  twiceDone: number
}

/** An end is written within this time, or the connection broke meanwhile. */
const completionMs = 5_000

export function tally({ expected, maybe, ledger, killed, breaks }: Evidence): Tally {
  const starts = new Map<number, Entry[]>()
  for (const entry of ledger) {
    const entries = starts.get(entry.n)
    if (entries) entries.push(entry)
    else starts.set(entry.n, [entry])
  }
  const isDone = ({ ended }: Entry) => ended !== null
  const wasCut = ({ started, ended }: Entry) =>
    breaks.some(({ from, to }) => from <= (ended ?? started) + completionMs && to >= started)
  const result: Tally = {
    lost: expected.filter(n => !starts.get(n)?.some(isDone)),
    unknown: [],
    afterKill: 0,
    afterBreak: 0,
    unexplained: [],
    twiceDone: 0,
  }
  const known = new Set(expected)
  for (const [n, entries] of starts) {
    if (!known.has(n) && !maybe.has(n)) result.unknown.push(n)
    if (entries.filter(isDone).length > 1) result.twiceDone += 1
    // The last one needs no excuse.
    for (const entry of entries.slice(0, -1)) {
      if (entry.threw) continue
      if (killed.has(entry.pid)) result.afterKill += 1
      else if (wasCut(entry)) result.afterBreak += 1
      else result.unexplained.push(n)
    }
  }
  return result
}
