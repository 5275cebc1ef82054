import fc from 'fast-check'
import t from 'tap'
import { HubClient } from '../../../lib/streams/hub/hub-client.ts'
import { MasterHub } from '../../../lib/streams/hub/master-hub.ts'
import { recordLog } from '../../db/support.ts'
import { waitFor } from '../../support/wait-for.ts'
import { FakeUpstream, socketPath } from './support.ts'

const clients = 3
const channels = ['a', 'b', 'c']

type Step =
  | { do: 'take' | 'give'; client: number; channel: string }
  | { do: 'close'; client: number }
  /** Lets what is under way go on for a few turns of the event loop. */
  | { do: 'turn'; times: number }

const client = fc.nat({ max: clients - 1 })
const channel = fc.constantFrom(...channels)
const steps = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.record({ do: fc.constant('take' as const), client, channel }) },
    { weight: 6, arbitrary: fc.record({ do: fc.constant('give' as const), client, channel }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('close' as const), client }) },
    { weight: 4, arbitrary: fc.record({ do: fc.constant('turn' as const), times: fc.nat({ max: 4 }) }) },
  ) as fc.Arbitrary<Step>,
  { maxLength: 60 },
)

/** A server that answers LISTEN after a while, and not in order. */
class SlowUpstream extends FakeUpstream {
  #n = 0

  override async ensureListening(channel: string): Promise<'active' | 'pending'> {
    const taken = super.ensureListening(channel)
    this.#n += 1
    for (let turns = this.#n % 5; turns > 0; turns -= 1) await new Promise(resolve => setImmediate(resolve))
    return taken
  }
}

t.test('given workers that take, give back and vanish in any order', async t => {
  t.test('when it is quiet again, then the hub holds what they hold, and each wake finds them', async t => {
    const path = socketPath(t)
    const upstream = new SlowUpstream()
    const recorded = recordLog()
    const hub = new MasterHub({ path, listener: () => upstream, ...recorded })
    await hub.start()
    t.teardown(() => hub.close())

    const run = async (sequence: Step[]) => {
      const workers = await Promise.all(
        Array.from({ length: clients }, () => HubClient.connect({ path, ackTimeout: 5_000, ...recorded })),
      )
      const held = workers.map(() => new Map<string, number>())
      const heard = workers.map(() => new Set<string>())
      for (const [n, worker] of workers.entries()) {
        worker.onWake((channel, payload) => void (payload === 'quiet' && heard[n]!.add(channel)))
      }
      try {
        const answers: Promise<unknown>[] = []
        for (const step of sequence) {
          if (step.do === 'turn') {
            for (let n = 0; n < step.times; n += 1) await new Promise(resolve => setImmediate(resolve))
          } else if (step.do === 'close') {
            held[step.client]!.clear()
            answers.push(workers[step.client]!.close())
          } else {
            const mine = held[step.client]!
            const count = mine.get(step.channel) ?? 0
            if (step.do === 'take') {
              const answer = workers[step.client]!.ensureListening(step.channel)
              answers.push(answer)
              // A closed worker takes nothing.
              if (workers[step.client]!.healthy) mine.set(step.channel, count + 1)
            } else if (count > 0) {
              if (count === 1) mine.delete(step.channel)
              else mine.set(step.channel, count - 1)
              workers[step.client]!.release(step.channel)
            }
          }
        }
        await Promise.all(answers)
        const expected = channels
          .map(channel => [channel, held.filter(mine => mine.has(channel)).length] as const)
          .filter(([, count]) => count > 0)
        await waitFor(() => JSON.stringify([...upstream.references].sort()) === JSON.stringify(expected), {
          timeout: 2_000,
          interval: 1,
          message: `${JSON.stringify(expected)}`,
        })
        for (const channel of channels) upstream.notify(channel, 'quiet')
        await waitFor(
          () => held.every((mine, n) => [...mine.keys()].every(channel => heard[n]!.has(channel))),
          { timeout: 2_000, interval: 1, message: 'a wake for each channel that is held' },
        )
      } finally {
        await Promise.all(workers.map(worker => worker.close()))
        await waitFor(() => upstream.references.size === 0, { timeout: 2_000, interval: 1 })
      }
      if (hub.stats().channels !== 0) throw new Error('an entry was left')
    }
    await fc.assert(fc.asyncProperty(steps, run), { numRuns: 150 })
  })
})
