import { setTimeout as sleep } from 'node:timers/promises'
import { machineMs, type Peer } from '../peers/peer.ts'
import { Workers } from '../workers.ts'
import { concurrency, drainTimeoutMs, type Figure, fill, type Measure, type Sizes } from './measure.ts'

const lookMs = 5

/** A full queue, from the start of the first job until the last one is recorded as done. */
export const throughput: Measure = async (peer, sizes) => [
  ...(await drain(peer, sizes, 1)),
  ...(await drain(peer, sizes, 2)),
]

async function drain(peer: Peer, { jobs }: Sizes, processes: number): Promise<Figure[]> {
  await fill(peer, jobs)
  await peer.analyze()
  const workers = await Workers.fork(peer, processes, concurrency)
  try {
    workers.start()
    await workers.waitForDone(jobs, drainTimeoutMs)
    while (await peer.hasPending()) await sleep(lookMs)
    const seconds = (machineMs() - workers.first) / 1_000
    const figures: Figure[] = [
      {
        what: `no-op jobs, ${processes} process${processes > 1 ? 'es' : ''}, concurrency ${concurrency}`,
        value: jobs / seconds,
        unit: 'jobs/s',
        better: 'more',
      },
    ]
    if (processes === 1) {
      const connections = await peer.workerConnections()
      figures.push(
        { what: 'connections of one worker', value: connections, unit: '', better: 'less' },
        { what: 'resident memory of one worker', value: workers.rss, unit: 'MiB', better: 'less' },
      )
    }
    return figures
  } finally {
    await workers.stop()
    await peer.clear()
  }
}
