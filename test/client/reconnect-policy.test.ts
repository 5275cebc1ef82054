import t from 'tap'
import { isTransient, parseRetryAfter, ReconnectPolicy } from '../../lib/client/reconnect-policy.ts'

const latest = () => new ReconnectPolicy(() => 1)
const earliest = () => new ReconnectPolicy(() => 0)
const take = (policy: ReconnectPolicy, count: number) => Array.from({ length: count }, () => policy.next())

t.test('given failures one after the other', async t => {
  t.test(
    'when nothing was agreed, then delays double from 2 s to 30 s, of which at least half is waited',
    async t => {
      t.strictSame(take(latest(), 6), [2_000, 4_000, 8_000, 16_000, 30_000, 30_000])
      t.strictSame(take(earliest(), 6), [1_000, 2_000, 4_000, 8_000, 15_000, 15_000])
    },
  )
  t.test('when there are thousands, then the delay is still 30 s', async t => {
    t.equal(take(latest(), 5_000).at(-1), 30_000)
  })
  t.test('when the server named a retry, then it is the first step', async t => {
    const policy = latest()
    policy.setRetry(500)
    t.strictSame(take(policy, 3), [500, 1_000, 2_000])
  })
  t.test('when the server named an absurd retry, then it is kept between 100 ms and 30 s', async t => {
    const policy = latest()
    policy.setRetry(0)
    t.equal(policy.next(), 100)
    const patient = latest()
    patient.setRetry(Number.POSITIVE_INFINITY)
    t.equal(patient.next(), 30_000)
  })
  t.test('when a connection held ten seconds, then the next delay is the first again', async t => {
    const policy = latest()
    take(policy, 4)
    policy.connectedFor(9_999)
    t.equal(policy.next(), 30_000)
    policy.connectedFor(10_000)
    t.equal(policy.next(), 2_000)
  })
})

t.test('given a Retry-After', async t => {
  t.test(
    'when it is longer than the step, then it is a lower bound that clients do not all hit at once',
    async t => {
      t.equal(earliest().next(20_000), 20_000)
      t.equal(latest().next(20_000), 30_000)
    },
  )
  t.test('when it is shorter than the step, then the step counts', async t => {
    t.equal(latest().next(1_000), 2_000)
  })
  t.test('when it is longer than a timer can be, then the timer does not fire at once', async t => {
    t.equal(latest().next(1e15), 2 ** 31 - 1)
  })
  t.test('when it is read, then both forms are understood', async t => {
    const now = Date.parse('2030-01-01T00:00:00Z')
    t.equal(parseRetryAfter('2', now), 2_000)
    t.equal(parseRetryAfter(' 0 ', now), 0)
    t.equal(parseRetryAfter('Tue, 01 Jan 2030 00:00:05 GMT', now), 5_000)
    t.equal(parseRetryAfter('Mon, 31 Dec 2029 00:00:00 GMT', now), 0)
    t.equal(parseRetryAfter('soon', now), null)
    t.equal(parseRetryAfter(null, now), null)
    t.equal(parseRetryAfter('9'.repeat(400), now), 2 ** 31 - 1)
  })
})

t.test('given a shutdown of the server', async t => {
  t.test('when its clients come back, then they spread over its retry and start counting anew', async t => {
    const policy = new ReconnectPolicy(() => 0.25)
    take(policy, 4)
    policy.setRetry(4_000)
    t.equal(policy.afterShutdown(), 1_000)
    t.equal(policy.next(), 4_000 * (0.5 + 0.125))
  })
})

t.test('given a status that is not 200', async t => {
  t.test('when it can pass, then it is worth a retry; any other is final', async t => {
    for (const status of [408, 425, 429, 500, 502, 503, 504, 599])
      t.equal(isTransient(status), true, `${status}`)
    for (const status of [204, 304, 400, 401, 403, 404, 405, 410, 422, 600])
      t.equal(isTransient(status), false, `${status}`)
  })
})
