import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { drained, setup } from './support.ts'

t.test('given jobs with a group', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false } })

  t.test(
    'when many workers run them, then each group runs one at a time and in order, over retries',
    async t => {
      const order = new Map<string, number[]>()
      const running = new Set<string>()
      let most = 0
      defineJob<{ group: string; n: number }>(
        { name: 'grouped', retry: () => 0 },
        async ({ group, n }, ctx) => {
          t.notOk(running.has(group), `one of ${group} at a time`)
          running.add(group)
          most = Math.max(most, running.size)
          await new Promise(resolve => setImmediate(resolve))
          running.delete(group)
          // Each third fails once: what follows it waits.
          if (n % 3 === 0 && ctx.job.attempt === 1) throw new Error('once')
          order.set(group, [...(order.get(group) ?? []), n])
        },
      )
      const groups = ['a', 'b', 'a group with spaces, ünïcode and "quotes"']
      const jobs = Array.from({ length: 8 }, (_, n) => groups.map(group => ({ group, n }))).flat()
      await bench.pgbus.enqueueMany(jobs.map(args => ({ job: 'grouped', args, group: args.group })))
      for (let n = 0; n < 3; n += 1)
        await bench.work({ concurrency: 4, groupMode: n === 0 ? 'roundRobin' : 'fifo' })
      await drained(bench)
      for (const group of groups) t.same(order.get(group), [0, 1, 2, 3, 4, 5, 6, 7])
      t.ok(most >= 1)
    },
  )

  t.test('when one is enqueued, then the header that other clients know says so', async t => {
    await bench.pgbus.queues.ensure('other')
    const own = { queue: 'other', group: 'a', headers: { trace: 'x' } }
    await bench.pgbus.enqueue('somebody-elses', null, own)
    t.same((await bench.rows('pgbus_other'))[0]?.headers, { trace: 'x', 'x-pgmq-group': 'a' })
  })

  t.test('when the group makes no sense, then nothing is sent', async t => {
    for (const group of ['', 'x'.repeat(256), 'a\0b', 7 as never])
      await t.rejects(bench.pgbus.enqueue('grouped', null, { group }), TypeError)
    await t.rejects(
      bench.pgbus.enqueue('grouped', null, { group: 'a', headers: { 'x-pgmq-group': 'b' } }),
      /give group or the header "x-pgmq-group", not both/,
    )
  })
})
