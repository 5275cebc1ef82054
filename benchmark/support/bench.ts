import type { Pgbus } from '../../lib/pgbus.ts'

/** One measured thing beside the bare way of doing it. */
export interface Figure {
  what: string
  ours: number
  floor: number
  unit: string
}

export type Bench = (pgbus: Pgbus, databaseUrl: string) => Promise<Figure[]>

/** How often per second `fn` completes, with `producers` running it one after another each. */
export async function perSecond(
  producers: number,
  ms: number,
  fn: (producer: number) => Promise<unknown>,
): Promise<number> {
  const start = performance.now()
  let done = 0
  await Promise.all(
    Array.from({ length: producers }, async (_, producer) => {
      while (performance.now() - start < ms) {
        await fn(producer)
        done += 1
      }
    }),
  )
  return done / ((performance.now() - start) / 1_000)
}

/** The value below which half of the samples lie. */
export function median(samples: readonly number[]): number {
  return quantile(samples, 0.5)
}

/** The value below which `share` (0 to 1) of the samples lie. */
export function quantile(samples: readonly number[], share: number): number {
  const sorted = samples.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}
