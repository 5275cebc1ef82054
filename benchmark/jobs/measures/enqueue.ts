import { perSecond } from '../../support/bench.ts'
import type { Measure } from './measure.ts'

const producers = 10
const batch = 1_000
const warmUpMs = 300

/** Ten callers of one process, each waiting for its job to be stored before it stores the next. */
export const enqueue: Measure = async (peer, { seconds }) => {
  const one = () => peer.enqueue({ sentAt: 0 })
  await perSecond(producers, warmUpMs, one)
  const value = await perSecond(producers, seconds * 1_000, one)
  await peer.clear()
  return [{ what: `enqueue one by one, ${producers} producers`, value, unit: 'jobs/s', better: 'more' }]
}

/** One caller, a thousand jobs per call. */
export const bulk: Measure = async (peer, { seconds }) => {
  const many = () => peer.enqueueMany(Array.from({ length: batch }, () => ({ sentAt: 0 })))
  await perSecond(1, warmUpMs, many)
  const value = (await perSecond(1, seconds * 1_000, many)) * batch
  await peer.clear()
  return [{ what: `bulk enqueue, ${batch} per call`, value, unit: 'jobs/s', better: 'more' }]
}
