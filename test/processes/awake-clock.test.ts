import t from 'tap'
import { AwakeClock } from '../../lib/processes/awake-clock.ts'

function setup() {
  const real = { now: 5_000 }
  const clock = new AwakeClock({ maxStep: 100, now: () => real.now })
  return { real, clock }
}

t.test('given a process that is awake, when time passes, then the clock goes as fast', async t => {
  const { real, clock } = setup()
  t.equal(clock.now(), 0)
  for (let n = 1; n <= 5; n += 1) {
    real.now += 60
    t.equal(clock.now(), 60 * n)
    t.equal(clock.tick(), 0)
    t.equal(clock.now(), 60 * n)
  }
})

t.test('given a process that stood still, when it goes on, then the gap counts as one step', async t => {
  const { real, clock } = setup()
  real.now += 10_000
  t.equal(clock.now(), 100)
  t.equal(clock.tick(), 9_900)
  t.equal(clock.now(), 100)
  real.now += 30
  t.equal(clock.now(), 130)
})
