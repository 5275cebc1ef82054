import t from 'tap'
import { RestartPolicy } from '../../lib/processes/restart-policy.ts'

t.test('given a process that ends early again and again', async t => {
  t.test('when each end is counted, then the delays double from 1 s to 60 s', async t => {
    const policy = new RestartPolicy()
    const delays = Array.from({ length: 9 }, () => policy.exited(100, false))
    t.strictSame(delays, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000])
    t.equal(policy.streak, 9)
  })

  t.test('when it crashes for weeks, then the delay stays the longest one', async t => {
    const policy = new RestartPolicy()
    let last = 0
    for (let n = 0; n < 5_000; n += 1) last = policy.exited(0, false)
    t.equal(last, 60_000)
  })

  t.test('when it then runs for 30 s, then the next one comes at once and the streak is over', async t => {
    const policy = new RestartPolicy()
    policy.exited(100, false)
    policy.exited(100, false)
    t.equal(policy.exited(30_000, false), 0)
    t.equal(policy.streak, 0)
    t.equal(policy.exited(29_999, false), 1_000)
  })

  t.test('when an end was wanted, then it costs nothing', async t => {
    const policy = new RestartPolicy()
    policy.exited(100, false)
    t.equal(policy.exited(100, true), 0)
    t.equal(policy.exited(100, false), 1_000)
  })
})

t.test('given two slots with the same configuration', async t => {
  t.test('when one is stable, then the streak of the other goes on', async t => {
    const [one, other] = [new RestartPolicy(), new RestartPolicy()]
    other.exited(10, false)
    one.exited(40_000, false)
    t.equal(other.exited(10, false), 2_000)
  })
})
