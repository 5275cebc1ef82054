import t from 'tap'
import type { Logger } from '../../../lib/core/log.ts'
import { WorkerWatch } from '../../../lib/processes/web/worker-watch.ts'

function setup() {
  const real = { now: 0 }
  const lines: string[] = []
  const log = { warn: (line: string) => lines.push(line) } as unknown as Logger
  const timeout = 10_000
  const killed: number[] = []
  const watch = new WorkerWatch({
    // A worker that never says anything after the start.
    workers: () => [
      {
        killIfSilent: () => {
          if (watch.clock.now() > timeout) killed.push(watch.clock.now())
        },
      },
    ],
    log,
    now: () => real.now,
  })
  const look = async (after: number) => {
    real.now += after
    watch.look()
    await new Promise(resolve => setImmediate(resolve))
  }
  return { look, lines, killed }
}

t.test('given a silent worker, when its time is over, then it is asked to go', async t => {
  const { look, lines, killed } = setup()
  for (let n = 0; n < 10; n += 1) await look(1_000)
  t.same(killed, [])
  await look(1_000)
  t.same(killed, [11_000])
  t.same(lines, [])
})

t.test(
  'given a host that slept longer than that, when it wakes, then workers get their time anew',
  async t => {
    const { look, lines, killed } = setup()
    await look(1_000)
    await look(3_600_000)
    t.same(lines, ['this process stood still for 3597.0 s; workers get their time anew'])
    for (let n = 0; n < 6; n += 1) await look(1_000)
    t.same(killed, [])
    await look(1_000)
    t.equal(killed.length, 1)
  },
)
