import { setTimeout as sleep } from 'node:timers/promises'
import { quantile } from '../../support/bench.ts'
import { machineMs } from '../peers/peer.ts'
import { Workers } from '../workers.ts'
import { concurrency, drainTimeoutMs, type Figure, type Measure } from './measure.ts'

const warmUp = 100
const idlePauseMs = 20
const perSecond = 200

/** Milliseconds from the call to the start of the handler in another process. */
export const latency: Measure = async (peer, { seconds }) => {
  const workers = await Workers.fork(peer, 1, concurrency)
  try {
    workers.start()
    const send = () => peer.enqueue({ sentAt: machineMs() })
    for (let n = 1; n <= warmUp; n += 1) {
      await send()
      await workers.waitForDone(n, drainTimeoutMs)
    }

    const idleFrom = workers.latencies.length
    const idleUntil = machineMs() + seconds * 2_000
    while (machineMs() < idleUntil) {
      const expected = workers.done + 1
      await send()
      await workers.waitForDone(expected, drainTimeoutMs)
      // Long enough for the worker to go to rest, and off the beat of any interval.
      await sleep(idlePauseMs + Math.random() * idlePauseMs)
    }
    const busyFrom = workers.latencies.length
    const total = workers.done + (await sendSteadily(send, seconds * 2_000))
    await workers.waitForDone(total, drainTimeoutMs)
    return [
      ...quantiles('idle queue', workers.latencies.slice(idleFrom, busyFrom)),
      ...quantiles(`at ${perSecond} jobs/s`, workers.latencies.slice(busyFrom)),
    ]
  } finally {
    await workers.stop()
    await peer.clear()
  }
}

/** Calls at fixed times, whether earlier calls have been answered or not. */
async function sendSteadily(send: () => Promise<unknown>, ms: number): Promise<number> {
  const start = machineMs()
  const calls: Promise<unknown>[] = []
  for (;;) {
    const elapsed = machineMs() - start
    if (elapsed > ms) break
    while (calls.length < (elapsed * perSecond) / 1_000) calls.push(send())
    await sleep(1)
  }
  await Promise.all(calls)
  return calls.length
}

function quantiles(where: string, samples: readonly number[]): Figure[] {
  return [0.5, 0.99].map(share => ({
    what: `pickup latency, ${where}, p${share * 100}`,
    value: quantile(samples, share),
    unit: 'ms',
    better: 'less',
  }))
}
