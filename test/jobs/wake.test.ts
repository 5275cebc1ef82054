import t from 'tap'
import { Wake, waitAfterClaim } from '../../lib/jobs/wake.ts'

const rule = { delivering: true, pollingInterval: 100, emptyLooks: 0, dueInMs: null, random: () => 0 }

t.test('given notifications that arrive', async t => {
  t.test(
    'when nothing is found after a wake, then it looks three times more, then at the ceiling',
    async t => {
      const waits = [0, 1, 2, 3, 4].map(emptyLooks => waitAfterClaim({ ...rule, emptyLooks }))
      t.same(waits, [100, 250, 500, 15_000, 15_000])
    },
  )

  t.test('when the polling interval is long, then the first look is not', async t => {
    t.equal(waitAfterClaim({ ...rule, pollingInterval: 5_000 }), 250)
  })

  t.test('when a message comes due, then the wait ends 5 to 25 ms later', async t => {
    t.equal(waitAfterClaim({ ...rule, emptyLooks: 9, dueInMs: 2_000 }), 2_005)
    t.equal(waitAfterClaim({ ...rule, emptyLooks: 9, dueInMs: 2_000, random: () => 1 }), 2_025)
    t.equal(waitAfterClaim({ ...rule, emptyLooks: 9, dueInMs: 0 }), 5)
    t.equal(waitAfterClaim({ ...rule, emptyLooks: 9, dueInMs: 60_000 }), 15_000)
    t.equal(waitAfterClaim({ ...rule, emptyLooks: 2, dueInMs: 60_000 }), 500)
  })
})

t.test('given notifications that do not arrive', async t => {
  t.test(
    'when nothing is found, then it polls, spread by ten percent, and sooner for what comes due',
    async t => {
      const degraded = { ...rule, delivering: false, emptyLooks: 9 }
      t.equal(waitAfterClaim(degraded), 90)
      t.equal(Math.round(waitAfterClaim({ ...degraded, random: () => 1 })), 110)
      t.equal(waitAfterClaim({ ...degraded, dueInMs: 20 }), 25)
    },
  )
})

t.test('given a wake flag', async t => {
  t.test('when it was set before the wait, then the wait is none', async () => {
    const wake = new Wake()
    wake.set()
    wake.set()
    await wake.wait(60_000)
    await wake.wait(60_000)
  })

  t.test('when it is set during the wait, then the wait ends and leaves no timer', async () => {
    const wake = new Wake()
    const waiting = wake.wait(60_000)
    wake.set()
    await waiting
  })

  t.test('when it was cleared, then the time passes', async t => {
    const wake = new Wake()
    wake.set()
    wake.clear()
    const started = performance.now()
    await wake.wait(30)
    t.ok(performance.now() - started >= 28)
  })
})
