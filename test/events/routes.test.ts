import t from 'tap'
import { topicMatches } from '../../lib/core/topics.ts'
import { defineHandler } from '../../lib/events/define.ts'
import { createEmptyDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { setup } from './support.ts'

defineHandler({ name: 'Bound', on: ['bound.*', 'other'] }, () => undefined)
defineHandler({ name: 'Second', on: 'bound.#', idempotent: true }, () => undefined)

t.test('given handlers', async t => {
  const bench = await setup(t)
  const { pgbus, db } = bench

  t.test('when they are set up, from several processes at once, then each is bound once', async t => {
    const others = [createTestPgbus(t, db), createTestPgbus(t, db), createTestPgbus(t, db)]
    await Promise.all([pgbus, ...others].map(instance => instance.events.setup()))
    t.match(await pgbus.events.bindings(), [
      { queue: 'bound', pattern: 'bound.*', declared: true, boundAt: Date },
      { queue: 'bound', pattern: 'other', declared: true },
      { queue: 'second', pattern: 'bound.#', declared: true },
    ])
    t.match(await pgbus.queues.list(), [{ name: 'bound' }, { name: 'second' }])
    t.same(pgbus.events.handlers()[1], { name: 'Second', queue: 'second', on: ['bound.#'], idempotent: true })
  })

  t.test('when a key is tested, then its routes are told', async t => {
    t.same(await pgbus.events.test('bound.a'), [
      { pattern: 'bound.#', queue: 'second' },
      { pattern: 'bound.*', queue: 'bound' },
    ])
    t.same(await pgbus.events.test('none'), [])
    await t.rejects(pgbus.events.test('a.*'), TypeError)
  })

  t.test(
    'when routes are pruned, then those go that a handler of ours no longer wants; no others',
    async t => {
      await db.query(
        "SELECT pgmq.create('pgbus_foreign'), pgmq.bind_topic('gone.*', 'pgbus_bound'), pgmq.bind_topic('theirs', 'pgbus_foreign')",
      )
      await pgbus.events.setup()
      t.equal((await pgbus.events.bindings()).length, 5, 'setting up takes nothing away')
      t.same(await pgbus.events.prune(), [{ pattern: 'gone.*', queue: 'bound' }])
      t.match(
        (await pgbus.events.bindings()).map(({ pattern, declared }) => [pattern, declared]),
        [
          ['bound.*', true],
          ['other', true],
          ['theirs', null],
          ['bound.#', true],
        ],
      )
    },
  )

  t.test('when the database routes, then as this process matches', async t => {
    const patterns = [
      'orders',
      'orders.*',
      'orders.#',
      '#.error',
      'a.#.b',
      '*.b',
      '#',
      'lo*gs',
      'x#',
      '*x.y*',
      '#.a.#',
    ]
    const keys = [
      'orders',
      'orders.a',
      'orders.a.b',
      'error',
      'x.error',
      'a.b',
      'a.c.b',
      'a.c.d.b',
      'logs',
      'loxgs',
      'lo.gs',
      'x',
      'xy',
      'x.y',
      'xx.yy',
      'q.a.q',
      'Orders',
    ]
    await db.query("SELECT pgmq.create('all')")
    for (const pattern of patterns) await db.query('SELECT pgmq.bind_topic($1, $2)', [pattern, 'all'])
    for (const key of keys) {
      const routed = (await pgbus.events.test(key)).filter(({ queue }) => queue === 'all')
      t.same(
        routed.map(({ pattern }) => pattern).sort(),
        patterns.filter(pattern => topicMatches(pattern, key)).sort(),
        key,
      )
    }
  })
})

t.test('given a database that is not ready', async t => {
  t.test('when it is away, then setting up fails, or is only logged when that was asked for', async t => {
    const away = createTestPgbus(t, { url: 'postgres://127.0.0.1:1/none' })
    await t.rejects(away.events.setup(), { code: 'ECONNREFUSED' })
    await away.events.setup({ tolerateOutage: true })
  })

  t.test('when it has no schema, then that fails in any case', async t => {
    const bare = createTestPgbus(t, await createEmptyDatabase(t))
    await t.rejects(bare.events.setup({ tolerateOutage: true }), { code: 'PGBUS_ERR_SCHEMA_NOT_READY' })
    await t.rejects(bare.publish('a', {}), { code: 'PGBUS_ERR_SCHEMA_NOT_READY' })
  })
})
