import t from 'tap'
import { createDatabase, type TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { openSession } from './setup.ts'

/** Reading in groups: order within each group, whoever reads and whatever fails. */

const readers = ['read_grouped', 'read_grouped_rr', 'read_grouped_head'] as const
type Reader = (typeof readers)[number]

async function send(test: TestDatabase, queue: string, groups: string): Promise<void> {
  await test.query('SELECT pgmq.create($1)', [queue])
  for (const group of groups) {
    await test.query("SELECT pgmq.send($1::text, '{}'::jsonb, $2::jsonb)", [
      queue,
      group === '-' ? null : JSON.stringify({ 'x-pgmq-group': group }),
    ])
  }
}

async function read(
  source: { query(text: string, values: unknown[]): Promise<unknown> },
  reader: Reader,
  queue: string,
  quantity: number | null,
): Promise<number[]> {
  const result = await source.query(`SELECT * FROM pgmq.${reader}($1::text, 30, $2::int)`, [queue, quantity])
  const rows = (Array.isArray(result) ? result : (result as { rows: unknown[] }).rows) as { msg_id: string }[]
  return rows.map(row => Number(row.msg_id))
}

t.test('given messages of several groups', async t => {
  const test = await createDatabase(t)
  let count = 0
  const queue = async (groups: string) => {
    count += 1
    await send(test, `groups_${count}`, groups)
    return `groups_${count}`
  }

  t.test('when they are read, then each form takes them in its own order', async t => {
    const expected: Record<Reader, number[]> = {
      read_grouped: [1, 3, 6, 2],
      read_grouped_rr: [1, 2, 4, 3],
      read_grouped_head: [1, 2, 4],
    }
    for (const reader of readers) {
      t.strictSame(await read(test, reader, await queue('aba-ba'), 4), expected[reader], reader)
    }
  })

  t.test('when none or all are asked for, then none or all are read', async t => {
    const name = await queue('ab-a')
    for (const reader of readers) t.strictSame(await read(test, reader, name, 0), [])
    t.strictSame(await read(test, 'read_grouped', name, null), [1, 4, 2, 3])
  })

  t.test(
    'when the oldest of a group is in flight or delayed, then the group waits and others go on',
    async t => {
      for (const reader of readers) {
        const name = await queue('aab')
        await test.query('SELECT pgmq.set_vt($1::text, 1::bigint, 60)', [name])
        t.strictSame(await read(test, reader, name, 9), [3], reader)
      }
    },
  )

  t.test('when one in the middle is in flight, then those behind it wait', async t => {
    for (const reader of ['read_grouped', 'read_grouped_rr'] as const) {
      const name = await queue('aaa')
      await test.query('SELECT pgmq.set_vt($1::text, 2::bigint, 60)', [name])
      t.strictSame(await read(test, reader, name, 9), [1], reader)
      await test.query('SELECT pgmq.delete($1::text, array[1, 2]::bigint[])', [name])
      t.strictSame(await read(test, reader, name, 9), [3], reader)
    }
  })

  t.test('when the oldest fails again and again, then nobody passes it', async t => {
    const name = await queue('aa')
    for (let attempt = 1; attempt <= 3; attempt += 1) {
      t.strictSame(await read(test, 'read_grouped_head', name, 9), [1])
      t.strictSame(await read(test, 'read_grouped', name, 9), [])
      await test.query('SELECT pgmq.set_vt($1::text, 1::bigint, 0)', [name])
    }
    await test.query('SELECT pgmq.archive($1::text, 1::bigint)', [name])
    t.strictSame(await read(test, 'read_grouped', name, 9), [2])
  })

  t.test(
    'when another transaction has just read a group, then it is not read before that one ends',
    async t => {
      for (const reader of readers) {
        const name = await queue('aab')
        const other = await openSession(t, test.url)
        await other.query('BEGIN')
        t.strictSame(await read(other, reader, name, 1), [1])
        t.strictSame(await read(test, reader, name, 9), [3], reader)
        await other.query('COMMIT')
        t.strictSame(await read(test, reader, name, 9), [], 'the oldest is in flight')
      }
    },
  )

  t.test('when a reader looked before another one took the group, then it notices and leaves it', async t => {
    const name = await queue('aa')
    const [first, second] = [await openSession(t, test.url), await openSession(t, test.url)]
    // The second statement takes its snapshot, then waits for the table; the first one reads and commits meanwhile.
    await first.query('BEGIN')
    await first.query(`LOCK TABLE pgmq.q_${name} IN ACCESS EXCLUSIVE MODE`)
    const late = read(second, 'read_grouped', name, 9)
    await waitFor(async () => (await test.query('SELECT 1 FROM pg_locks WHERE NOT granted')).length > 0)
    t.strictSame(await read(first, 'read_grouped', name, 1), [1])
    await first.query('COMMIT')
    t.strictSame(await late, [])
  })

  t.test(
    'when equal groups of two queues are read at the same time, then neither stops the other',
    async t => {
      const [one, two] = [await queue('a'), await queue('a')]
      const other = await openSession(t, test.url)
      await other.query('BEGIN')
      t.strictSame(await read(other, 'read_grouped_rr', one, 9), [1])
      t.strictSame(await read(test, 'read_grouped_rr', two, 9), [1])
      await other.query('ROLLBACK')
    },
  )

  t.test('when the hiding time is a point in time, then it is that one', async t => {
    for (const reader of readers) {
      const name = await queue('a')
      t.match(
        await test.query(
          `SELECT msg_id, read_ct, vt = '2099-01-01T00:00:00Z' AS ok FROM pgmq.${reader}($1::text, '2099-01-01T00:00:00Z'::timestamptz, 1)`,
          [name],
        ),
        [{ msg_id: '1', read_ct: 1, ok: true }],
      )
    }
  })

  t.test('when reading waits, then it gives what comes, or looks once without time', async t => {
    for (const reader of readers) {
      const name = await queue('')
      t.strictSame(await test.query(`SELECT * FROM pgmq.${reader}_with_poll($1::text, 30, 5, 0)`, [name]), [])
      const waiting = test.query(`SELECT * FROM pgmq.${reader}_with_poll($1::text, 30, 5, 10, 20)`, [name])
      await send(test, name, 'a')
      t.equal((await waiting).length, 1, reader)
      await send(test, name, 'b')
      t.equal(
        (await test.query(`SELECT * FROM pgmq.${reader}_with_poll($1::text, now() + '30 s', 5, 0)`, [name]))
          .length,
        1,
      )
    }
  })

  t.test('when an index is asked for, then it is there once, for one queue or all', async t => {
    const name = await queue('a')
    await test.query('SELECT pgmq.create_fifo_index($1)', [name])
    await test.query('SELECT pgmq.create_fifo_indexes_all()')
    const rows = await test.query<{ indexdef: string }>(
      'SELECT indexdef FROM pg_indexes WHERE indexname = $1',
      [`q_${name}_fifo_idx`],
    )
    t.match(rows, [{ indexdef: /USING gin \(headers\)$/ }])
    t.equal((await test.query("SELECT 1 FROM pg_indexes WHERE indexname LIKE '%_fifo_idx'")).length, count)
  })
})
