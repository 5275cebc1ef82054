import t from 'tap'
import type { Pass } from '../../lib/outbox/outbox.ts'
import { Poller } from '../../lib/outbox/poller.ts'
import { quiet } from '../support/quiet-log.ts'
import { waitFor } from '../support/wait-for.ts'

const nothing: Pass = { published: 0, failed: 0, more: false, nextDueMs: null, failures: [] }

function setup(t: { teardown(fn: () => unknown): unknown }, passes: (Pass | Error)[], interval = 3_600_000) {
  const asked: number[] = []
  const reports: string[] = []
  const poller = new Poller({
    outbox: {
      pass: async most => {
        asked.push(most)
        const next = passes.shift() ?? nothing
        if (next instanceof Error) throw next
        return next
      },
    },
    interval,
    batchSize: 10,
    log: quiet,
    report: (error, { action }) => void reports.push(`${action}: ${(error as Error).message}`),
  })
  t.teardown(() => poller.stop())
  poller.start()
  return { poller, asked, reports }
}

t.test('given a poller of the outbox', async t => {
  t.test('when full batches come, then it goes on at once, and looks again after the last', async t => {
    const full = { ...nothing, published: 10, more: true }
    const { poller, asked } = setup(t, [full, full, { ...nothing, published: 3 }])
    await waitFor(() => asked.length === 4)
    t.equal(poller.published, 23)
    t.same(asked, [10, 10, 10, 10])
  })

  t.test('when it is woken, then it looks, and once more a moment later', async t => {
    const { poller, asked } = setup(t, [])
    await waitFor(() => asked.length === 1)
    poller.wake()
    await waitFor(() => asked.length === 3)
  })

  t.test('when an entry that failed is due, then it looks then', async t => {
    const { asked } = setup(t, [{ ...nothing, nextDueMs: 5 }])
    await waitFor(() => asked.length === 2)
  })

  t.test('when a look fails, then that is reported once, and it goes on', async t => {
    const { asked, reports, poller } = setup(
      t,
      [new Error('away'), new Error('away'), { ...nothing, published: 1, more: true }],
      5,
    )
    await waitFor(() => poller.published === 1 && asked.length > 3)
    t.same(reports, ['outbox_poll: away'])
    t.same(asked.slice(0, 4), [10, 5, 2, 4], 'fewer after a failure, then more again')
  })

  t.test('when entries fail, then each is reported at its first failure', async t => {
    const failures = [
      { id: 1, destination: 'a', attempts: 1, error: 'no' },
      { id: 2, destination: 'b', attempts: 2, error: 'no' },
    ]
    const { reports } = setup(t, [{ ...nothing, failed: 2, failures }])
    await waitFor(() => reports.length > 0)
    t.same(reports, ['outbox_publish: outbox entry 1 for "a" was not published: no'])
  })

  t.test('when it is stopped, then it has ended', async t => {
    const { poller, asked } = setup(t, [])
    await waitFor(() => asked.length === 1)
    await poller.stop()
    poller.wake()
    t.equal(asked.length, 1)
  })
})
