import type { Peer } from '../peers/peer.ts'

/** One row of the table for one peer. */
export interface Figure {
  what: string
  value: number
  unit: string
  /** Which way is better. */
  better: 'more' | 'less'
}

export interface Sizes {
  seconds: number
  /** Jobs of one drain. */
  jobs: number
  /** Jobs of the deep queue. */
  backlog: number
}

/** Leaves the peer empty. */
export type Measure = (peer: Peer, sizes: Sizes) => Promise<Figure[]>

export const concurrency = 10
export const drainTimeoutMs = 180_000
const fillBatch = 1_000

/** Puts `count` jobs on the queue. */
export async function fill(peer: Peer, count: number): Promise<void> {
  for (let left = count; left > 0; left -= fillBatch) {
    await peer.enqueueMany(Array.from({ length: Math.min(left, fillBatch) }, () => ({ sentAt: 0 })))
  }
}
