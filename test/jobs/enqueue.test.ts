import pg from 'pg'
import t from 'tap'
import { z } from 'zod'
import {
  EnqueueError,
  InvalidQueueNameError,
  PayloadTooLargeError,
  QueueNotFoundError,
  SerializationError,
} from '../../lib/core/errors.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import type { EnqueueOptions } from '../../lib/jobs/enqueue.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { type QueueRow, setup } from './support.ts'

const mail = defineJob<{ to: string }>({ name: 'enqueue-mail', queue: 'mails', priority: 3 }, () => undefined)

/** A client of the caller, with the driver's own parsers and types. */
async function connect(t: TestContext, url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  t.teardown(() => client.end())
  return client
}

t.test('given a job with options of its own', async t => {
  const { pgbus, rows } = await setup(t)

  t.test('when it is enqueued, then its queue is made and the message says all', async t => {
    const result = await pgbus.enqueue(mail, { to: 'ada' }, { headers: { trace: [1] }, jobId: 'mine' })
    t.same(result, { status: 'enqueued', jobId: 'mine', msgId: 1, queue: 'mails' })
    const [row] = await rows('pgbus_mails')
    t.match(row, {
      read_ct: 0,
      hidden: false,
      headers: { trace: [1] },
      message: {
        job_class: 'enqueue-mail',
        job_id: 'mine',
        priority: 3,
        queue_name: 'mails',
        arguments: [{ to: 'ada' }],
      },
    })
  })

  t.test('when it is enqueued by name, then the definition applies, and options win over it', async t => {
    const result = await pgbus.enqueue('enqueue-mail', { to: 'bob' }, { queue: 'Others', priority: 0 })
    t.match(result, { queue: 'others', msgId: 1, jobId: /^[0-9a-f-]{36}$/ })
    t.match((await rows('pgbus_others'))[0]?.message, { priority: 0 })
  })

  t.test('when nobody here defines it, then it is enqueued all the same', async t => {
    t.match(await pgbus.enqueue('enqueue-elsewhere', undefined), { queue: 'default' })
    t.match((await rows())[0]?.message, { arguments: [null], priority: null })
  })

  t.test('when the job itself is asked, then it uses the only open instance', async t => {
    t.match(await mail.enqueue({ to: 'eve' }), { queue: 'mails', msgId: 2 })
    const many = await mail.enqueueMany([{ args: { to: 'x' } }, { args: { to: 'y' }, queue: 'others' }])
    t.match(many, [
      { queue: 'mails', msgId: 3 },
      { queue: 'others', msgId: 2 },
    ])
    await t.rejects(mail.enqueueMany([{ args: { to: 'x' } }], { jobId: 'one' }), {
      name: 'TypeError',
      message: /jobId identifies one job/,
    })
  })
})

t.test('given options that are wrong', async t => {
  const { pgbus, db } = await setup(t)
  const statements = () => db.query('SELECT queue_name FROM pgmq.meta')
  const cases: [name: string, options: object, text: RegExp][] = [
    ['an unknown option', { dely: 1 }, /unknown option "dely"/],
    ['delay and runAt', { delay: 1, runAt: 1 }, /delay or runAt, not both/],
    ['a delay of words', { delay: 'soon' }, /delay must be a duration/],
    ['a negative delay', { delay: -1 }, /delay must be a duration/],
    ['an invalid date', { runAt: new Date(Number.NaN) }, /runAt must be a valid date/],
    ['a date of words', { runAt: 'tomorrow' }, /runAt must be a valid date/],
    ['a fractional priority', { priority: 0.5 }, /priority must be an integer/],
    ['an empty jobId', { jobId: '' }, /jobId must be/],
    ['headers that are a list', { headers: [] }, /headers must be an object/],
    ['a tx without query', { tx: {} }, /tx must be a connected client/],
  ]
  for (const [name, options, message] of cases) {
    t.test(`when there is ${name}, then a TypeError says so before any SQL`, async t => {
      await t.rejects(pgbus.enqueue('wrong', 1, options as EnqueueOptions), { name: 'TypeError', message })
      await t.rejects(pgbus.enqueueMany([{ job: 'wrong', args: 1, ...options }]), { name: 'TypeError' })
    })
  }

  t.test('when the time is more than a century away, then it is out of range', async t => {
    await t.rejects(pgbus.enqueue('wrong', 1, { delay: '5300w' }), RangeError)
    await t.rejects(pgbus.enqueue('wrong', 1, { runAt: '9999-01-01' }), RangeError)
  })

  t.test(
    'when a queue, a header or an argument cannot be stored, then it says so before any SQL',
    async t => {
      await t.rejects(pgbus.enqueue('wrong', 1, { queue: 'a-b' }), InvalidQueueNameError)
      await t.rejects(pgbus.enqueue('wrong', 1, { queue: 'a_dlq' }), InvalidQueueNameError)
      await t.rejects(
        pgbus.enqueue('wrong', 1, { headers: { when: new Date() } as never }),
        SerializationError,
      )
      await t.rejects(pgbus.enqueue('wrong', { user: { name: () => 1 } }), { message: /args\.user\.name/ })
      await t.rejects(pgbus.enqueue('wrong', 'x'.repeat(64 * 1024 * 1024)), PayloadTooLargeError)
      await t.rejects(pgbus.enqueue('', 1), TypeError)
      await t.rejects(pgbus.enqueue(undefined as never, 1), TypeError)
    },
  )

  t.test('when a schema refuses, then paths are named and values are not', async t => {
    const strict = defineJob(
      { name: 'enqueue-strict', schema: z.object({ user: z.object({ age: z.number().min(0) }) }) },
      () => undefined,
    )
    const call = strict.enqueue({ user: { age: -17 } }, { pgbus })
    await t.rejects(call, SerializationError)
    await t.rejects(call, {
      message: /^arguments of job "enqueue-strict" do not fit its schema: args\.user\.age: /,
    })
    await call.catch((error: Error) => t.notMatch(error.message, '17'))
  })

  t.test('when all of this is over, then nothing was written', async t => {
    t.same(await statements(), [])
  })
})

t.test('given a time to run at', async t => {
  const { pgbus, db } = await setup(t)
  const due = async (options: EnqueueOptions) => {
    const { msgId } = await pgbus.enqueue('later', 1, options)
    const [row] = await db.query<{ ms: number; at: Date; message: { scheduled_at: string | null } }>(
      'SELECT extract(epoch FROM vt - enqueued_at)::float8 * 1000 AS ms, vt AS at, message FROM pgmq.q_pgbus_default WHERE msg_id = $1',
      [msgId],
    )
    return row!
  }

  t.test(
    'when it is a delay, then it counts from the clock of the database, and is not rounded to seconds',
    async t => {
      const { ms, message } = await due({ delay: '1.5s' })
      t.ok(Math.abs(ms - 1_500) < 400, `${ms}`)
      t.match(message.scheduled_at, /^\d{4}-.*\.\d{9}Z$/)
      t.equal((await due({ delay: 0 })).message.scheduled_at, null)
    },
  )

  t.test('when it is a date, then it is met', async t => {
    const at = new Date(Date.now() + 86_400_000)
    for (const runAt of [at, at.toISOString(), at.getTime()]) {
      const row = await due({ runAt })
      t.ok(Math.abs(row.at.getTime() - at.getTime()) < 100, `${row.at.toISOString()} for ${at.toISOString()}`)
    }
  })

  t.test('when the clock of this host is wrong, then the date is met by that of the database', async t => {
    const now = Date.now
    const at = new Date(now() + 7_200_000)
    Date.now = () => now() + 3_600_000
    const row = await due({ runAt: at }).finally(() => {
      Date.now = now
    })
    t.ok(Math.abs(row.at.getTime() - at.getTime()) < 100)
  })

  t.test('when it is in the past, then it is now', async t => {
    const { ms } = await due({ runAt: new Date(0) })
    t.ok(Math.abs(ms) < 1_000, `${ms}`)
  })
})

t.test('given priorities', async t => {
  const { pgbus, rows } = await setup(t, { priority: { levels: 3, default: 1 } })

  t.test('when jobs are enqueued, alone or many, then each lies in the table of its level', async t => {
    await pgbus.enqueue('p', 'default')
    await pgbus.enqueueMany([
      { job: 'p', args: 'urgent', priority: 0 },
      { job: 'p', args: 'clamped', priority: 9 },
    ])
    const args = async (table: string) => (await rows(table)).map(row => row.message.arguments)
    t.same(await args('pgbus_default_p0'), [['urgent']])
    t.same(await args('pgbus_default_p1'), [['default']])
    t.same(await args('pgbus_default_p2'), [['clamped']])
  })
})

t.test('given many jobs', async t => {
  const { pgbus, rows, db } = await setup(t)

  t.test('when the list mixes queues and delays, then ids come in list order', async t => {
    const items = Array.from({ length: 2_500 }, (_, i) => ({
      job: i % 2 ? 'a' : mail,
      args: i,
      ...(i % 3 ? {} : { delay: '1h' }),
    }))
    const results = await pgbus.enqueueMany(items)
    const stored = new Map<string, QueueRow>()
    for (const table of ['pgbus_default', 'pgbus_mails']) {
      for (const row of await rows(table)) stored.set(`${table}:${row.msg_id}`, row)
    }
    t.equal(stored.size, 2_500)
    const wrong = results.filter((result, i) => {
      const row = stored.get(`pgbus_${result.queue}:${result.msgId}`)
      const args = row?.message.arguments as unknown[] | undefined
      return args?.[0] !== i || row?.hidden !== (i % 3 === 0) || row?.message.job_id !== result.jobId
    })
    t.same(wrong, [])
  })

  t.test('when one is refused, then none is stored', async t => {
    await t.rejects(
      pgbus.enqueueMany([
        { job: 'none', args: 1 },
        { job: 'none', args: Number.NaN },
      ]),
      SerializationError,
    )
    await t.rejects(pgbus.enqueueMany([{ job: 'none', args: 1, tx: {} } as never]), TypeError)
    await pgbus.queues.ensure(['first', 'second'])
    await db.query("ALTER TABLE pgmq.q_pgbus_second ADD CHECK (message->'arguments'->>0 <> 'bad')")
    const list = [
      { job: 'none', args: 'good', queue: 'first' },
      { job: 'none', args: 'bad', queue: 'second' },
    ]
    await t.rejects(pgbus.enqueueMany(list), { code: '23514' })
    t.same(await rows('pgbus_first'), [])
  })

  t.test('when a trigger swallows one, then all is rolled back', async t => {
    await pgbus.queues.ensure('swallowing')
    await db.query(`CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
    await db.query(`CREATE TRIGGER swallow BEFORE INSERT ON pgmq.q_pgbus_swallowing FOR EACH ROW
      WHEN (NEW.message->'arguments'->>0 = 'bad') EXECUTE FUNCTION swallow()`)
    const list = ['good', 'bad'].map(args => ({ job: 'none', args, queue: 'swallowing' }))
    await t.rejects(pgbus.enqueueMany([...list, { job: 'none', args: 1, queue: 'first' }]), EnqueueError)
    t.same(await rows('pgbus_swallowing'), [])
    t.same(await rows('pgbus_first'), [])
  })

  t.test('when the list is empty, then so is the result', async t => {
    t.same(await pgbus.enqueueMany([]), [])
  })

  t.test('when many single calls come at once, then a bad one fails alone', async t => {
    await pgbus.queues.ensure('checked')
    await db.query("ALTER TABLE pgmq.q_pgbus_checked ADD CHECK (message->'arguments'->>0 <> '50')")
    const calls = Array.from({ length: 100 }, (_, i) => pgbus.enqueue('many', i, { queue: 'checked' }))
    const failed = (await Promise.allSettled(calls)).flatMap((r, i) => (r.status === 'rejected' ? [i] : []))
    t.same(failed, [50])
    t.equal((await rows('pgbus_checked')).length, 99)
  })
})

t.test("given a caller's transaction", async t => {
  const { pgbus, rows, db } = await setup(t)
  const client = await connect(t, db.url)
  await client.query('CREATE TABLE orders (id int)')

  t.test('when it commits, then the job is there, and not before', async t => {
    await client.query('BEGIN')
    await client.query('INSERT INTO orders VALUES (1)')
    const one = await pgbus.enqueue('in-tx', { order: 1 }, { tx: client })
    const many = await pgbus.enqueueMany(
      [
        { job: 'in-tx', args: 2 },
        { job: mail, args: { to: 'x' }, delay: '1h' },
        { job: 'in-tx', args: 3, runAt: new Date(Date.now() + 3_600_000) },
      ],
      { tx: client },
    )
    t.same(
      [one, ...many].map(r => r.msgId),
      [1, 2, 1, 3],
      'ids are numbers',
    )
    t.same(await rows(), [])
    await client.query('COMMIT')
    t.equal((await rows()).length, 3)
    t.equal((await rows('pgbus_mails')).length, 1)
  })

  t.test('when it rolls back, then nothing is there, and the queue exists all the same', async t => {
    await client.query('BEGIN')
    await pgbus.enqueue('in-tx', 1, { tx: client, queue: 'rolled_back' })
    await client.query('ROLLBACK')
    t.same(await rows('pgbus_rolled_back'), [])
    t.match(await pgbus.enqueue('in-tx', 2, { queue: 'rolled_back' }), { queue: 'rolled_back' })
  })

  t.test('when it rolls back to a savepoint, then what came before stays', async t => {
    await client.query('BEGIN')
    await pgbus.enqueue('in-tx', 'kept', { tx: client, queue: 'savepoint' })
    await client.query('SAVEPOINT s')
    await pgbus.enqueue('in-tx', 'gone', { tx: client, queue: 'savepoint' })
    await client.query('ROLLBACK TO SAVEPOINT s')
    await client.query('COMMIT')
    t.same(
      (await rows('pgbus_savepoint')).map(row => row.message.arguments),
      [['kept']],
    )
  })

  t.test('when it stays open, then nobody else waits', async t => {
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await pgbus.enqueue('in-tx', 'open', { tx: client, queue: 'shared' })
    const other = await connect(t, db.url)
    await other.query("SET statement_timeout = '2s'")
    await other.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
    await pgbus.enqueue('in-tx', 'other', { tx: other, queue: 'shared' })
    await pgbus.enqueue('in-tx', 'plain', { queue: 'shared' })
    await other.query('COMMIT')
    await client.query('COMMIT')
    t.equal((await rows('pgbus_shared')).length, 3)
  })

  t.test('when statements are sent on it, then each is single and has no name', async t => {
    const sent: unknown[][] = []
    const spy = {
      query: (...call: unknown[]) => {
        sent.push(call)
        return client.query(call[0] as string, call[1] as unknown[])
      },
    }
    await client.query('BEGIN')
    await pgbus.enqueue('in-tx', 1, { tx: spy, queue: 'spied' })
    await client.query('ROLLBACK')
    t.equal(sent.length, 1)
    t.match(sent[0]?.[0], /^INSERT/, 'text, not an object with a name')
    const { rows: prepared } = await client.query('SELECT name FROM pg_prepared_statements')
    t.same(prepared, [])
  })

  t.test('when tx is a pool, then it is refused', async t => {
    const pool = new pg.Pool({ connectionString: db.url })
    t.teardown(() => pool.end())
    await t.rejects(pgbus.enqueue('in-tx', 1, { tx: pool }), { name: 'TypeError', message: /not a Pool/ })
    const borrowed = await pool.connect()
    await pgbus.enqueue('in-tx', 1, { tx: borrowed, queue: 'borrowed' })
    borrowed.release()
    t.equal((await rows('pgbus_borrowed')).length, 1, 'outside a transaction it is its own')
  })

  t.test('when the connection of tx dies, then its error reaches the caller, who has no job', async t => {
    const dying = await connect(t, db.url)
    await dying.query('BEGIN')
    const { rows: pid } = await dying.query('SELECT pg_backend_pid() AS pid')
    await db.query('SELECT pg_terminate_backend($1)', [pid[0].pid])
    await t.rejects(pgbus.enqueue('in-tx', 1, { tx: dying, queue: 'dying' }))
    t.same(await rows('pgbus_dying'), [])
  })

  t.test(
    'when the queue was dropped by a peer, then the error says so, and the next call makes it again',
    async t => {
      await pgbus.enqueue('in-tx', 1, { queue: 'dropped' })
      await db.query("SELECT pgmq.drop_queue('pgbus_dropped')")
      await client.query('BEGIN')
      await t.rejects(pgbus.enqueue('in-tx', 2, { tx: client, queue: 'dropped' }), QueueNotFoundError)
      await client.query('ROLLBACK')
      await client.query('BEGIN')
      await pgbus.enqueue('in-tx', 3, { tx: client, queue: 'dropped' })
      await client.query('COMMIT')
      t.equal((await rows('pgbus_dropped')).length, 1)
    },
  )
})

t.test('given a queue that a peer dropped', async t => {
  const { pgbus, rows, db } = await setup(t)
  const drop = (name: string) => db.query('SELECT pgmq.drop_queue($1)', [`pgbus_${name}`])

  t.test('when this process sends again, then the queue is made again', async t => {
    await pgbus.enqueue('x', 1, { queue: 'again' })
    await drop('again')
    const results = await Promise.all([2, 3].map(args => pgbus.enqueue('x', args, { queue: 'again' })))
    t.same(
      results.map(r => r.msgId),
      [1, 2],
    )
    await drop('again')
    await pgbus.enqueueMany([4, 5].map(args => ({ job: 'x', args, queue: 'again' })))
    t.equal((await rows('pgbus_again')).length, 2)
    await drop('again')
    await pgbus.enqueueMany([
      { job: 'x', args: 6, queue: 'again' },
      { job: 'x', args: 7, queue: 'also' },
    ])
    t.equal((await rows('pgbus_again')).length, 1)
    t.equal((await rows('pgbus_also')).length, 1)
  })
})

t.test('given an instance whose idle connections were ended by the server', async t => {
  const { pgbus, rows, db } = await setup(t)

  t.test('when it enqueues, then the first call works and stores one row', async t => {
    await Promise.all([1, 2, 3].map(i => pgbus.enqueue('x', i, { queue: `warm_${i}` })))
    const idle = await db.census()
    t.ok(idle.length > 0)
    await db.query('SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid', [
      idle.map(row => row.pid),
    ])
    await db.vacated()
    await pgbus.enqueue('x', 4, { queue: 'warm_1' })
    t.equal((await rows('pgbus_warm_1')).length, 2)
  })
})

t.test('given a connection that dies under a send', async t => {
  const { pgbus, rows, db } = await setup(t)

  t.test('when its outcome is unknown, then the caller is told and nothing is sent twice', async t => {
    await pgbus.queues.ensure('held')
    const holder = await connect(t, db.url)
    await holder.query('BEGIN')
    await holder.query('LOCK TABLE pgmq.q_pgbus_held IN ACCESS EXCLUSIVE MODE')
    const call = pgbus.enqueue('x', 1, { queue: 'held' })
    const failed = t.rejects(call)
    await waitFor(async () => {
      const ended = await db.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'INSERT%'",
      )
      return ended.length > 0
    })
    await failed
    await holder.query('ROLLBACK')
    t.same(await rows('pgbus_held'), [])
  })
})
