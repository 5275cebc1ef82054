import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { DiscardJob } from '../../lib/jobs/control.ts'
import { waitFor } from '../support/wait-for.ts'
import { handled, recorder, setup } from './support.ts'

t.test('given two handlers with queues of their own', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const exact = recorder<{ id: number }>()
  const pattern = recorder()
  const other = recorder()
  defineHandler<{ id: number }>({ name: 'Exact', on: 'orders.created' }, exact.handle)
  defineHandler({ name: 'Pattern', on: ['orders.*', 'orders.#'] }, pattern.handle)
  defineHandler({ name: 'Other', on: 'invoices.*' }, other.handle)
  await bench.consume()

  t.test('when one event matches both, then each handles it once, and sees key and headers', async t => {
    const before = Date.now()
    const { eventId, queues } = await pgbus.publish('orders.created', { id: 7 }, { headers: { tenant: 'a' } })
    t.equal(queues, 2)
    t.match(eventId, /^[0-9a-f]{8}-[0-9a-f]{4}-7/)
    await handled(bench, 'exact', 'pattern', 'other')
    t.equal(exact.events.length, 1)
    t.equal(pattern.events.length, 1)
    t.equal(other.events.length, 0)
    const [event] = exact.events
    t.match(event, {
      id: eventId,
      routingKey: 'orders.created',
      payload: { id: 7 },
      headers: { tenant: 'a' },
      readCount: 1,
    })
    t.ok(event!.publishedAt.getTime() >= before)
    t.match(exact.contexts[0], { handler: 'Exact', attempt: 1, maxAttempts: 5, stopping: false })
    t.equal(exact.contexts[0]!.pgbus, pgbus)
    t.equal(await bench.archived('pgbus_exact'), 1)
  })

  t.test('when it is published later, then it is handled then', async t => {
    exact.events.length = 0
    const sent = Date.now()
    await pgbus.publishLater('orders.created', { id: 8 }, { delay: 300 })
    await pgbus.publishLater('orders.created', { id: 9 }, { delay: new Date(sent + 300) })
    t.equal((await bench.rows('pgbus_exact')).filter(row => row.hidden).length, 2)
    await handled(bench, 'exact', 'pattern')
    t.same(exact.events.map(({ payload }) => payload.id).sort(), [8, 9])
  })

  t.test('when a payload is no object, then it arrives wrapped; types survive', async t => {
    pattern.events.length = 0
    await pgbus.publish('orders.a', [1, 2])
    await pgbus.publish('orders.b', { at: new Date(5), big: 5n })
    await handled(bench, 'pattern')
    t.strictSame(
      pattern.events.map(event => event.payload),
      [{ value: [1, 2] }, { at: new Date(5), big: 5n }],
    )
  })

  t.test('when the key stands in the headers, as other clients write it, then it is found', async t => {
    exact.events.length = 0
    for (const [message, headers] of [
      [{ event_id: 'x', payload: {} }, { routing_key: 'orders.created' }],
      [{ event_id: 'y', payload: {}, headers: { routing_key: 'orders.created' }, routing_key: 'no' }, null],
    ]) {
      await bench.db.query('SELECT pgmq.send($1::text, $2::jsonb, $3::jsonb)', [
        'pgbus_exact',
        JSON.stringify(message),
        headers && JSON.stringify(headers),
      ])
    }
    await waitFor(() => exact.events.length === 2)
    t.same(exact.events.map(({ id }) => id).sort(), ['x', 'y'])
    await handled(bench, 'exact')
  })
})

t.test('given handlers that fail', async t => {
  const bench = await setup(t, { retry: { base: '1s', jitter: 0 } })
  const { pgbus, lines } = bench
  const gate = deferred()
  const failing = recorder(async (_, { attempt }) => {
    if (attempt === 1) throw new TypeError('not yet')
    await gate.promise
  })
  defineHandler({ name: 'Fails::Once', on: 'fails.once', retry: () => 0 }, failing.handle)
  const doomed = recorder(() => {
    throw new Error('never')
  })
  defineHandler({ name: 'Fails::Always', on: 'fails.always', maxRetries: 2, retry: () => 0 }, doomed.handle)
  const slow = recorder(() => {
    throw new Error('later')
  })
  defineHandler({ name: 'BacksOff', on: 'fails.slowly' }, slow.handle)
  const picky = recorder(() => {
    throw new DiscardJob('of no interest')
  })
  defineHandler({ name: 'Picky', on: 'picky' }, picky.handle)
  const consumer = await bench.consume()

  t.test('when one fails at first, then it runs again, and its record goes when it succeeds', async t => {
    await pgbus.publish('fails.once', { secret: 'payload' })
    await waitFor(() => failing.events.length === 2)
    const [failure, ...more] = await bench.failures()
    t.match(failure, {
      queue_name: 'fails_once',
      error_class: 'TypeError',
      error_message: 'not yet',
      retry_count: 0,
    })
    t.same(more, [])
    gate.resolve()
    await handled(bench, 'fails_once')
    t.same(await bench.failures(), [])
    const report = lines.find(line => line.fields.action === 'process_message')
    t.match(report?.fields, { routing_key: 'fails.once', handler: 'Fails::Once', queue: 'pgbus_fails_once' })
    t.notMatch(JSON.stringify(lines), 'payload')
  })

  t.test('when one always fails, then its event is a dead letter after its attempts', async t => {
    const { processed } = consumer.stats()
    await pgbus.publish('fails.always', { n: 1 }, { headers: { tenant: 'a' } })
    await handled(bench, 'fails_always')
    t.equal(doomed.events.length, 2)
    await waitFor(() => consumer.stats().processed >= processed + 2, {
      message: 'failures count as work done',
    })
    const [dead] = await bench.rows('pgbus_fails_always_dlq')
    t.match((await pgbus.deadLetters.list()).deadLetters, [
      { queue: 'fails_always', job: null, routingKey: 'fails.always' },
    ])
    t.match(dead, {
      message: { routing_key: 'fails.always', payload: { n: 1 } },
      headers: {
        tenant: 'a',
        pgbus_dead_letter: { queue: 'pgbus_fails_always', read_ct: 2, error_message: 'never' },
      },
    })
    t.same(await bench.failures(), [])
    await pgbus.deadLetters.retryAll({ queue: 'fails_always' })
    await waitFor(() => doomed.events.length === 4, { message: 'two more attempts' })
    await handled(bench, 'fails_always')
  })

  t.test('when one fails, then it waits before the next attempt', async t => {
    await pgbus.publish('fails.slowly', {})
    await waitFor(async () => (await bench.failures()).length === 1)
    t.match(await bench.rows('pgbus_backs_off'), [{ hidden: true, read_ct: 1 }])
    t.equal(slow.events.length, 1)
  })

  t.test('when one does not want its event, then that is its end', async t => {
    await pgbus.publish('picky', {})
    await handled(bench, 'picky')
    t.equal(picky.events.length, 1)
    t.equal(await bench.archived('pgbus_picky'), 1)
  })

  t.test('when a message is no event, then it is a dead letter at once', async t => {
    for (const message of ['[1]', '"text"', '{"payload":{}}', '7', '{"event_id":""}']) {
      await bench.db.query("SELECT pgmq.send('pgbus_picky', $1::jsonb)", [message])
    }
    await handled(bench, 'picky')
    const dead = await bench.rows('pgbus_picky_dlq')
    t.equal(dead.length, 5)
    for (const { headers } of dead) {
      t.match(headers, { pgbus_dead_letter: { read_ct: 1, error_message: /^malformed event/ } })
    }
  })
})

t.test('given a handler of another release on the same queue', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench
  const known = recorder()
  defineHandler({ name: 'Released', on: 'release.old' }, known.handle)
  await bench.consume()
  await db.query("SELECT pgmq.bind_topic('release.new', 'pgbus_released')")

  t.test('when an event comes that only that one handles, then it is given back, not charged', async t => {
    await pgbus.publish('release.new', {})
    await waitFor(async () =>
      (await bench.rows('pgbus_released')).some(row => row.hidden && row.read_ct === 0),
    )
    t.equal(known.events.length, 0)
  })

  t.test('when nobody has handled it for ten minutes, then it is archived with a warning', async t => {
    await db.query("UPDATE pgmq.q_pgbus_released SET enqueued_at = now() - interval '11 minutes', vt = now()")
    await handled(bench, 'released')
    t.equal(await bench.archived('pgbus_released'), 1)
    t.ok(
      bench.lines.some(
        line => line.level === 'warn' && /"release\.new" matches no handler/.test(line.message),
      ),
    )
  })

  t.test('when it was to be delivered later than that, then the ten minutes begin there', async t => {
    await pgbus.publishLater('release.new', {}, { delay: '1h' })
    await db.query("UPDATE pgmq.q_pgbus_released SET enqueued_at = now() - interval '11 minutes', vt = now()")
    await waitFor(async () =>
      (await bench.rows('pgbus_released')).some(row => row.hidden && row.read_ct === 0),
    )
    t.equal(await bench.archived('pgbus_released'), 1, 'only the one before')
  })
})

t.test('given consumers of some topics', async t => {
  const bench = await setup(t)
  const { pgbus, lines } = bench
  const left = recorder()
  const right = recorder()
  defineHandler({ name: 'Left', on: 'left.*' }, left.handle)
  defineHandler({ name: 'Right', on: 'right.*' }, right.handle)

  t.test('when one has other topics, then it does not read the queue, and somebody is told', async t => {
    const consumer = await bench.consume({ topics: ['left.#'] })
    t.same(consumer.stats().queues, ['left'])
    t.ok(
      lines.some(
        line => line.level === 'warn' && line.message === 'no consumer reads handler "Right" (right.*)',
      ),
    )
    await pgbus.publish('right.a', {})
    await pgbus.publish('left.a', {})
    await handled(bench, 'left')
    t.equal(left.events.length, 1)
    t.equal((await bench.rows('pgbus_right')).length, 1, 'it waits')
  })

  t.test('when a worker reads every queue, then it leaves the events alone', async t => {
    const worker = await bench.work({ queues: ['*'] })
    await bench.pgbus.enqueue('unheard', {}, { queue: 'mail' })
    worker.refresh()
    await waitFor(async () => (await bench.failures()).some(row => row.queue_name === 'mail'))
    t.notOk(worker.stats().queues.includes('right'))
    await bench.db.query("DELETE FROM pgmq.topic_bindings WHERE queue_name = 'pgbus_right'")
    await bench.pgbus.enqueue('unheard', {}, { queue: 'more_mail' })
    worker.refresh()
    await waitFor(async () => (await bench.failures()).some(row => row.queue_name === 'more_mail'))
    t.notOk(worker.stats().queues.includes('right'), 'not even unbound')
    t.match(await bench.rows('pgbus_right'), [{ read_ct: 0 }])
  })

  t.test('when a worker names the queue, then neither starts', async t => {
    const wrong = await setup(t, { workers: [{ queues: ['mail', 'left'] }] })
    await t.rejects(async () => wrong.consume(), {
      code: 'PGBUS_ERR_CONFIG',
      message: /a job worker reads queue "left", which belongs to handler "Left"/,
    })
    await t.rejects(async () => wrong.work({ queues: ['left'] }), { code: 'PGBUS_ERR_CONFIG' })
  })

  t.test('when nothing is there for it, then it says so', async t => {
    const idle = await bench.consume({ topics: ['nothing.here'] })
    t.same(idle.stats().queues, [])
    t.ok(lines.some(line => /nothing to do/.test(line.message)))
  })
})

t.test('given a consumer of the application itself', async t => {
  const bench = await setup(t)
  const { pgbus } = bench
  const own = recorder()
  defineHandler({ name: 'Own', on: 'own' }, own.handle)
  const consumer = pgbus.consumer({ topics: ['own'], concurrency: 1 })
  await consumer.start()

  t.test('when an event is published, then it is woken, and it ends with the instance', async t => {
    await waitFor(() => consumer.stats().delivering)
    await pgbus.publish('own', {})
    await waitFor(() => own.events.length === 1)
    await handled(bench, 'own')
    await pgbus.close()
    t.equal(consumer.stats().state, 'stopped')
    t.throws(() => pgbus.consumer({ topics: ['own'] }), { code: 'PGBUS_ERR_CLOSED' })
  })

  t.test('when its entry is wrong, then it is told why', async t => {
    const other = (await setup(t)).pgbus
    for (const [entry, rule] of [
      [{ topics: [] }, /topics must be a non-empty array/],
      [{ topics: ['a..b'] }, /a topic pattern is/],
      [{ topics: ['a'], concurrency: 0 }, /concurrency must be a positive integer/],
      [{ topics: ['a'], queues: ['b'] }, /unknown key "queues"/],
      [undefined, /must be an object/],
    ] as const)
      t.throws(() => other.consumer(entry as never), { name: 'TypeError', message: rule })
  })
})

t.test('given events of a group', async t => {
  const bench = await setup(t, { groupMode: 'fifo' })
  const order: unknown[] = []
  let running = 0
  let most = 0
  let failures = 1
  defineHandler<{ n: number }>({ name: 'Ordered', on: 'ordered', retry: () => 0 }, async ({ payload }) => {
    running += 1
    most = Math.max(most, running)
    await new Promise(resolve => setImmediate(resolve))
    running -= 1
    if (payload.n === 1 && failures > 0) {
      failures -= 1
      throw new Error('not yet')
    }
    order.push(payload.n)
  })

  t.test('when one of them fails, then the others wait for it', async t => {
    await bench.pgbus.events.setup()
    await bench.pgbus.publishMany(
      [0, 1, 2, 3, 4].map(n => ({ routingKey: 'ordered', payload: { n }, group: 'g' })),
    )
    await bench.consume({ topics: ['ordered'], concurrency: 5 })
    await handled(bench, 'ordered')
    t.same(order, [0, 1, 2, 3, 4])
    t.equal(most, 1)
  })
})

t.test('given priorities', async t => {
  const bench = await setup(t, { priority: { levels: 3 } })
  const urgent = recorder()
  defineHandler({ name: 'Plain', on: 'plain' }, urgent.handle)
  await bench.consume({ topics: ['plain'] })

  t.test('when an event is published, then its queue has no levels, and can be paused like any', async t => {
    await bench.pgbus.publish('plain', {})
    await handled(bench, 'plain')
    await bench.pgbus.queues.pause('plain')
    await bench.pgbus.publish('plain', {})
    const [metrics] = await bench.pgbus.queues.metrics('plain')
    t.match(metrics, { physical: 'pgbus_plain', length: 1 })
    t.equal(urgent.events.length, 1)
    await bench.pgbus.queues.resume('plain')
    await handled(bench, 'plain')
    t.equal(urgent.events.length, 2)
  })
})
