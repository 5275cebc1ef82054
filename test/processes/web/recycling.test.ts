import t from 'tap'
import type { Logger } from '../../../lib/core/log.ts'
import type { WebWorkerStats } from '../../../lib/processes/messages.ts'
import { Recycling, whyRecycle } from '../../../lib/processes/web/recycling.ts'

const none = { maxMemoryMb: null, maxLifetime: null, maxRequests: null }

t.test('given limits, when a worker has passed one, then the reason names it', async t => {
  const fresh = { rss: 100 * 2 ** 20, requests: 10 }
  t.equal(whyRecycle(fresh, 1_000, none, 1), undefined)
  t.equal(whyRecycle(fresh, 1_000, { ...none, maxMemoryMb: 100, maxRequests: 10 }, 1), undefined)
  t.equal(whyRecycle(fresh, 1_000, { ...none, maxMemoryMb: 99 }, 1), 'max_memory: 100 MiB used')
  t.equal(whyRecycle(fresh, 1_000, { ...none, maxRequests: 9 }, 1), 'max_requests: 10 requests')
  t.equal(whyRecycle(fresh, 9_500, { ...none, maxLifetime: 10_000 }, 0.9), 'max_lifetime: 10 s old')
  t.equal(whyRecycle(fresh, 10_500, { ...none, maxLifetime: 10_000 }, 1.1), undefined)
})

function setup() {
  const clock = { now: 0 }
  const lines: string[] = []
  const log = {
    info: (_: unknown, line: string) => lines.push(line),
    warn: (_: unknown, line: string) => lines.push(line),
  } as unknown as Logger
  const replaced: number[] = []
  let failure: Error | undefined
  const recycling = new Recycling<{ index: number }, { pid: number; uptimeMs: number }>({
    log,
    now: () => clock.now,
    random: () => 0.5,
    replace: async (_slot, { pid }) => {
      if (failure) throw failure
      replaced.push(pid)
    },
  })
  const slot = { index: 2 }
  const checkIn = (worker: { pid: number; uptimeMs: number }, requests: number) =>
    recycling.checkedIn(slot, worker, { rss: 0, requests } as WebWorkerStats, { ...none, maxRequests: 5 })
  const fail = (error: Error | undefined) => {
    failure = error
  }
  return { clock, lines, replaced, checkIn, fail }
}

t.test('given a worker that has done enough, when it checks in again, then it is replaced once', async t => {
  const { lines, replaced, checkIn } = setup()
  const worker = { pid: 7, uptimeMs: 1 }
  await checkIn(worker, 5)
  t.same(replaced, [])
  await Promise.all([checkIn(worker, 6), checkIn(worker, 7)])
  t.same(replaced, [7])
  t.same(lines, ['worker 2 (pid 7) has done enough: max_requests: 6 requests'])
})

t.test('given a limit that a fresh worker passes', async t => {
  const { clock, lines, replaced, checkIn } = setup()
  await checkIn({ pid: 1, uptimeMs: 1 }, 6)
  const second = { pid: 2, uptimeMs: 1 }

  t.test('when it passes it within a minute, then it stays, and that is said once', async t => {
    clock.now = 59_999
    await checkIn(second, 6)
    await checkIn(second, 7)
    t.same(replaced, [1])
    t.match(lines.slice(1), [/^worker 2 recycles too often: once a minute is the most; max_requests: 6/])
    t.equal(lines.length, 2)
  })

  t.test('when the minute is over, then it is replaced', async t => {
    clock.now = 60_000
    await checkIn(second, 8)
    t.same(replaced, [1, 2])
  })
})

t.test(
  'given a replacement that does not become ready, then the old one stays for a minute more',
  async t => {
    const { clock, lines, replaced, checkIn, fail } = setup()
    const worker = { pid: 1, uptimeMs: 1 }
    fail(new Error('no settings'))
    await checkIn(worker, 6)
    t.equal(lines.at(-1), 'worker 2 (pid 1) goes on: no settings')
    fail(undefined)
    await checkIn(worker, 7)
    t.same(replaced, [])
    clock.now = 60_000
    await checkIn(worker, 8)
    t.same(replaced, [1])
  },
)
