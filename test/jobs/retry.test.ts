import t from 'tap'
import type { Report } from '../../lib/core/report.ts'
import { backoffDelay, nextStep } from '../../lib/jobs/retry.ts'

const retry = { base: 5_000, max: 300_000, jitter: 0.15 }
const middle = () => 0.5

t.test('given the default backoff', async t => {
  for (const [attempt, delay] of [
    [1, 5_000],
    [2, 10_000],
    [3, 20_000],
    [4, 40_000],
    [7, 300_000],
    [5_000, 300_000],
  ] as const) {
    t.test(`when attempt ${attempt} failed, then the next comes after ${delay} ms`, async t => {
      t.equal(backoffDelay(retry, attempt, middle), delay)
    })
  }

  t.test('when chance is at its ends, then the delay is 15 % off and never above the maximum', async t => {
    t.equal(
      backoffDelay(retry, 1, () => 0),
      4_250,
    )
    t.equal(
      backoffDelay(retry, 1, () => 1),
      5_750,
    )
    t.equal(
      backoffDelay(retry, 20, () => 1),
      300_000,
    )
  })

  t.test(
    'when the base is tiny, then a second passes all the same, unless the maximum is shorter',
    async t => {
      t.equal(backoffDelay({ base: 1, max: 300_000, jitter: 0 }, 1), 1_000)
      t.equal(backoffDelay({ base: 1, max: 200, jitter: 0 }, 1), 200)
    },
  )
})

t.test('given a policy of the job', async t => {
  const reports: unknown[] = []
  const report: Report = error => reports.push(error)
  const step = (policy: unknown, attempt = 2, error = new Error('failed')) =>
    nextStep({
      task: { noun: 'job', name: 'job', retry: policy as () => unknown },
      retry,
      attempt,
      error,
      report,
      random: middle,
    })

  t.test('when it has parts, then they replace those of the configuration', async t => {
    t.same(step({ base: 1_000 }), { delayMs: 2_000 })
    t.same(step({ max: 7_000 }), { delayMs: 7_000 })
    t.same(step({}), { delayMs: 10_000 })
    t.same(step({ base: 3_600_000, jitter: 0 }), { delayMs: 3_600_000 }, 'above the common ceiling')
  })

  t.test('when it is a function, then its answer counts as it is', async t => {
    t.same(
      step(() => '250ms'),
      { delayMs: 250 },
    )
    t.same(
      step(() => 0),
      { delayMs: 0 },
    )
    t.equal(
      step(() => 'discard'),
      'discard',
    )
    t.equal(
      step(() => 'dead'),
      'dead',
    )
    t.same(
      step((attempt: number, error: Error) => attempt * error.message.length),
      { delayMs: 12 },
    )
    t.same(reports, [])
  })

  for (const [name, policy] of [
    [
      'throws',
      () => {
        throw new Error('bad policy')
      },
    ],
    ['returns nothing', () => undefined],
    ['returns a promise', async () => '1s'],
    ['returns a negative number', () => -1],
    ['returns for ever', () => `${'9'.repeat(400)}w`],
    ['returns more than a hundred years', () => '6000w'],
    ['returns an unknown word', () => 'later'],
  ] as const) {
    t.test(`when a function ${name}, then it is reported and the formula is used`, async t => {
      reports.length = 0
      t.same(step(policy), { delayMs: 10_000 })
      t.equal(reports.length, 1)
    })
  }
})
