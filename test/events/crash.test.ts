import t from 'tap'
import { waitFor } from '../support/wait-for.ts'
import { openBlocker, setupLedger, spawnConsumer } from './setup-processes.ts'

t.test('given a consumer that is killed', async t => {
  const rig = await setupLedger(t)
  const { db, publish, count, completed } = rig
  const consumer = await spawnConsumer(t, db.url)
  const blocker = await openBlocker(t, db.url)
  /** What a supervisor does, or the end of the lease. */
  const redeliver = (queue: string) => db.query(`UPDATE pgmq.q_pgbus_${queue} SET vt = now()`)

  t.test('when that is before the claim of its event, then the event runs once', async t => {
    await blocker.hold('pgbus_processed_events')
    await publish('once', 'o1')
    await blocker.reached()
    await consumer.replace()
    await blocker.drop()
    t.equal(await completed('o1'), undefined)
    await redeliver('once')
    await rig.openGate('o1')
    await rig.handled('once')
    t.equal(await count('o1', 'start'), 1)
    t.equal(await completed('o1'), true)
  })

  t.test(
    'when that is in its handler, then one copy of the event runs once more, the others never',
    async t => {
      await publish('once', 'o2')
      await waitFor(async () => (await count('o2', 'start')) === 1)
      t.equal(await completed('o2'), false, 'what was begun can be seen')
      await Promise.all([publish('once', 'o2'), publish('once', 'o2')])
      await consumer.replace()
      await redeliver('once')
      await rig.openGate('o2')
      await waitFor(async () => (await count('o2', 'end')) === 1)
      await publish('once', 'o2')
      await redeliver('once')
      await rig.handled('once')
      t.equal(await count('o2', 'start'), 2)
      t.equal(await count('o2', 'end'), 1)
      t.equal(await completed('o2'), true)
    },
  )

  t.test('when that is before the end is written, then the event runs again', async t => {
    await publish('once', 'o3')
    await waitFor(async () => (await count('o3', 'start')) === 1)
    await blocker.hold('pgbus_processed_events')
    await rig.openGate('o3')
    await blocker.reached()
    t.equal(await count('o3', 'end'), 1)
    await consumer.replace()
    await blocker.drop()
    t.equal(await completed('o3'), false)
    await redeliver('once')
    await rig.handled('once')
    t.equal(await count('o3', 'end'), 2)
    t.equal(await completed('o3'), true)
    t.equal((await db.query("SELECT 1 FROM pgmq.a_pgbus_once WHERE message->>'event_id' = 'o3'")).length, 1)
  })

  for (const [event, where, table] of [
    ['e1', 'before the claim', 'pgbus_processed_events'],
    ['e2', 'in the handler', undefined],
    ['e3', 'before the end', 'pgmq.a_pgbus_exact'],
  ] as const) {
    t.test(`when that is in a transaction, ${where}, then the effect is there once`, async t => {
      if (table) await blocker.hold(table)
      await publish('exact', event)
      if (where !== 'before the claim') await waitFor(async () => (await count(event, 'start')) === 1)
      if (where === 'before the end') await rig.openGate(event)
      if (table) await blocker.reached()
      await consumer.replace()
      if (table) await blocker.drop()
      t.equal(await rig.effects(event), 0)
      await redeliver('exact')
      await rig.openGate(event)
      await rig.handled('exact')
      t.equal(await rig.effects(event), 1)
      t.equal(await completed(event), true)
    })
  }
})
