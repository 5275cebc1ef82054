import pg from 'pg'
import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { startApp } from '../plugins/fastify/setup.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'
import { recordingLog } from './fakes.ts'

const db = await createDatabase(t)

t.test('given presence that is kept by hand', async t => {
  const pgbus = createTestPgbus(t, db)
  const room = pgbus.stream('by hand')

  t.test('when members join, change and leave, then they are listed, and told as rendered', async t => {
    const ann = await room.presence.join(
      { memberId: 7, metadata: { name: 'Ann' } },
      ({ id }) => `<p>${id} is here</p>`,
    )
    t.match(ann, { id: '7', metadata: { name: 'Ann' } })
    await room.presence.join({ memberId: 'bob' })
    const again = await room.presence.join({ memberId: 7, metadata: { name: 'Anna' } }, () => '')
    t.same(again.joinedAt, ann.joinedAt)
    t.strictSame(
      (await room.presence.members()).map(({ id, metadata }) => [id, metadata]),
      [
        ['7', { name: 'Anna' }],
        ['bob', {}],
      ],
    )
    t.equal(await room.presence.count(), 2)
    t.equal(await pgbus.stream('elsewhere').presence.count(), 0)
    t.match(
      await room.presence.leave({ memberId: 7 }, ({ metadata }) => `<p>${String(metadata.name)} left</p>`),
      {
        id: '7',
      },
    )
    t.equal(await room.presence.leave({ memberId: 7 }, () => t.fail('it was not there')), null)
    t.strictSame(
      (await room.readAfter(0)).map(({ data }) => data),
      ['<p>7 is here</p>', '<p>Anna left</p>'],
    )
  })

  t.test('when time passes, then who is touched stays and who is not is swept, once', async t => {
    await room.presence.join({ memberId: 'old' })
    await room.presence.join({ memberId: 'fresh' })
    await db.query("UPDATE pgbus_presence_members SET last_seen_at = last_seen_at - interval '1 hour'")
    t.equal(await room.presence.touch({ memberId: 'fresh' }), true)
    t.equal(await room.presence.touch({ memberId: 'nobody' }), false)
    const swept = await Promise.all(
      Array.from({ length: 5 }, () => room.presence.sweep({ olderThan: '10m' })),
    )
    t.strictSame(
      swept
        .flat()
        .map(({ id }) => id)
        .sort(),
      ['bob', 'old'],
    )
    t.strictSame(
      (await room.presence.members()).map(({ id }) => id),
      ['fresh'],
    )
    await t.rejects(room.presence.sweep({ olderThan: 'soon' as never }), {
      name: 'TypeError',
      message: 'olderThan',
    })
    for (const memberId of ['', ' ', 'x'.repeat(256), 'a\0b', null, {}]) {
      await t.rejects(room.presence.join({ memberId: memberId as string }), {
        name: 'TypeError',
        message: 'memberId',
      })
    }
  })

  t.test(
    'when it is done in a transaction of a session in another zone, then it holds with its commit',
    async t => {
      const tx = new pg.Client({ connectionString: db.url, options: '-c timezone=Asia/Tokyo' })
      await tx.connect()
      t.teardown(() => tx.end())
      const before = Date.now()
      for (const [memberId, end] of [
        ['rolled back', 'ROLLBACK'],
        ['kept', 'COMMIT'],
      ] as const) {
        await tx.query('BEGIN')
        const { joinedAt } = await room.presence.join({ memberId }, () => memberId, { tx })
        t.ok(Math.abs(joinedAt.getTime() - before) < 60_000, joinedAt.toISOString())
        t.notOk((await room.presence.members()).some(({ id }) => id === memberId))
        await tx.query(end)
      }
      const members = await room.presence.members()
      t.ok(members.some(({ id }) => id === 'kept'))
      t.notOk(members.some(({ id }) => id === 'rolled back'))
      t.equal((await room.readAfter(0)).at(-1)?.data, 'kept')
    },
  )
})

t.test('given presence that follows connections', async t => {
  async function setup(t: TestContext, presence: NonNullable<PgbusConfig['streams']>['presence'] = {}) {
    const { log, lines } = recordingLog()
    const started = await startApp(t, {
      db,
      log,
      streams: { heartbeatInterval: '1s', presence: { patterns: [/^desk/], broadcast: true, ...presence } },
      plugin: { authorize: request => ({ id: (request.headers['x-user'] as string | undefined) ?? null }) },
    })
    const as = async (user: string, name: string) => {
      const client = await started.follow(name, { headers: user === '' ? {} : { 'x-user': user } })
      await client.waitForEvent('pgbus:replay-end')
      return client
    }
    const ids = async (name: string) =>
      (await started.pgbus.stream(name).presence.members()).map(({ id }) => id)
    const told = async (name: string) =>
      (await started.pgbus.stream(name).readAfter(0)).map(({ event, data }) => [event, JSON.parse(data)])
    return { ...started, lines, as, ids, told }
  }

  t.test('when the first of two tabs closes, then the member stays; with the last one it goes', async t => {
    const { as, ids, told } = await setup(t)
    const tabs = [await as('ann', 'desk 1'), await as('ann', 'desk 1')]
    const bob = await as('bob', 'desk 1')
    await as('', 'desk 1')
    await as('ann', 'lobby')
    await waitFor(async () => (await ids('desk 1')).length === 2)
    const rows = () => db.query("SELECT FROM pgbus_presence_connections WHERE stream_name = 'desk 1'")
    await waitFor(async () => (await rows()).length === 3)
    tabs[0]!.close()
    await waitFor(async () => (await rows()).length === 2)
    t.strictSame(await ids('desk 1'), ['ann', 'bob'])
    tabs[1]!.close()
    await waitFor(async () => (await ids('desk 1')).join() === 'bob')
    bob.close()
    await waitFor(async () => (await told('desk 1')).length === 4)
    t.strictSame(await told('desk 1'), [
      ['presence', { type: 'join', id: 'ann', metadata: {}, count: 1 }],
      ['presence', { type: 'join', id: 'bob', metadata: {}, count: 2 }],
      ['presence', { type: 'leave', id: 'ann', count: 1 }],
      ['presence', { type: 'leave', id: 'bob', count: 0 }],
    ])
    t.strictSame(await ids('lobby'), [])
  })

  t.test('when a process is gone without a word, then another one sweeps what it left', async t => {
    const { ids } = await setup(t, { timeout: '1s', sweepInterval: '1s' })
    await db.query(`WITH c AS (INSERT INTO pgbus_presence_connections VALUES ('dead', 'desk 2', 'ann', now() - interval '1 minute'))
INSERT INTO pgbus_presence_members (stream_name, member_id) VALUES ('desk 2', 'ann'), ('desk 2', 'by hand')`)
    const { as } = await setup(t, { timeout: '1s', sweepInterval: '1s' })
    await as('bob', 'desk 3')
    await waitFor(async () => (await ids('desk 2')).join() === 'by hand')
  })

  t.test('when its rows vanish, then the next sign of life puts them back', async t => {
    const { as, ids } = await setup(t)
    await as('ann', 'desk 4')
    await waitFor(async () => (await ids('desk 4')).length === 1)
    await db.query('TRUNCATE pgbus_presence_members, pgbus_presence_connections')
    await waitFor(async () => (await ids('desk 4')).length === 1)
  })

  t.test('when it cannot be written, then connections go on as if nothing was', async t => {
    const { as, pgbus, lines } = await setup(t)
    await db.query('ALTER TABLE pgbus_presence_connections RENAME TO gone')
    const client = await as('ann', 'desk 5')
    await pgbus.stream('desk 5').broadcast('still here')
    await client.waitForFrame(frame => frame.data === 'still here')
    client.close()
    await waitFor(() => lines.some(line => line.startsWith('warn: presence cannot be written')))
    await db.query('ALTER TABLE gone RENAME TO pgbus_presence_connections')
  })

  t.test('when the application drains, then nobody is left behind', async t => {
    const { as, ids, pgbus } = await setup(t)
    await Promise.all([as('ann', 'desk 6'), as('bob', 'desk 6')])
    await waitFor(async () => (await ids('desk 6')).length === 2)
    await pgbus.streams.drain()
    t.strictSame(await ids('desk 6'), [])
  })
})
