import t from 'tap'
import type { PgbusConfig, WorkerEntry } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { resolveWorker } from '../../lib/config/workers.ts'
import type { Logger } from '../../lib/core/log.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { QueueList } from '../../lib/jobs/queue-list.ts'
import { workerTables } from '../../lib/pgmq/names.ts'
import { waitFor } from '../support/wait-for.ts'
import { setup } from './support.ts'

const setupList = (entry: WorkerEntry, options: PgbusConfig = {}) => {
  const lines: unknown[] = []
  const log: Logger = {
    debug: () => undefined,
    info: fields => void lines.push(fields),
    warn: () => undefined,
    error: () => undefined,
    child: () => log,
  }
  const told: string[][] = []
  const config = resolveConfig({ databaseUrl: 'postgres://localhost/x', ...options }, {})
  const list = new QueueList({
    config,
    entry: resolveWorker(entry, config, []),
    work: { tablesOf: queue => workerTables(config, [queue]), isForPatterns: () => true },
    log,
    onTables: tables => told.push(tables),
  })
  return { list, told, lines }
}

t.test('given a worker that reads by pattern', async t => {
  t.test('when queues are found, then those that match, after those that are named', async t => {
    const { list, told, lines } = setupList({ queues: ['mail_urgent', 'mail_*', 'sms'] })
    t.same(list.tables, ['pgbus_mail_urgent', 'pgbus_sms'])
    const tables = [
      'pgbus_mail_in',
      'pgbus_mail_urgent',
      'pgbus_post',
      'other_mail_in',
      'mail_in',
      'pgbus_Mail-9',
    ]
    list.resolve(tables)
    t.same(list.tables, ['pgbus_mail_urgent', 'pgbus_sms', 'pgbus_mail_in'])
    list.resolve(tables)
    t.same(told, [['pgbus_mail_urgent', 'pgbus_sms', 'pgbus_mail_in']], 'a change is told once')
    t.match(lines, [{ from: ['mail_urgent', 'sms'], to: ['mail_urgent', 'sms', 'mail_in'] }])
    list.resolve([])
    t.same(list.names, ['mail_urgent', 'sms'])
  })

  t.test(
    'when there are priorities, then each queue with all its levels, and no level of a level',
    async t => {
      const { list } = setupList({ queues: ['*'] }, { priority: { levels: 3 } })
      list.resolve(['pgbus_a_p2', 'pgbus_a_p0', 'pgbus_a_p1', 'pgbus_b_p0', 'pgbus_plain'])
      t.same(list.names, ['a', 'b'])
      t.same(list.tables, ['pgbus_a_p0', 'pgbus_a_p1', 'pgbus_a_p2', 'pgbus_b_p0'])
    },
  )

  t.test('when * finds nothing, then the default queue is read; another pattern reads nothing', async t => {
    const all = setupList({ queues: ['*'] })
    all.list.resolve([])
    t.same(all.list.names, ['default'])
    const some = setupList({ queues: ['mail_*'] })
    some.list.resolve(['pgbus_sms'])
    t.same(some.list.names, [])
  })

  t.test('when one queue is always busy, then the others have their turn before it', async t => {
    const { list } = setupList({ queues: ['first', '*'] })
    list.resolve(['pgbus_a', 'pgbus_b', 'pgbus_z'])
    const order = () => list.next(5, () => true).names
    t.same(order(), ['first', 'a', 'b', 'z'])
    list.served('pgbus_a', null)
    t.same(order(), ['first', 'b', 'z', 'a'], 'what is named keeps its place')
    list.served('pgbus_first', null)
    list.served('pgbus_z', null)
    t.same(order(), ['first', 'b', 'a', 'z'])
  })
})

t.test('given queues that take turns', async t => {
  const { list } = setupList({ queues: ['a', 'b', 'c'], order: 'fair' })
  t.match(
    list.next(10, () => true),
    { names: ['a', 'b', 'c'], share: 4 },
  )
  list.served('pgbus_a', null)
  t.match(
    list.next(10, name => name !== 'b'),
    { names: ['c', 'a'], share: 5 },
  )
  t.equal(list.next(1, () => true).share, 1)
})

t.test('given groups', async t => {
  const { list } = setupList({ queues: ['a', 'b'], groupMode: 'roundRobin' })
  list.served('pgbus_b', '42')
  t.match(
    list.next(1, () => true),
    { tables: ['pgbus_a', 'pgbus_b'], cursors: [null, '42'] },
  )
})

t.test('given a database with queues of every kind', async t => {
  const bench = await setup(t, { circuitBreaker: { enabled: false }, maxRetries: 1 })
  const { pgbus, db } = bench
  const ran: string[] = []
  defineJob<string>({ name: 'noted' }, name => {
    ran.push(name)
    if (name.startsWith('bad')) throw new Error('buried')
  })
  await pgbus.enqueue('noted', 'bad', { queue: 'mail_in' })
  // Fed by a routing pattern: it belongs to handlers of events.
  await pgbus.queues.ensure('events')
  await db.query("SELECT pgmq.bind_topic('orders.*', 'pgbus_events')")
  await db.query(`SELECT pgmq.send('pgbus_events', '{"event_id": "1"}')`)
  await db.query("SELECT pgmq.create('staging_mail')")
  await db.query(`SELECT pgmq.send('staging_mail', '{"job_class": "noted", "arguments": ["staging"]}')`)

  t.test(
    'when a worker reads *, then it takes jobs, and neither events, dead letters nor other prefixes',
    async t => {
      const worker = await bench.work({ queues: ['*'], concurrency: 3 })
      await waitFor(() => ran.includes('bad'))
      await waitFor(async () => (await pgbus.deadLetters.list()).total === 1)
      await pgbus.enqueue('noted', 'new', { queue: 'mail_new' })
      worker.refresh()
      await waitFor(() => ran.includes('new'))
      await pgbus.enqueue('noted', 'last', { queue: 'mail_in' })
      await waitFor(() => ran.includes('last'))
      t.same(ran, ['bad', 'new', 'last'])
      t.same([...worker.stats().queues].sort(), ['mail_in', 'mail_new'])
      t.equal((await bench.rows('pgbus_events')).length, 1)
      t.equal((await bench.rows('staging_mail')).length, 1)
    },
  )
})

t.test('given two workers of limited appetite', async t => {
  const bench = await setup(t)
  let running = 0
  let most = 0
  let done = 0
  defineJob({ name: 'counts' }, async () => {
    running += 1
    most = Math.max(most, running)
    await new Promise(resolve => setImmediate(resolve))
    running -= 1
    done += 1
  })
  t.test('when prefetchLimit is lower than the concurrency, then no more are taken', async t => {
    await bench.pgbus.enqueueMany(Array.from({ length: 30 }, () => ({ job: 'counts', args: null })))
    await bench.work({ concurrency: 10, prefetchLimit: 2 })
    await waitFor(() => done === 30)
    t.ok(most <= 2, `${most} at once`)
  })
})
