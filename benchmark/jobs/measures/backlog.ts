import type { Peer } from '../peers/peer.ts'
import { Workers } from '../workers.ts'
import { concurrency, drainTimeoutMs, type Figure, fill, type Measure } from './measure.ts'

/**
 * The first jobs of a deep queue that was just loaded, the same after ANALYZE, and beside it the same number of
 * jobs from a queue that holds no more than these. Stops the clock at the last handler.
 */
export const backlog: Measure = async (peer, { jobs, backlog: depth }) => {
  const shallow = await first(peer, jobs, jobs, false)
  const fresh = await first(peer, depth, jobs, false)
  const figures: Figure[] = [
    { what: `first ${jobs} jobs of ${jobs}`, value: shallow, unit: 'jobs/s', better: 'more' },
    { what: `first ${jobs} jobs of ${depth}, just loaded`, value: fresh, unit: 'jobs/s', better: 'more' },
  ]
  if (peer.store === 'postgres') {
    const analyzed = await first(peer, depth, jobs, true)
    figures.push({
      what: `first ${jobs} jobs of ${depth}, after ANALYZE`,
      value: analyzed,
      unit: 'jobs/s',
      better: 'more',
    })
  }
  return figures
}

async function first(peer: Peer, depth: number, jobs: number, analyzed: boolean): Promise<number> {
  await fill(peer, depth)
  if (analyzed) await peer.analyze()
  const workers = await Workers.fork(peer, 1, concurrency)
  try {
    workers.start()
    await workers.waitForDone(jobs, drainTimeoutMs)
    return workers.done / ((workers.last - workers.first) / 1_000)
  } finally {
    await workers.stop()
    await peer.clear()
  }
}
