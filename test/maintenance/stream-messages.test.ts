import t from 'tap'
import { oldStreamMessages, retentionOf } from '../../lib/maintenance/stream-messages.ts'
import type { TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { rig, runOnce } from './setup.ts'

/** Messages of these ages in minutes, oldest first; returns their ids. */
async function broadcast(test: TestDatabase, stream: string, ages: number[]): Promise<number[]> {
  const rows = await test.query<{ id: string }>(
    `INSERT INTO pgbus_stream_messages (stream, message, created_at)
     SELECT $1, '{}', clock_timestamp() - age * interval '1 minute' FROM unnest($2::int[]) WITH ORDINALITY AS a (age, n) ORDER BY n RETURNING id`,
    [stream, ages],
  )
  return rows.map(row => Number(row.id))
}

async function left(test: TestDatabase, stream: string): Promise<number[]> {
  const rows = await test.query<{ id: string }>(
    'SELECT id FROM pgbus_stream_messages WHERE stream = $1 ORDER BY id',
    [stream],
  )
  return rows.map(row => Number(row.id))
}

t.test('given retentions by stream', async t => {
  t.test('when a stream is looked up, then the first that matches counts, whatever the flags', async t => {
    const { pgbus } = await rig(t, {
      streams: {
        retention: {
          default: '1m',
          perStream: [
            ['chat', '1h'],
            [/^chat/g, '2h'],
            ['/^keep/', 0],
            [/^chat:9/, '9h'],
          ],
        },
      },
    })
    const { retention } = pgbus.config.streams
    t.equal(retentionOf('chat', retention), 3_600_000)
    t.equal(retentionOf('chat:9', retention), 7_200_000)
    t.equal(retentionOf('chat:9', retention), 7_200_000, 'asked again')
    t.equal(retentionOf('keep:1', retention), 0)
    t.equal(retentionOf('other', retention), 60_000)
  })

  t.test('when all are kept for ever, then there is no task', async t => {
    t.equal(oldStreamMessages({ default: 0, perStream: [['a', 0]] }), null)
    t.ok(oldStreamMessages({ default: 0, perStream: [['a', 1]] }))
  })
})

t.test('given durable broadcasts', async t => {
  t.test('when some are too old, then they go, and the mark tells how far', async t => {
    const own = await rig(t)
    const { test } = own
    // Those that are kept come first: they must not hide the others.
    const kept = await broadcast(
      test,
      'kept',
      Array.from({ length: 1_100 }, () => 600),
    )
    const hours = await broadcast(test, 'hours', [90, 30, 1])
    const news = await broadcast(test, 'news', [...Array.from({ length: 1_100 }, () => 10), 1])
    const quiet = await broadcast(test, 'quiet', [10, 10])
    const retention = { default: 300_000, perStream: [['kept', 0] as const, [/^hours/, 3_600_000] as const] }
    await runOnce(own, oldStreamMessages(retention)!)

    t.equal((await left(test, 'kept')).length, kept.length)
    t.strictSame(await left(test, 'hours'), hours.slice(1))
    t.strictSame(await left(test, 'news'), news.slice(-1))
    t.strictSame(await left(test, 'quiet'), [])
    t.strictSame(await test.query('SELECT stream, pruned_id::int FROM pgbus_stream_marks ORDER BY 1'), [
      { stream: 'hours', pruned_id: hours[0] },
      { stream: 'news', pruned_id: news.at(-2) },
      { stream: 'quiet', pruned_id: quiet[1] },
    ])
    t.match(
      await test.query("SELECT pruned_id::int, watermark::int FROM pgbus_stream_bounds('quiet')"),
      [{ pruned_id: quiet[1], watermark: quiet[1] }],
      'the position of a page does not fall back',
    )

    await test.query(
      "UPDATE pgbus_stream_messages SET created_at = created_at - interval '1 hour' WHERE stream = 'news'",
    )
    await runOnce(own, oldStreamMessages(retention)!)
    t.match(await test.query("SELECT pruned_id::int FROM pgbus_stream_marks WHERE stream = 'news'"), [
      { pruned_id: news.at(-1) },
    ])
  })

  t.test('when two processes do it at the same time, then nothing is lost or counted twice', async t => {
    const one = await rig(t)
    const two = await rig(t, {}, one.test)
    const ids = await broadcast(
      one.test,
      'news',
      Array.from({ length: 5_500 }, (_, n) => (n < 5_000 ? 10 : 0)),
    )
    const task = oldStreamMessages({ default: 300_000, perStream: [] })!
    for (const own of [one, two]) await own.maintenance([{ ...task, every: 10 }]).start()
    await waitFor(async () => (await left(one.test, 'news')).length === 500)
    t.strictSame(await left(one.test, 'news'), ids.slice(5_000))
    t.match(await one.test.query('SELECT pruned_id::int FROM pgbus_stream_marks'), [
      { pruned_id: ids[4_999] },
    ])
    t.strictSame([...one.reports, ...two.reports], [])
  })
})
