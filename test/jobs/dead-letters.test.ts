import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

t.test('given jobs that were given up', async t => {
  const bench = await setup(t, { maxRetries: 1, circuitBreaker: { enabled: false } })
  const { deadLetters } = bench.pgbus
  let broken = true
  const done: number[] = []
  defineJob<number>({ name: 'dies' }, n => {
    if (broken) throw new TypeError(`bad ${n}`)
    done.push(n)
  })
  const bury = async (numbers: number[], queue = 'default') => {
    broken = true
    const worker = await bench.work({ queues: [queue] })
    await bench.pgbus.enqueueMany(numbers.map(args => ({ job: 'dies', args, queue, group: 'g' })))
    await drained(bench, `pgbus_${queue}`)
    await worker.stop()
    broken = false
  }

  t.test('when they are listed, then newest first and by pages, with their story', async t => {
    await bury([1])
    await bury([2])
    await bury([3], 'mail')
    const { total, deadLetters: all } = await deadLetters.list()
    t.equal(total, 3)
    t.match(all, [
      {
        queue: 'mail',
        job: 'dies',
        attempts: 1,
        errorClass: 'TypeError',
        errorMessage: 'bad 3',
        reason: null,
      },
      { queue: 'default', msgId: 2, errorMessage: 'bad 2' },
      { queue: 'default', msgId: 1, errorMessage: 'bad 1' },
    ])
    t.match(await deadLetters.list({ page: 2, perPage: 2 }), { total: 3, deadLetters: [{ msgId: 1 }] })
    t.match(await deadLetters.list({ queue: 'mail' }), { total: 1, deadLetters: [{ queue: 'mail' }] })
    await t.rejects(deadLetters.list({ perPage: 0 }), TypeError)
    await t.rejects(
      deadLetters.list({ queue: 'post' }),
      /no dead letters; queues that have had some: default, mail/,
    )
  })

  t.test('when an id is in several queues, then the queue must be named', async t => {
    await t.rejects(deadLetters.get(1), /several queues have a dead letter 1: default, mail; name the queue/)
    const own = await deadLetters.get(1, { queue: 'mail' })
    t.match(own, { message: { job_class: 'dies', arguments: [3] }, headers: { pgbus_dead_letter: {} } })
    await t.rejects(deadLetters.get(77), /there is no dead letter 77/)
    await t.rejects(deadLetters.get(0), TypeError)
  })

  t.test('when one is retried, then it is a new job of the queue that it came from', async t => {
    await deadLetters.retry(1, { queue: 'mail' })
    const [row] = await bench.rows('pgbus_mail')
    t.match(row, { read_ct: 0, hidden: false, message: { arguments: [3] } })
    t.same(row?.headers, { 'x-pgmq-group': 'g' }, 'its own headers stay, its story goes')
    const worker = await bench.work({ queues: ['mail'] })
    await drained(bench, 'pgbus_mail')
    t.same(done, [3])
    await worker.stop()
    await t.rejects(deadLetters.retry(1, { queue: 'mail' }), /there is no dead letter 1/)
  })

  t.test('when all are retried, then those that were there are, and nothing is lost', async t => {
    await bury(Array.from({ length: 600 }, (_, n) => 100 + n))
    t.equal(await deadLetters.retryAll(), 602)
    t.equal((await bench.rows()).length, 602)
    t.equal((await deadLetters.list()).total, 0)
    await bench.work({ concurrency: 50 })
    await drained(bench)
    await waitFor(() => done.length === 603)
  })

  t.test('when the story names a table of somebody else, then that is not believed', async t => {
    await bury([5])
    await bench.db.query('CREATE TABLE pgmq.q_victim (LIKE pgmq.q_pgbus_default INCLUDING ALL)')
    await bench.db.query(
      `UPDATE pgmq.q_pgbus_default_dlq SET headers = '{"pgbus_dead_letter":{"queue":"victim"}}'`,
    )
    t.match(await deadLetters.retryAll(), 1)
    await waitFor(() => done.at(-1) === 5)
    t.same(await bench.db.query('SELECT 1 FROM pgmq.q_victim'), [])
  })

  t.test('when they are discarded, then they are gone', async t => {
    await bury([8, 9])
    const [newest] = (await deadLetters.list()).deadLetters
    await deadLetters.discard(newest!.msgId)
    t.equal((await deadLetters.list()).total, 1)
    t.equal(await deadLetters.discardAll({ queue: 'default' }), 1)
    t.equal((await deadLetters.list()).total, 0)
    await t.rejects(deadLetters.discard(newest!.msgId), /there is no dead letter/)
  })
})
