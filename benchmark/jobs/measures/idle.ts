import { setTimeout as sleep } from 'node:timers/promises'
import { Workers } from '../workers.ts'
import { concurrency, drainTimeoutMs, type Measure } from './measure.ts'

const settleMs = 5_000
const minimumMs = 30_000

/** What a worker asks of the server while there is nothing to do, and what it holds meanwhile. */
export const idle: Measure = async (peer, { seconds }) => {
  const workers = await Workers.fork(peer, 1, concurrency)
  try {
    workers.start()
    await peer.enqueue({ sentAt: 0 })
    await workers.waitForDone(1, drainTimeoutMs)
    await sleep(settleMs)
    const ms = Math.max(minimumMs, seconds * 1_000)
    const before = await peer.commandCount()
    await sleep(ms)
    // The look at the counter counts itself.
    const value = ((await peer.commandCount()) - before - 1) / (ms / 60_000)
    return [
      {
        what: `idle worker, ${peer.store === 'redis' ? 'commands' : 'transactions'} per minute`,
        value,
        unit: '',
        better: 'less',
      },
      {
        what: 'connections of an idle worker',
        value: await peer.workerConnections(),
        unit: '',
        better: 'less',
      },
    ]
  } finally {
    await workers.stop()
    await peer.clear()
  }
}
