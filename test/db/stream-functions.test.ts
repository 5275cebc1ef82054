import { createHash, randomInt } from 'node:crypto'
import type pg from 'pg'
import t from 'tap'
import { listen, openSession } from '../pgmq/setup.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'

interface Stored {
  id: number
  stream: string
  n: number
}

const pend = 'INSERT INTO pgbus_stream_pending (stream, message) VALUES ($1, $2::jsonb)'
const append = 'SELECT pgbus_stream_append($1, $2::jsonb) AS id'

function channelOf(stream: string): string {
  return `pgbus.s.${createHash('sha256').update(stream).digest('hex').slice(0, 32)}`
}

async function stored(test: TestDatabase): Promise<Stored[]> {
  return test.query<Stored>(
    `SELECT id::int, stream, (message->>'n')::int AS n FROM pgbus_stream_messages ORDER BY id`,
  )
}

async function bounds(test: TestDatabase, stream: string): Promise<number[]> {
  const [row] = await test.query<Record<string, string>>('SELECT * FROM pgbus_stream_bounds($1)', [stream])
  return [row!.pruned_id, row!.watermark, row!.last].map(Number)
}

function inTransaction(client: pg.Client, ...statements: [string, unknown[]?][]): Promise<unknown> {
  return [['BEGIN'] as [string], ...statements, ['COMMIT'] as [string]].reduce<Promise<unknown>>(
    (before, [text, values]) => before.then(() => client.query(text, values as unknown[])),
    Promise.resolve(),
  )
}

async function sessions(t: TestContext, test: TestDatabase, count: number): Promise<pg.Client[]> {
  return Promise.all(Array.from({ length: count }, () => openSession(t, test.url)))
}

t.test('given a stream', async t => {
  const test = await createDatabase(t)

  t.test('when its channel is asked for, then it has a fixed length for any name', async t => {
    for (const name of ['orders', 'a:b', 'ab', 'ünï:✓', 'x'.repeat(255)]) {
      const [row] = await test.query<{ channel: string }>('SELECT pgbus_stream_channel($1) AS channel', [
        name,
      ])
      t.equal(row?.channel, channelOf(name))
    }
  })

  t.test(
    'when messages are appended, then ids grow, readers are woken with an empty payload, and bounds follow',
    async t => {
      t.strictSame(await bounds(test, 'orders'), [0, 0, 0])
      const heard = await listen(t, test.url, channelOf('orders'))
      const [first] = await test.query<{ id: string }>(append, ['orders', '{"n":1}'])
      await test.query(append, ['other', '{"n":2}'])
      t.strictSame(await bounds(test, 'orders'), [0, Number(first!.id), Number(first!.id) + 1])
      await waitFor(() => heard.length === 1)
      t.strictSame(heard, [''])
      t.strictSame(
        (await stored(test)).map(row => row.n),
        [1, 2],
      )
    },
  )

  t.test('when everything was pruned, then the mark tells how far', async t => {
    const [row] = await test.query<{ id: string }>(append, ['pruned', '{}'])
    await test.query("DELETE FROM pgbus_stream_messages WHERE stream = 'pruned'")
    await test.query('INSERT INTO pgbus_stream_marks VALUES ($1, $2)', ['pruned', row!.id])
    t.strictSame((await bounds(test, 'pruned')).slice(0, 2), [Number(row!.id), Number(row!.id)])
    const [next] = await test.query<{ id: string }>(append, ['pruned', '{}'])
    t.strictSame((await bounds(test, 'pruned')).slice(0, 2), [Number(row!.id), Number(next!.id)])
  })

  t.test('when a name is empty or too long, then it is refused', async t => {
    for (const name of ['', 'x'.repeat(256), 'ü'.repeat(128)]) {
      await t.rejects(test.query(append, [name, '{}']), { code: '23514' })
      await t.rejects(test.query(pend, [name, '{}']), { code: '23514' })
    }
  })
})

t.test('given a broadcast within a transaction', async t => {
  const test = await createDatabase(t)
  t.beforeEach(() => test.query('TRUNCATE pgbus_stream_messages'))

  t.test(
    'when it commits, then its messages are there in the order given and nothing is pending',
    async t => {
      const [client] = await sessions(t, test, 1)
      const heard = await listen(t, test.url, channelOf('a'))
      await inTransaction(
        client!,
        [pend, ['a', '{"n":1}']],
        [pend, ['b', '{"n":2}']],
        [pend, ['a', '{"n":3}']],
      )
      await waitFor(() => heard.length === 1)
      const rows = await stored(test)
      t.strictSame(
        rows.filter(row => row.stream === 'a').map(row => row.n),
        [1, 3],
      )
      t.strictSame(
        rows.filter(row => row.stream === 'b').map(row => row.n),
        [2],
      )
      t.strictSame(await test.query('SELECT 1 FROM pgbus_stream_pending'), [])
    },
  )

  t.test('when it rolls back, wholly or to a savepoint, then only what stayed is there', async t => {
    const [client] = await sessions(t, test, 1)
    await client!.query('BEGIN')
    await client!.query(pend, ['a', '{"n":1}'])
    await client!.query('ROLLBACK')
    await inTransaction(
      client!,
      [pend, ['a', '{"n":2}']],
      ['SAVEPOINT s'],
      [pend, ['a', '{"n":3}']],
      ['ROLLBACK TO SAVEPOINT s'],
      ['SAVEPOINT s2'],
      [pend, ['a', '{"n":4}']],
      ['RELEASE SAVEPOINT s2'],
    )
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [2, 4],
    )
  })

  t.test('when it stays open, then other broadcasters of the stream do not wait', async t => {
    const [holder, other] = await sessions(t, test, 2)
    await holder!.query('BEGIN')
    await holder!.query(pend, ['a', '{"n":1}'])
    await other!.query("SET lock_timeout = '200ms'")
    await other!.query(append, ['a', '{"n":2}'])
    await holder!.query('COMMIT')
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [2, 1],
      'the id is taken at commit',
    )
  })

  t.test('when it makes its constraints immediate and goes on, then nothing is lost', async t => {
    const [client] = await sessions(t, test, 1)
    await inTransaction(
      client!,
      [pend, ['a', '{"n":1}']],
      ['SET CONSTRAINTS ALL IMMEDIATE'],
      [pend, ['a', '{"n":2}']],
    )
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [1, 2],
    )
  })

  t.test('when another transaction fails to commit, then its pending rows stay its own', async t => {
    const [a, b] = await sessions(t, test, 2)
    await a!.query('BEGIN')
    await a!.query(pend, ['a', '{"n":1}'])
    await inTransaction(b!, [pend, ['a', '{"n":2}']])
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [2],
    )
    await a!.query('ROLLBACK')
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [2],
    )
  })

  t.test('when a row was left behind with triggers off, then nobody else sends it', async t => {
    const [client] = await sessions(t, test, 1)
    await inTransaction(client!, ["SET LOCAL session_replication_role = 'replica'"], [pend, ['a', '{"n":1}']])
    await test.query(pend, ['a', '{"n":2}'])
    t.strictSame(
      (await stored(test)).map(row => row.n),
      [2],
    )
    await test.query('TRUNCATE pgbus_stream_pending')
  })

  t.test(
    'when two transactions broadcast to the same streams in opposite order, then neither deadlocks',
    async t => {
      const [a, b] = await sessions(t, test, 2)
      for (let round = 0; round < 30; round += 1) {
        await Promise.all([
          inTransaction(a!, [pend, ['x', '{}']], [pend, ['y', '{}']]),
          inTransaction(b!, [pend, ['y', '{}']], [pend, ['x', '{}']]),
        ])
      }
      t.equal((await stored(test)).length, 120)
    },
  )

  t.test('when one transaction broadcasts very often, then it ends', async t => {
    // Often enough for quadratic work to run into the timeout.
    const [client] = await sessions(t, test, 1)
    await client!.query(
      `INSERT INTO pgbus_stream_pending (stream, message) SELECT 'many', '{}' FROM generate_series(1, 60000)`,
    )
    t.equal((await stored(test)).length, 60_000)
  })
})

t.test('given writers of every kind and a reader that only asks for more', async t => {
  t.test(
    'when all run at once, then the reader sees every id, in order, and none appears behind it',
    async t => {
      const test = await createDatabase(t)
      const writers = await sessions(t, test, 8)
      let writing = true
      const wrote = Promise.all(
        writers.map(async (client, at) => {
          for (let n = 0; n < 40; n += 1) {
            const message = JSON.stringify({ n: at * 1_000 + n })
            if (at % 2 === 0) {
              await client.query(append, ['s', message])
            } else {
              // Holds its transaction open for a while after the broadcast, as applications do.
              await inTransaction(
                client,
                [pend, ['s', message]],
                [`SELECT pg_sleep(${randomInt(5) / 1_000})`],
              )
            }
          }
        }),
      ).finally(() => {
        writing = false
      })
      const seen: number[] = []
      const reader = await openSession(t, test.url)
      const read = async () => {
        const { rows } = await reader.query<{ id: string }>(
          "SELECT id FROM pgbus_stream_messages WHERE stream = 's' AND id > $1 ORDER BY id LIMIT 100",
          [seen.at(-1) ?? 0],
        )
        seen.push(...rows.map(row => Number(row.id)))
        return rows.length
      }
      while (writing) await read()
      await wrote
      while ((await read()) > 0);
      const all = (await stored(test)).map(row => row.id)
      t.equal(all.length, 320)
      t.strictSame(seen, all)
    },
  )
})
