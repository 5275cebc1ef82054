import t from 'tap'
import { sqlState } from '../../lib/db/database.ts'
import {
  archiveMany,
  type ClaimManyRow,
  type ClaimRow,
  claim,
  claimMany,
  extend,
  type MessageIdRow,
  type SendItem,
  sendMany,
  type Token,
} from '../../lib/pgmq/statements.ts'
import { type Bench, setup } from '../pgmq/setup.ts'

/**
 * One list of cases, run against the functions that other clients call and against our own statements. Both must
 * leave the same rows, counters and errors behind. Only the order of messages with different due times is ours.
 */

interface Read extends Token {
  message: unknown
  headers: unknown
}

interface Implementation {
  send(queue: string, items: SendItem[]): Promise<number[]>
  read(queue: string, seconds: number, quantity: number): Promise<Read[]>
  archive(queue: string, tokens: Token[]): Promise<number[]>
  extend(queue: string, tokens: Token[], seconds: number): Promise<number[]>
}

const sorted = (ids: number[]) => ids.toSorted((a, b) => a - b)

function functions(bench: Bench): Implementation {
  const query = bench.test.query
  const idsOf = async (text: string, values: unknown[]) =>
    (await query<{ id: string }>(text, values)).map(row => Number(row.id))
  return {
    async send(queue, items) {
      const ids: number[] = []
      for (const { message, headers, delayMs } of items) {
        const delay = new Date(Date.now() + delayMs)
        ids.push(
          ...(await (delayMs === 0
            ? idsOf('SELECT pgmq.send($1::text, $2::jsonb, $3::jsonb) AS id', [queue, message, headers])
            : idsOf('SELECT pgmq.send($1::text, $2::jsonb, $3::jsonb, $4::timestamptz) AS id', [
                queue,
                message,
                headers,
                delay,
              ]))),
        )
      }
      return ids
    },
    async read(queue, seconds, quantity) {
      const rows = await query<{ msg_id: string; read_ct: number; message: unknown; headers: unknown }>(
        'SELECT * FROM pgmq.read($1::text, $2::int, $3::int)',
        [queue, seconds, quantity],
      )
      return rows.map(row => ({
        msgId: Number(row.msg_id),
        readCount: row.read_ct,
        message: row.message,
        headers: row.headers,
      }))
    },
    archive: (queue, tokens) =>
      idsOf('SELECT pgmq.archive($1::text, $2::bigint[]) AS id', [queue, tokens.map(token => token.msgId)]),
    extend: (queue, tokens, seconds) =>
      idsOf('SELECT msg_id AS id FROM pgmq.set_vt($1::text, $2::bigint[], $3::int)', [
        queue,
        tokens.map(token => token.msgId),
        seconds,
      ]),
  }
}

function batchFunctions(bench: Bench): Implementation {
  return {
    ...functions(bench),
    async send(queue, items) {
      if (items.length === 0) return []
      const rows = await bench.test.query<{ id: string }>(
        `SELECT pgmq.send_batch($1::text, (SELECT array_agg(m::jsonb ORDER BY n) FROM unnest($2::text[]) WITH ORDINALITY AS x (m, n)),
           (SELECT array_agg(h::jsonb ORDER BY n) FROM unnest($3::text[]) WITH ORDINALITY AS x (h, n)), $4::int) AS id`,
        [queue, items.map(i => i.message), items.map(i => i.headers), (items[0]?.delayMs ?? 0) / 1_000],
      )
      return rows.map(row => Number(row.id))
    },
  }
}

function statements(bench: Bench): Implementation {
  const read = (rows: ClaimRow[]): Read[] =>
    rows
      .filter(row => row.msg_id !== null)
      .map(row => ({
        msgId: row.msg_id!,
        readCount: row.read_ct!,
        message: row.message === null ? null : JSON.parse(row.message),
        headers: row.headers === null ? null : JSON.parse(row.headers),
      }))
  const idsOf = (rows: MessageIdRow[]) => rows.map(row => row.msg_id)
  return {
    send: async (queue, items) => idsOf(await bench.run<MessageIdRow>(sendMany(queue, items))),
    read: async (queue, seconds, quantity) =>
      read(await bench.run<ClaimRow>(claim(queue, seconds * 1_000, quantity))),
    archive: async (queue, tokens) => idsOf(await bench.run<MessageIdRow>(archiveMany(queue, tokens, queue))),
    extend: async (queue, tokens, seconds) =>
      idsOf(await bench.run<MessageIdRow>(extend(queue, tokens, seconds * 1_000))),
  }
}

function manyStatements(bench: Bench): Implementation {
  return {
    ...statements(bench),
    read: async (queue, seconds, quantity) => {
      const rows = await bench.run<ClaimManyRow>(claimMany([queue], quantity, seconds * 1_000))
      if (rows.some(row => row.state === 'missing'))
        throw Object.assign(new Error('missing'), { code: '42P01' })
      return statements({ ...bench, run: async <R>() => rows as R[] }).read(queue, seconds, quantity)
    },
  }
}

const implementations = {
  'the functions': functions,
  'the batch functions': batchFunctions,
  'our statements': statements,
  'our claim of many': manyStatements,
}

const plain = (n: number, delayMs = 0): SendItem => ({
  message: JSON.stringify({ n }),
  headers: null,
  delayMs,
})

/** What a case leaves behind, without what depends on the clock. */
async function state(bench: Bench, queue: string): Promise<unknown> {
  const columns = `msg_id::int, read_ct, message, headers, last_read_at IS NOT NULL AS read, vt > clock_timestamp() AS hidden,
       round(extract(epoch FROM vt - clock_timestamp()) / 10)::int AS due`
  return {
    waiting: await bench.test.query(`SELECT ${columns} FROM pgmq.q_${queue} ORDER BY msg_id`),
    archived: await bench.test.query(
      `SELECT ${columns}, archived_at IS NOT NULL AS at FROM pgmq.a_${queue} ORDER BY msg_id`,
    ),
  }
}

interface Case {
  title: string
  run(use: Implementation, queue: string, bench: Bench): Promise<unknown>
  expected: unknown
}

const cases: Case[] = [
  {
    title: 'when one message is sent and read, then it is charged and hidden',
    run: async (use, queue) => {
      const sent = await use.send(queue, [
        { message: '{"a":[1,"x",null]}', headers: '{"h":true}', delayMs: 0 },
      ])
      return { sent, read: await use.read(queue, 30, 5), again: await use.read(queue, 30, 5) }
    },
    expected: {
      sent: [1],
      read: [{ msgId: 1, readCount: 1, message: { a: [1, 'x', null] }, headers: { h: true } }],
      again: [],
    },
  },
  {
    title: 'when many are sent, then ids are in input order and messages are read in that order',
    run: async (use, queue) => {
      const sent = await use.send(
        queue,
        [1, 2, 3, 4, 5].map(n => plain(n)),
      )
      return {
        sent,
        read: (await use.read(queue, 30, 3)).map(r => r.message),
        rest: (await use.read(queue, 30, 9)).map(r => r.msgId),
      }
    },
    expected: { sent: [1, 2, 3, 4, 5], read: [{ n: 1 }, { n: 2 }, { n: 3 }], rest: [4, 5] },
  },
  {
    title: 'when a message is delayed, then it cannot be read',
    run: async (use, queue) => {
      await use.send(queue, [plain(1, 60_000)])
      return use.read(queue, 30, 5)
    },
    expected: [],
  },
  {
    title: 'when a message was due before it was sent, then it can be read',
    run: async (use, queue) => {
      await use.send(queue, [plain(1, -60_000)])
      return (await use.read(queue, 30, 5)).length
    },
    expected: 1,
  },
  {
    title: 'when the hiding time is over, then the next read is charged too',
    run: async (use, queue) => {
      await use.send(queue, [plain(1)])
      await use.read(queue, 0, 1)
      await use.read(queue, 0, 1)
      return (await use.read(queue, 30, 1)).map(r => r.readCount)
    },
    expected: [3],
  },
  {
    title: 'when none are asked for, then none are charged',
    run: async (use, queue) => {
      await use.send(queue, [plain(1)])
      return use.read(queue, 30, 0)
    },
    expected: [],
  },
  {
    title: 'when a negative number is asked for, then it fails or gives nothing, and none are charged',
    run: async (use, queue) => {
      await use.send(queue, [plain(1)])
      return (await use.read(queue, 30, -1).catch(() => [])).length
    },
    expected: 0,
  },
  {
    title: 'when messages are archived, then those that were there are told',
    run: async (use, queue) => {
      await use.send(queue, [plain(1), plain(2), plain(3)])
      const tokens = await use.read(queue, 30, 2)
      return sorted(await use.archive(queue, [...tokens, { msgId: 77, readCount: 1 }]))
    },
    expected: [1, 2],
  },
  {
    title: 'when visibility is prolonged, then those that were there are told and the read count stays',
    run: async (use, queue) => {
      await use.send(queue, [plain(1), plain(2)])
      const tokens = await use.read(queue, 30, 2)
      return sorted(await use.extend(queue, [...tokens, { msgId: 77, readCount: 1 }], 90))
    },
    expected: [1, 2],
  },
  {
    title: 'when another client stored SQL NULL, then it is read as such',
    run: async (use, queue, bench) => {
      await bench.test.query(`INSERT INTO pgmq.q_${queue} (vt) VALUES (clock_timestamp())`)
      return use.read(queue, 30, 1)
    },
    expected: [{ msgId: 1, readCount: 1, message: null, headers: null }],
  },
  {
    title: 'when a message is not JSON, then the error is the same and nothing is stored',
    run: (use, queue) => use.send(queue, [{ message: '{oops', headers: null, delayMs: 0 }]).catch(sqlState),
    expected: '22P02',
  },
  {
    title: 'when the queue does not exist, then the error is the same',
    run: async use => [
      await use.send('nothing', [plain(1)]).catch(sqlState),
      await use.read('nothing', 1, 1).catch(sqlState),
      await use.archive('nothing', [{ msgId: 1, readCount: 1 }]).catch(sqlState),
      await use.extend('nothing', [{ msgId: 1, readCount: 1 }], 1).catch(sqlState),
    ],
    expected: ['42P01', '42P01', '42P01', '42P01'],
  },
  {
    title: 'when nothing is given, then nothing happens',
    run: async (use, queue) => [
      await use.send(queue, []),
      await use.archive(queue, []),
      await use.extend(queue, [], 1),
    ],
    expected: [[], [], []],
  },
]

t.test('given the functions of PGMQ and our statements', async t => {
  const bench = await setup(t)
  for (const [at, { title, run, expected }] of cases.entries()) {
    t.test(title, async t => {
      const states: unknown[] = []
      for (const [name, implementation] of Object.entries(implementations)) {
        const queue = `case_${at}_${states.length}`
        await bench.queues.ensurePhysical(queue, 'job')
        t.strictSame(await run(implementation(bench), queue, bench), expected, name)
        states.push(await state(bench, queue))
      }
      for (const other of states.slice(1)) t.strictSame(other, states[0], 'the same rows are left')
    })
  }

  t.test('when one sends and the other reads and archives, then they share the queue', async t => {
    const [theirs, ours] = [functions(bench), statements(bench)]
    for (const [at, [sender, reader]] of [
      [theirs, ours],
      [ours, theirs],
    ].entries()) {
      const queue = `shared_${at}`
      await bench.queues.ensurePhysical(queue, 'job')
      await sender!.send(queue, [plain(1), plain(2)])
      const tokens = await reader!.read(queue, 30, 2)
      t.strictSame(
        tokens.map(token => token.message),
        [{ n: 1 }, { n: 2 }],
      )
      t.strictSame(sorted(await sender!.archive(queue, tokens)), [1, 2])
    }
  })
})
