import t from 'tap'
import type { Statement } from '../../lib/db/database.ts'
import {
  archiveMany,
  type BuryItem,
  buryMany,
  type ClaimManyRow,
  type ClaimRow,
  claim,
  claimMany,
  type ExtendRow,
  extend,
  type MessageIdRow,
  makeVisible,
  release,
  retryMany,
  type SendItem,
  sendChunks,
  sendMany,
} from '../../lib/pgmq/statements.ts'
import type { TestContext } from '../support/database.ts'
import { type Bench, openSession, setup } from './setup.ts'

const queue = 'pgbus_work'
const deadLetters = 'pgbus_work_dlq'

interface Row {
  msg_id: string
  read_ct: number
  message: unknown
  headers: unknown
  /** Milliseconds until it is visible. */
  due: number
}

async function prepare(t: TestContext): Promise<Bench> {
  const bench = await setup(t)
  await bench.queues.ensurePhysical(queue, 'job')
  await bench.queues.ensurePhysical(deadLetters, 'dlq')
  return bench
}

function item(n: number, delayMs = 0): SendItem {
  return { message: JSON.stringify({ n }), headers: null, delayMs }
}

async function send(bench: Bench, count: number, delayMs = 0): Promise<number[]> {
  const items = Array.from({ length: count }, (_, n) => item(n, delayMs))
  return (await bench.run<MessageIdRow>(sendMany(queue, items))).map(row => row.msg_id)
}

async function take(bench: Bench, quantity: number, visibilityMs = 30_000) {
  const rows = await bench.run<ClaimRow>(claim(queue, visibilityMs, quantity))
  return rows.filter(row => row.msg_id !== null).map(row => ({ msgId: row.msg_id!, readCount: row.read_ct! }))
}

function stored(bench: Bench, table = `q_${queue}`): Promise<Row[]> {
  return bench.test.query<Row>(
    `SELECT msg_id, read_ct, message, headers, extract(epoch FROM vt - clock_timestamp())::float8 * 1000 AS due FROM pgmq.${table} ORDER BY msg_id`,
  )
}

async function ids(bench: Bench, statement: Statement): Promise<number[]> {
  return (await bench.run<MessageIdRow>(statement)).map(row => row.msg_id).sort((a, b) => a - b)
}

/** Makes every message visible, as time would. */
async function expire(bench: Bench): Promise<void> {
  await bench.test.query(`UPDATE pgmq.q_${queue} SET vt = clock_timestamp() - interval '1 second'`)
}

const failure = { errorClass: 'Error', errorMessage: 'no', backtrace: 'at x' }

t.test('given messages to send', async t => {
  const bench = await prepare(t)

  t.test('when many are sent at once, then ids come back in input order', async t => {
    const items = Array.from({ length: 1_000 }, (_, n) => item(n, n % 7 === 0 ? 60_000 : 0))
    const sent = (await bench.run<MessageIdRow>(sendMany(queue, items))).map(row => row.msg_id)
    t.strictSame(
      sent,
      sent.toSorted((a, b) => a - b),
    )
    const rows = await stored(bench)
    t.strictSame(
      rows.map(row => [Number(row.msg_id), row.message]),
      items.map((i, n) => [sent[n], JSON.parse(i.message)]),
    )
    t.ok(
      rows.every((row, n) => (n % 7 === 0 ? row.due > 50_000 : row.due <= 0)),
      'each has its own delay',
    )
  })

  t.test('when payloads are awkward, then they arrive unchanged', async t => {
    await bench.test.query(`TRUNCATE pgmq.q_${queue}`)
    const messages = [
      '{"a":"\\"quoted\\", {braces}, NULL"}',
      '[1,2]',
      '"text"',
      'null',
      '{"b":"\\\\ \\n \\u2028 💥"}',
      '12345678901234567890',
    ]
    await bench.run(
      sendMany(
        queue,
        messages.map(message => ({ message, headers: '{"h":1}', delayMs: 0 })),
      ),
    )
    const rows = await bench.run<ClaimRow>(claim(queue, 1_000, 10))
    t.strictSame(
      rows.map(row => JSON.stringify(JSON.parse(row.message!))),
      messages.map(m => JSON.stringify(JSON.parse(m))),
    )
    t.equal(rows.at(-1)?.message, '12345678901234567890', 'the text keeps digits that a double would lose')
    t.equal(rows[0]?.headers, '{"h": 1}')
  })

  t.test('when a list is longer than one statement takes, then it is split by rows and by bytes', async t => {
    t.strictSame(
      sendChunks(Array.from({ length: 2_500 }, (_, n) => item(n))).map(c => c.length),
      [1_000, 1_000, 500],
    )
    const large = { message: 'x'.repeat(5 * 1024 * 1024), headers: null }
    t.strictSame(
      sendChunks([large, large, large]).map(c => c.length),
      [1, 1, 1],
    )
    t.strictSame(sendChunks([]), [])
  })
})

t.test('given a queue of 200 000 delayed messages and a few that are due', async t => {
  const bench = await prepare(t)
  await bench.test.query(
    `INSERT INTO pgmq.q_${queue} (vt, message) SELECT now() + interval '1 hour', '{}' FROM generate_series(1, 200000)`,
  )
  await send(bench, 3)

  t.test(
    'when it is worked on, then no statement scans a table, and a claim does not visit the delayed',
    async t => {
      const client = await openSession(t, bench.test.url, '-c plan_cache_mode=force_custom_plan')
      const run = async ({ text, values }: Statement) => (await client.query(text, values)).rows
      await client.query('BEGIN')
      await run(claim(queue, 0, 10))
      await run(claimMany([queue], 10, 0))
      const token = { msgId: 200_001, readCount: 2 }
      t.strictSame(await run(extend(queue, [token], 0)), [{ msg_id: '200001', state: 'extended' }])
      t.equal((await run(makeVisible(queue, [token]))).length, 1)
      t.equal((await run(retryMany(queue, [{ ...token, delayMs: 0, ...failure }], 'work'))).length, 1)
      t.equal((await run(release(queue, [token], null))).length, 1)
      t.equal((await run(archiveMany(queue, [{ msgId: 200_001, readCount: 1 }], 'work'))).length, 1)
      const buried = [{ msgId: 200_002, readCount: 2, deadLetter: '{}' }]
      t.equal((await run(buryMany(queue, deadLetters, buried, 'work'))).length, 1)
      const { rows } = await client.query<{ scans: number; fetched: number }>(
        `SELECT sum(seq_scan)::int AS scans, sum(idx_tup_fetch)::int AS fetched
         FROM pg_stat_xact_user_tables WHERE relname = ANY ($1)`,
        [[`q_${queue}`, `a_${queue}`, `q_${deadLetters}`]],
      )
      await client.query('ROLLBACK')
      t.equal(rows[0]?.scans, 0)
      t.ok(rows[0]!.fetched < 60, `fetched ${rows[0]?.fetched} rows`)
    },
  )

  t.test(
    'when the queue has just grown, then the kept statement does not keep a plan for a small one',
    async t => {
      await bench.test.query(`TRUNCATE pgmq.q_${queue}`)
      await bench.test.query(`ALTER TABLE pgmq.q_${queue} SET (autovacuum_enabled = off)`)
      await bench.test.query(`VACUUM ANALYZE pgmq.q_${queue}`)
      for (let n = 0; n < 40; n += 1) await take(bench, 10)
      await bench.test.query(
        `INSERT INTO pgmq.q_${queue} (vt, message) SELECT now(), '{}' FROM generate_series(1, 200000)`,
      )
      const { rows: settings } = await bench.db.query<{ plan_cache_mode: string }>('SHOW plan_cache_mode')
      t.equal(settings[0]?.plan_cache_mode, 'force_custom_plan')
      await take(bench, 10)
      const started = performance.now()
      for (let n = 0; n < 20; n += 1) t.equal((await take(bench, 10)).length, 10)
      t.ok(
        (performance.now() - started) / 20 < 60,
        'a scan and sort of the table would take hundreds of milliseconds',
      )
    },
  )
})

t.test('given waiting messages', async t => {
  const bench = await prepare(t)
  t.beforeEach(() => bench.test.query(`TRUNCATE pgmq.q_${queue}`))

  t.test(
    'when they are claimed, then the longest due come first, equally due ones by id, and each is charged a read',
    async t => {
      const sent = await send(bench, 5)
      await bench.test.query(`UPDATE pgmq.q_${queue} SET vt = vt - interval '1 minute' WHERE msg_id = $1`, [
        sent[3],
      ])
      const rows = await bench.run<ClaimRow>(claim(queue, 30_000, 4))
      t.strictSame(
        rows.map(row => row.msg_id),
        [sent[3], sent[0], sent[1], sent[2]],
      )
      t.ok(rows.every(row => row.read_ct === 1 && row.enqueued_at instanceof Date))
      const due = (await stored(bench)).filter(row => row.read_ct === 1).map(row => row.due)
      t.ok(due.every(ms => ms > 25_000 && ms <= 30_000))
    },
  )

  t.test('when two claim at once, then no message is given to both', async t => {
    const sent = await send(bench, 200)
    const claims = await Promise.all(Array.from({ length: 20 }, () => take(bench, 10)))
    t.strictSame(
      claims
        .flat()
        .map(token => token.msgId)
        .sort((a, b) => a - b),
      sent,
    )
  })

  t.test('when nothing is due, then one row tells when the next comes due', async t => {
    t.strictSame(await bench.run<ClaimRow>(claim(queue, 1_000, 5)), [
      { msg_id: null, read_ct: null, enqueued_at: null, message: null, headers: null, due_in_ms: null },
    ])
    await send(bench, 2, 60_000)
    await send(bench, 1, 2_000)
    const [row] = await bench.run<ClaimRow>(claim(queue, 1_000, 5))
    t.equal(row?.msg_id, null)
    t.ok(row!.due_in_ms! > 1_000 && row!.due_in_ms! <= 2_000, String(row?.due_in_ms))
  })

  t.test('when fewer are due than asked for, then the rows tell it too; when as many, then not', async t => {
    await send(bench, 2)
    await send(bench, 1, 60_000)
    const rows = await bench.run<ClaimRow>(claim(queue, 1_000, 5))
    t.strictSame(
      rows.map(row => row.due_in_ms! > 50_000 && row.due_in_ms! <= 60_000),
      [true, true],
    )
    await expire(bench)
    t.strictSame(
      (await bench.run<ClaimRow>(claim(queue, 1_000, 2))).map(row => row.due_in_ms),
      [null, null],
    )
  })

  t.test('when the next one is due in years or never, then a day is told', async t => {
    await send(bench, 1, 400 * 86_400_000)
    await bench.test.query(`INSERT INTO pgmq.q_${queue} (vt, message) VALUES ('infinity', '{}')`)
    t.equal((await bench.run<ClaimRow>(claim(queue, 1_000, 1)))[0]?.due_in_ms, 86_400_000)
    t.ok((await bench.run<ClaimManyRow>(claimMany([queue], 1, 1_000)))[0]!.due_in_ms! >= 86_399_000)
  })
})

t.test('given three queues', async t => {
  const bench = await setup(t)
  const tables = ['pgbus_a', 'pgbus_b', 'pgbus_c']
  for (const table of tables) await bench.queues.ensurePhysical(table, 'job')
  const fill = async (counts: number[]) => {
    for (const [at, table] of tables.entries()) {
      await bench.test.query(`TRUNCATE pgmq.q_${table}`)
      const items = Array.from({ length: counts[at]! }, (_, n) => item(n))
      if (items.length > 0) await bench.run(sendMany(table, items))
    }
  }
  const invisible = async () =>
    Promise.all(
      tables.map(async table =>
        Number(
          (
            await bench.test.query<{ n: string }>(
              `SELECT count(*) AS n FROM pgmq.q_${table} WHERE read_ct > 0`,
            )
          )[0]!.n,
        ),
      ),
    )

  t.test(
    'when 5 are claimed of three full ones, then exactly 5 of the first, in order, and none else is hidden',
    async t => {
      await fill([10, 10, 10])
      const rows = await bench.run<ClaimManyRow>(claimMany(tables, 5, 30_000))
      t.strictSame(
        rows.map(row => [row.physical, row.state]),
        Array(5).fill(['pgbus_a', 'ok']),
      )
      t.strictSame(
        rows.map(row => row.msg_id),
        rows.map(row => row.msg_id).toSorted((a, b) => a! - b!),
      )
      t.strictSame(await invisible(), [5, 0, 0])
    },
  )

  t.test('when 7 are claimed of 5, 5 and 5, then 5 and 2', async t => {
    await fill([5, 5, 5])
    const rows = await bench.run<ClaimManyRow>(claimMany(tables, 7, 30_000))
    t.strictSame(
      rows.map(row => row.physical),
      [...Array(5).fill('pgbus_a'), ...Array(2).fill('pgbus_b')],
    )
    t.strictSame(await invisible(), [5, 2, 0])
  })

  t.test('when the list has another order, then it is followed', async t => {
    await fill([1, 1, 1])
    const rows = await bench.run<ClaimManyRow>(claimMany(['pgbus_c', 'pgbus_a'], 5, 30_000))
    t.strictSame(
      rows.map(row => row.physical),
      ['pgbus_c', 'pgbus_a', null],
    )
  })

  t.test('when one was dropped, then it is told and the others are read', async t => {
    await fill([2, 0, 2])
    const rows = await bench.run<ClaimManyRow>(claimMany(['pgbus_a', 'pgbus_gone', 'pgbus_c'], 10, 30_000))
    t.strictSame(
      rows.map(row => [row.physical, row.state, row.msg_id !== null]),
      [
        ['pgbus_a', 'ok', true],
        ['pgbus_a', 'ok', true],
        ['pgbus_gone', 'missing', false],
        ['pgbus_c', 'ok', true],
        ['pgbus_c', 'ok', true],
        [null, 'ok', false],
      ],
    )
  })

  t.test('when nothing is due, then the last row tells the earliest due time of all', async t => {
    await fill([0, 0, 0])
    await bench.run(sendMany('pgbus_a', [item(1, 60_000)]))
    await bench.run(sendMany('pgbus_c', [item(1, 3_000)]))
    const rows = await bench.run<ClaimManyRow>(claimMany(tables, 5, 30_000))
    t.equal(rows.length, 1)
    t.ok(rows[0]!.due_in_ms! > 2_000 && rows[0]!.due_in_ms! <= 3_000)
  })

  t.test('when an own claim is the next to come due, then it is not told', async t => {
    await fill([1, 0, 0])
    const rows = await bench.run<ClaimManyRow>(claimMany(tables, 5, 30_000))
    t.strictSame(
      rows.map(row => row.due_in_ms),
      [null, null],
    )
  })

  t.test('when a name is hostile, then it is only a missing table', async t => {
    const rows = await bench.run<ClaimManyRow>(claimMany(["a'; drop table pgmq.meta; --", '"'], 5, 1_000))
    t.strictSame(
      rows.map(row => row.state),
      ['missing', 'missing', 'ok'],
    )
    t.ok((await bench.queues.list()).length >= 3)
  })
})

t.test('given claimed messages', async t => {
  const bench = await prepare(t)
  t.beforeEach(async () => {
    await bench.test.query(
      `TRUNCATE pgmq.q_${queue}, pgmq.a_${queue}, pgmq.q_${deadLetters}, pgbus_failed_events`,
    )
  })

  t.test(
    'when they are archived, then they move with all columns and their failures are forgotten',
    async t => {
      await bench.run(sendMany(queue, [{ message: '{"n":1}', headers: '{"h":1}', delayMs: 0 }, item(2)]))
      await take(bench, 2)
      await bench.test.query(
        `INSERT INTO pgbus_failed_events (queue_name, msg_id) SELECT q, msg_id FROM pgmq.q_${queue}, unnest(ARRAY['work', 'other']) q`,
      )
      await expire(bench)
      const tokens = await take(bench, 2)
      t.strictSame(
        await ids(bench, archiveMany(queue, tokens, 'work')),
        tokens.map(token => token.msgId),
      )
      t.strictSame(await stored(bench), [])
      const [archived] = await bench.test.query<Record<string, unknown>>(
        `SELECT * FROM pgmq.a_${queue} ORDER BY msg_id`,
      )
      t.match(archived, {
        read_ct: 2,
        message: { n: 1 },
        headers: { h: 1 },
        last_read_at: Date,
        archived_at: Date,
      })
      const left = await bench.test.query<{ queue_name: string }>(
        'SELECT queue_name FROM pgbus_failed_events',
      )
      t.strictSame(
        left.map(row => row.queue_name),
        ['other', 'other'],
        'only those of this queue go',
      )
    },
  )

  t.test('when an archive is repeated because its reply was lost, then the same ids come back', async t => {
    await send(bench, 2)
    const tokens = await take(bench, 2)
    const first = await ids(bench, archiveMany(queue, tokens, 'work'))
    t.strictSame(await ids(bench, archiveMany(queue, tokens, 'work')), first)
    t.equal((await stored(bench, `a_${queue}`)).length, 2)
  })

  t.test(
    'when one failed, then the error is recorded with the message and the retry waits its time',
    async t => {
      await bench.run(sendMany(queue, [{ message: '{"n":1}', headers: '{"h":1}', delayMs: 0 }]))
      const tokens = await take(bench, 1)
      const items = tokens.map(token => ({ ...token, delayMs: 20_000, ...failure }))
      t.strictSame(
        await ids(bench, retryMany(queue, items, 'work')),
        tokens.map(token => token.msgId),
      )
      const [row] = await stored(bench)
      t.ok(row!.due > 15_000 && row!.due <= 20_000)
      t.equal(row!.read_ct, 1)
      await expire(bench)
      const again = (await take(bench, 1)).map(token => ({
        ...token,
        delayMs: 1,
        ...failure,
        errorMessage: 'again',
        backtrace: null,
      }))
      await bench.run(retryMany(queue, again, 'work'))
      const records = await bench.test.query(
        'SELECT queue_name, payload, headers, error_class, error_message, backtrace, retry_count FROM pgbus_failed_events',
      )
      t.strictSame(
        records,
        [
          {
            queue_name: 'work',
            payload: { n: 1 },
            headers: { h: 1 },
            error_class: 'Error',
            error_message: 'again',
            backtrace: null,
            retry_count: 1,
          },
        ],
        'one record, the newest error',
      )
      const [age] = await bench.test.query<{ utc: boolean }>(
        "SELECT abs(extract(epoch FROM failed_at - now() AT TIME ZONE 'UTC')) < 60 AS utc FROM pgbus_failed_events",
      )
      t.ok(age?.utc)
    },
  )

  t.test(
    'when one is hopeless, then it moves to the dead letters with its story and its record goes',
    async t => {
      await bench.run(
        sendMany(queue, [
          { message: '{"n":1}', headers: '{"h":1}', delayMs: 0 },
          { message: '{"n":2}', headers: null, delayMs: 0 },
          { message: '{"n":3}', headers: '[7]', delayMs: 0 },
        ]),
      )
      const tokens = await take(bench, 3)
      await bench.run(
        retryMany(
          queue,
          tokens.map(token => ({ ...token, delayMs: 0, ...failure })),
          'work',
        ),
      )
      const items: BuryItem[] = tokens.map(token => ({
        ...token,
        deadLetter: JSON.stringify({ msg_id: token.msgId }),
      }))
      t.strictSame(
        await ids(bench, buryMany(queue, deadLetters, items, 'work')),
        tokens.map(token => token.msgId),
      )
      t.strictSame(await stored(bench), [])
      const rows = await stored(bench, `q_${deadLetters}`)
      t.strictSame(
        rows.map(row => [row.message, row.headers, row.read_ct]),
        tokens.map((token, at) => [
          { n: at + 1 },
          { ...(at === 0 ? { h: 1 } : {}), pgbus_dead_letter: { msg_id: token.msgId } },
          0,
        ]),
      )
      t.strictSame(await bench.test.query('SELECT 1 FROM pgbus_failed_events'), [])
    },
  )

  t.test('when a lease is renewed, then it grows and never shrinks', async t => {
    await send(bench, 2)
    const tokens = await take(bench, 2, 60_000)
    t.strictSame(await bench.run<ExtendRow>(extend(queue, [tokens[0]!], 1_000)), [
      { msg_id: tokens[0]!.msgId, state: 'extended' },
    ])
    t.ok((await stored(bench)).every(row => row.due > 50_000))
    await bench.run(extend(queue, tokens, 120_000))
    t.ok((await stored(bench)).every(row => row.due > 110_000))
  })

  t.test(
    'when somebody holds a row, then its renewal is told as locked and the others are renewed at once',
    async t => {
      await send(bench, 3)
      const tokens = await take(bench, 3)
      const holder = await openSession(t, bench.test.url)
      await holder.query('BEGIN')
      await holder.query(`SELECT FROM pgmq.q_${queue} WHERE msg_id = $1 FOR UPDATE`, [tokens[1]!.msgId])
      const rows = await bench.run<ExtendRow>(extend(queue, tokens, 60_000))
      await holder.query('ROLLBACK')
      t.strictSame(
        rows.toSorted((a, b) => a.msg_id - b.msg_id).map(row => row.state),
        ['extended', 'locked', 'extended'],
      )
    },
  )

  t.test(
    'when they are given back unrun, then the read is not charged and they are first in line',
    async t => {
      const [old] = await send(bench, 1)
      await bench.test.query(`UPDATE pgmq.q_${queue} SET enqueued_at = now() - interval '1 hour'`)
      const tokens = await take(bench, 1)
      await send(bench, 3)
      t.strictSame(await ids(bench, release(queue, tokens, null)), [old])
      t.strictSame(await take(bench, 1), [{ msgId: old, readCount: 1 }])
    },
  )

  t.test('when they are given back with a delay, then they wait for it', async t => {
    await send(bench, 1)
    await bench.run(release(queue, await take(bench, 1), 10_000))
    const [row] = await stored(bench)
    t.equal(row!.read_ct, 0)
    t.ok(row!.due > 8_000 && row!.due <= 10_000)
  })

  t.test(
    'when their process died, then others may claim them at once, and the read stays charged',
    async t => {
      const [id] = await send(bench, 1)
      const tokens = await take(bench, 1)
      t.strictSame(await take(bench, 1), [])
      t.strictSame(await ids(bench, makeVisible(queue, tokens)), [id])
      t.strictSame(await take(bench, 1), [{ msgId: id, readCount: 2 }])
    },
  )

  t.test(
    'when another worker has claimed them since, then no statement of the old claim changes anything',
    async t => {
      await send(bench, 1)
      const old = await take(bench, 1)
      await expire(bench)
      const current = await take(bench, 1)
      t.equal(current[0]?.readCount, 2)
      const before = await bench.test.query(`SELECT * FROM pgmq.q_${queue}`)
      t.strictSame(await ids(bench, archiveMany(queue, old, 'work')), [])
      t.strictSame(
        await ids(
          bench,
          retryMany(
            queue,
            old.map(token => ({ ...token, delayMs: 0, ...failure })),
            'work',
          ),
        ),
        [],
      )
      t.strictSame(
        await ids(
          bench,
          buryMany(
            queue,
            deadLetters,
            old.map(token => ({ ...token, deadLetter: '{}' })),
            'work',
          ),
        ),
        [],
      )
      t.strictSame(await bench.run(extend(queue, old, 600_000)), [])
      t.strictSame(await ids(bench, release(queue, old, null)), [])
      t.strictSame(await ids(bench, makeVisible(queue, old)), [])
      t.strictSame(await bench.test.query(`SELECT * FROM pgmq.q_${queue}`), before)
      t.strictSame(await stored(bench, `q_${deadLetters}`), [])
      t.strictSame(await stored(bench, `a_${queue}`), [])
      t.strictSame(await bench.test.query('SELECT 1 FROM pgbus_failed_events'), [])
      t.strictSame(
        await ids(bench, archiveMany(queue, current, 'work')),
        [current[0]!.msgId],
        'the current one does',
      )
    },
  )

  t.test('when a list mixes both, then only the current ones come back', async t => {
    await send(bench, 3)
    const tokens = await take(bench, 3)
    const mixed = [{ ...tokens[2]!, readCount: 9 }, tokens[1]!, { msgId: 999_999, readCount: 1 }, tokens[0]!]
    t.strictSame(await ids(bench, archiveMany(queue, mixed, 'work')), [tokens[0]!.msgId, tokens[1]!.msgId])
  })
})

t.test('given the names of prepared statements', async t => {
  t.test(
    'when they are made for any queue and kind, then they are stable, distinct and short enough',
    async t => {
      const kinds: ((physical: string) => Statement)[] = [
        p => sendMany(p, []),
        p => claim(p, 1, 1),
        p => archiveMany(p, [], 'x'),
        p => retryMany(p, [], 'x'),
        p => buryMany(p, `${p.slice(0, 43)}_dlq`, [], 'x'),
        p => extend(p, [], 1),
        p => release(p, [], 1),
        p => makeVisible(p, []),
      ]
      const physicals = ['a', 'a'.repeat(47), `${'a'.repeat(46)}b`, `${'a'.repeat(46)}c`]
      const names = physicals.flatMap(p => kinds.map(kind => kind(p).name!))
      t.equal(new Set(names).size, names.length)
      t.ok(names.every(name => Buffer.byteLength(name) <= 63))
      t.strictSame(
        names,
        physicals.flatMap(p => kinds.map(kind => kind(p).name!)),
      )
    },
  )
})
