import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { DiscardJob } from '../../lib/jobs/control.ts'
import { waitFor } from '../support/wait-for.ts'
import { type EventBench, handled, recorder, setup } from './support.ts'

/** The same event once more, as a message of its own. */
const again = (bench: EventBench, key: string, eventId: string) =>
  bench.pgbus.publish(key, { n: 1 }, { eventId })

t.test('given an idempotent handler', async t => {
  const bench = await setup(t)
  const { db, pgbus } = bench
  let failures = 0
  const once = recorder(() => {
    if (failures > 0) {
      failures -= 1
      throw new Error('not yet')
    }
  })
  const options = { idempotent: true, retry: () => 0 } as const
  defineHandler({ ...options, name: 'Once', on: 'once.*' }, once.handle)
  const twin = recorder()
  defineHandler({ ...options, name: 'Twin', on: 'once.*' }, twin.handle)
  await bench.consume()
  t.beforeEach(() => {
    once.events.length = 0
    twin.events.length = 0
  })

  t.test('when an event is delivered again, then it is skipped, by each handler for itself', async t => {
    for (let n = 0; n < 3; n += 1) {
      await again(bench, 'once.a', 'e1')
      await handled(bench, 'once', 'twin')
    }
    t.equal(once.events.length, 1)
    t.equal(twin.events.length, 1)
    t.equal(await bench.archived('pgbus_once'), 3)
    t.same(await bench.claims(), [
      { event_id: 'e1', handler_class: 'Once', completed: true },
      { event_id: 'e1', handler_class: 'Twin', completed: true },
    ])
  })

  t.test('when it is known here, then the database is not asked', async t => {
    await db.query('TRUNCATE pgbus_processed_events')
    await again(bench, 'once.a', 'e1')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 0)
    t.same(await bench.claims(), [])
  })

  t.test('when another process has completed it, then it is skipped', async t => {
    await db.query(
      "INSERT INTO pgbus_processed_events (event_id, handler_class, completed_at) VALUES ('e2', 'Once', now()), ('e2', 'Twin', now())",
    )
    await again(bench, 'once.a', 'e2')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 0)
  })

  t.test('when its first attempt throws, then the next runs in the same process', async t => {
    failures = 1
    await again(bench, 'once.a', 'e3')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 2)
    t.match(
      (await bench.claims()).filter(row => row.event_id === 'e3' && row.handler_class === 'Once'),
      [{ completed: true }],
    )
  })

  t.test('when somebody began and did not complete it, then it runs', async t => {
    await db.query(
      "INSERT INTO pgbus_processed_events (event_id, handler_class, queue_name, msg_id) VALUES ('e4', 'Once', null, null), ('e4', 'Twin', 'pgbus_twin', 99999)",
    )
    await again(bench, 'once.a', 'e4')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 1)
    t.equal(twin.events.length, 1)
  })

  t.test('when its end cannot be written, then it runs again and completes', async t => {
    await db.query(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
      CREATE TRIGGER refuse BEFORE UPDATE OF completed_at ON pgbus_processed_events FOR EACH ROW
        WHEN (new.event_id = 'e5' AND new.handler_class = 'Once') EXECUTE FUNCTION refuse()`)
    await again(bench, 'once.a', 'e5')
    await waitFor(() => bench.lines.some(({ fields }) => fields.action === 'record_outcome'))
    t.equal(once.events.length, 1)
    t.equal((await bench.rows('pgbus_once')).length, 1, 'neither archived nor completed')
    t.match(
      (await bench.claims()).find(row => row.event_id === 'e5' && row.handler_class === 'Once'),
      { completed: false },
    )
    await db.query('DROP TRIGGER refuse ON pgbus_processed_events; UPDATE pgmq.q_pgbus_once SET vt = now()')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 2)
    t.match(
      (await bench.claims()).find(row => row.event_id === 'e5' && row.handler_class === 'Once'),
      { completed: true },
    )
  })

  t.test('when an operator marks it as handled while a claim is open, then it is skipped', async t => {
    await pgbus.queues.pause('once')
    await again(bench, 'once.a', 'e6')
    await db.query("INSERT INTO pgbus_processed_events (event_id, handler_class) VALUES ('e6', 'Once')")
    t.match(
      (await pgbus.events.pending()).filter(({ eventId }) => eventId === 'e6'),
      [{ handler: 'Once', queue: null, msgId: null, since: Date }],
    )
    await pgbus.events.markHandled('e6', 'Once')
    await t.rejects(
      pgbus.events.markHandled('e6', 'Nobody'),
      /no idempotent handler "Nobody"; there are: Once, Twin/,
    )
    t.notOk((await pgbus.events.pending()).some(({ eventId }) => eventId === 'e6'))
    await pgbus.queues.resume('once')
    await handled(bench, 'once', 'twin')
    t.equal(once.events.length, 0)
  })

  t.test('when its id is longer than an index may hold, then it is told apart all the same', async t => {
    const long = 'ü'.repeat(4_000)
    for (const id of [`${long}1`, `${long}2`, `${long}1`]) {
      await db.query("SELECT pgmq.send('pgbus_once', $1::jsonb)", [
        JSON.stringify({ event_id: id, routing_key: 'once.a', payload: {} }),
      ])
      await handled(bench, 'once')
    }
    t.equal(once.events.length, 2)
  })
})

t.test('given two messages of one event', async t => {
  const bench = await setup(t)
  const { db } = bench
  const gate = deferred()
  let running = 0
  let most = 0
  const slow = recorder(async () => {
    running += 1
    most = Math.max(most, running)
    await gate.promise
    running -= 1
  })
  defineHandler({ name: 'Slow', on: 'slow', idempotent: true }, slow.handle)
  await bench.consume()
  await bench.consume()

  t.test(
    'when one is being handled, then the other waits, not charged, and is skipped afterwards',
    async t => {
      await again(bench, 'slow', 'e1')
      await waitFor(() => slow.events.length === 1)
      await again(bench, 'slow', 'e1')
      await waitFor(async () => (await bench.rows('pgbus_slow')).some(row => row.hidden && row.read_ct === 0))
      gate.resolve()
      await waitFor(async () => (await bench.rows('pgbus_slow')).length === 1)
      await db.query('UPDATE pgmq.q_pgbus_slow SET vt = now()')
      await handled(bench, 'slow')
      t.equal(slow.events.length, 1)
      t.equal(most, 1)
    },
  )

  t.test('when the one that began is hidden no longer, then the other takes over', async t => {
    await db.query(`INSERT INTO pgmq.q_pgbus_slow (vt, read_ct, message) VALUES (now() + interval '1 hour', 1, '{"event_id":"e2","routing_key":"slow","payload":{}}');
      INSERT INTO pgbus_processed_events (event_id, handler_class, queue_name, msg_id) SELECT 'e2', 'Slow', 'pgbus_slow', max(msg_id) FROM pgmq.q_pgbus_slow`)
    await again(bench, 'slow', 'e2')
    await waitFor(async () => (await bench.rows('pgbus_slow')).every(row => row.hidden))
    t.equal(slow.events.length, 1, 'it waits')
    await db.query('UPDATE pgmq.q_pgbus_slow SET vt = now()')
    await waitFor(() => slow.events.length === 2)
    await waitFor(async () => (await bench.rows('pgbus_slow')).length < 2)
    await db.query('UPDATE pgmq.q_pgbus_slow SET vt = now()')
    await handled(bench, 'slow')
    t.equal(slow.events.length, 2)
    t.equal(most, 1)
  })
})

t.test('given handlers that share a queue', async t => {
  const bench = await setup(t)
  const order: string[] = []
  let failures = 1
  defineHandler(
    { name: 'First', on: 'shared.#', queue: 'shared', idempotent: true },
    () => void order.push('first'),
  )
  defineHandler({ name: 'Second', on: 'shared.a', queue: 'shared', idempotent: true, retry: () => 0 }, () => {
    order.push('second')
    failures -= 1
    if (failures === 0) throw new Error('not yet')
  })
  defineHandler(
    { name: 'Third', on: 'shared.a', queue: 'shared', idempotent: 'transaction' },
    () => void order.push('third'),
  )
  await bench.consume()

  t.test('when one fails, then those behind it wait, and all of their attempts run as one', async t => {
    await again(bench, 'shared.a', 'e1')
    await handled(bench, 'shared')
    t.same(order, ['first', 'second', 'first', 'second', 'third'])
    t.ok((await bench.claims()).every(row => row.completed))
    t.equal((await bench.claims()).length, 3)
  })

  t.test('when only some match, then only those run', async t => {
    order.length = 0
    await again(bench, 'shared.b', 'e2')
    await handled(bench, 'shared')
    t.same(order, ['first'])
  })
})

t.test('given a handler in a transaction', async t => {
  const bench = await setup(t, { pool: { size: 6 } })
  const { db, pgbus } = bench
  await db.query('CREATE TABLE effects (event text)')
  const effects = async () => (await db.query('SELECT * FROM effects')).length
  const next = recorder()
  defineHandler({ name: 'Next', on: 'effect.done' }, next.handle)
  let act: () => unknown = () => undefined
  defineHandler(
    { name: 'Effect', on: 'effect', idempotent: 'transaction', retry: () => 0, maxRetries: 3 },
    async (event, { tx, pgbus: own }) => {
      await tx.query('INSERT INTO effects VALUES ($1)', [event.id])
      await own.publish('effect.done', {}, { tx })
      await act()
    },
  )
  const consumer = await bench.consume()
  t.beforeEach(async () => {
    act = () => undefined
    next.events.length = 0
    await db.query('TRUNCATE effects')
  })

  t.test('when it returns, then effects, what it published, claim and end are there, once', async t => {
    await again(bench, 'effect', 'e1')
    await handled(bench, 'effect', 'next')
    await again(bench, 'effect', 'e1')
    await handled(bench, 'effect', 'next')
    t.equal(await effects(), 1)
    t.equal(next.events.length, 1)
    t.match(await bench.claims(), [{ handler_class: 'Effect', completed: true }])
    t.equal(await bench.archived('pgbus_effect'), 2)
  })

  t.test('when it throws, then nothing of that attempt is there', async t => {
    let attempts = 0
    act = () => {
      attempts += 1
      if (attempts < 3) throw new Error('not yet')
    }
    await again(bench, 'effect', 'e2')
    await handled(bench, 'effect', 'next')
    t.equal(await effects(), 1)
    t.equal(next.events.length, 1)
    t.same(await bench.failures(), [])
  })

  t.test('when it does not want its event, then what it wrote is undone, and the event ends', async t => {
    act = () => {
      throw new DiscardJob('of no interest')
    }
    await again(bench, 'effect', 'discarded')
    await handled(bench, 'effect', 'next')
    t.equal(await effects(), 0)
    t.equal(next.events.length, 0)
    t.ok((await bench.claims()).some(row => row.event_id === 'discarded' && row.completed))
    t.same(await bench.failures(), [])
  })

  t.test('when its connection dies before the commit, then nothing of that attempt is there', async t => {
    let attempts = 0
    act = async () => {
      attempts += 1
      if (attempts === 1)
        await db.query(
          "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus' AND state = 'idle in transaction'",
        )
    }
    await again(bench, 'effect', 'e3')
    await handled(bench, 'effect', 'next')
    t.equal(attempts, 2)
    t.equal(await effects(), 1)
    t.equal(next.events.length, 1)
  })

  t.test('when the message was taken away meanwhile, then nothing of that attempt is there', async t => {
    act = () => db.query('UPDATE pgmq.q_pgbus_effect SET read_ct = read_ct + 1')
    const { processed } = consumer.stats()
    await again(bench, 'effect', 'e4')
    await waitFor(() => consumer.stats().processed > processed)
    t.equal(await effects(), 0)
    act = () => undefined
    await db.query('UPDATE pgmq.q_pgbus_effect SET vt = now()')
    await handled(bench, 'effect', 'next')
    t.equal(await effects(), 1)
  })

  t.test('when a second message of the event comes meanwhile, then it waits and is skipped', async t => {
    const gate = deferred()
    act = () => gate.promise
    await again(bench, 'effect', 'e5')
    const inside = () =>
      db.query(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus' AND state = 'idle in transaction'",
      )
    await waitFor(async () => (await inside()).length === 1)
    await again(bench, 'effect', 'e5')
    await waitFor(
      async () =>
        (
          await db.query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus' AND wait_event_type = 'Lock'",
          )
        ).length > 0,
    )
    gate.resolve()
    await handled(bench, 'effect', 'next')
    t.equal(await effects(), 1)
  })

  t.test('when it runs out of its time, then its late end changes nothing', async t => {
    const late = deferred()
    let attempts = 0
    defineHandler(
      { name: 'TooLate', on: 'late', idempotent: 'transaction', timeout: 50, maxRetries: 1 },
      async (event, { tx, signal }) => {
        attempts += 1
        await tx.query('INSERT INTO effects VALUES ($1)', [event.id])
        signal.addEventListener('abort', () => late.resolve())
        await late.promise
      },
    )
    await pgbus.events.setup()
    const consumer = await bench.consume({ topics: ['late'] })
    await pgbus.publish('late', {})
    await handled(bench, 'too_late')
    t.equal(attempts, 1)
    t.equal(await effects(), 0)
    t.equal((await bench.rows('pgbus_too_late_dlq')).length, 1)
    await consumer.stop()
  })
})

t.test('given a table of an older client', async t => {
  const bench = await setup(t)
  const { db, lines } = bench
  let failures = 0
  const legacy = recorder(() => {
    if (failures > 0) {
      failures -= 1
      throw new Error('not yet')
    }
  })
  defineHandler(
    { name: 'Legacy', on: 'legacy', idempotent: true, retry: () => 50, maxRetries: 1_000 },
    legacy.handle,
  )
  await db.query('ALTER TABLE pgbus_processed_events RENAME TO away')
  await bench.consume({ topics: ['legacy'] })

  t.test('when a look at it fails, then that delivery fails, and the next looks again', async t => {
    await again(bench, 'legacy', 'e1')
    await waitFor(() => lines.some(({ fields }) => fields.action === 'process_message'))
    t.ok(lines.some(({ fields }) => /006_events\.sql/.test(String((fields.err as Error)?.message))))
    t.equal(legacy.events.length, 0)
    await db.query(`ALTER TABLE away RENAME TO pgbus_processed_events;
      ALTER TABLE pgbus_processed_events DROP COLUMN completed_at`)
    await handled(bench, 'legacy')
    t.equal(legacy.events.length, 1)
  })

  t.test('when it is used, then the first claim wins, failures run again, and one line says so', async t => {
    await again(bench, 'legacy', 'e1')
    await handled(bench, 'legacy')
    t.equal(legacy.events.length, 1)
    failures = 1
    await again(bench, 'legacy', 'e2')
    await handled(bench, 'legacy')
    t.equal(legacy.events.length, 3)
    t.equal(lines.filter(({ message }) => /has no completed_at.*pgbus migrate/.test(message)).length, 1)
  })
})

t.test('given thousands of events', async t => {
  const bench = await setup(t, { pool: { size: 4 } })
  const { pgbus, db } = bench
  let count = 0
  defineHandler({ name: 'Busy', on: 'busy', idempotent: true }, async (_, { pgbus: own }) => {
    count += 1
    await own.queues.paused()
  })
  await bench.consume({ topics: ['busy'], concurrency: 10 })

  t.test('when each handler uses the pool, then no connection is left behind', async t => {
    await pgbus.publishMany(Array.from({ length: 1_000 }, () => ({ routingKey: 'busy', payload: {} })))
    await waitFor(() => count === 1_000, { timeout: 60_000 })
    await handled(bench, 'busy')
    const { size, total, waiting } = pgbus.db.stats
    t.ok(total <= size)
    t.equal(waiting, 0)
    t.same(
      await db.query('SELECT count(*)::int AS n FROM pgbus_processed_events WHERE completed_at IS NULL'),
      [{ n: 0 }],
    )
  })
})
