import t from 'tap'
import { oldArchives } from '../../lib/maintenance/archives.ts'
import { overduePauses } from '../../lib/maintenance/breakers.ts'
import { oldFailures } from '../../lib/maintenance/failed-events.ts'
import { maintenanceTasks } from '../../lib/maintenance/maintenance.ts'
import { oldOutboxEntries } from '../../lib/maintenance/outbox-entries.ts'
import { oldProcessedEvents } from '../../lib/maintenance/processed-events.ts'
import { deadProcesses } from '../../lib/maintenance/processes.ts'
import { removeInChunks, type TaskContext } from '../../lib/maintenance/task.ts'
import { rig, runOnce } from './setup.ts'

const hour = 3_600_000
const utc = "(now() AT TIME ZONE 'UTC')"

t.test('given rows of processes', async t => {
  t.test('when heartbeats stopped five minutes ago, then those rows go', async t => {
    const own = await rig(t)
    await own.test.query(`INSERT INTO pgbus_processes (kind, hostname, pid, last_heartbeat_at, created_at, updated_at) VALUES
      ('worker', 'h', 1, ${utc} - interval '301 seconds', ${utc}, ${utc}), ('worker', 'h', 2, ${utc} - interval '299 seconds', ${utc}, ${utc}),
      ('worker', 'h', 3, null, ${utc} - interval '1 day', ${utc}), ('worker', 'h', 4, null, ${utc}, ${utc})`)
    await runOnce(own, deadProcesses)
    t.strictSame(await own.test.query("SELECT pid FROM pgbus_processes WHERE kind = 'worker' ORDER BY 1"), [
      { pid: 2 },
      { pid: 4 },
    ])
  })
})

t.test('given paused queues', async t => {
  t.test('when a pause of the breaker is long over, then it ends; others stay', async t => {
    const own = await rig(t)
    await own.test.query(`INSERT INTO pgbus_queue_states
      (queue_name, paused, circuit_breaker_trip_count, circuit_breaker_resume_at, created_at, updated_at) VALUES
      ('over', true, 3, ${utc} - interval '11 minutes', ${utc}, ${utc}), ('recent', true, 3, ${utc} - interval '9 minutes', ${utc}, ${utc}),
      ('ahead', true, 3, ${utc} + interval '1 minute', ${utc}, ${utc}), ('by_hand', true, 0, null, ${utc}, ${utc})`)
    await runOnce(own, overduePauses)
    t.strictSame(
      await own.test.query(
        'SELECT queue_name, paused, circuit_breaker_trip_count AS trips FROM pgbus_queue_states ORDER BY id',
      ),
      [
        { queue_name: 'over', paused: false, trips: 0 },
        { queue_name: 'recent', paused: true, trips: 3 },
        { queue_name: 'ahead', paused: true, trips: 3 },
        { queue_name: 'by_hand', paused: true, trips: 0 },
      ],
    )
  })
})

t.test('given the record of handled events', async t => {
  t.test('when it is old, then it goes', async t => {
    const own = await rig(t)
    await own.test.query(`INSERT INTO pgbus_processed_events (event_id, handler_class, processed_at)
      SELECT 'old' || n, 'H', ${utc} - interval '61 minutes' FROM generate_series(1, 1500) n
      UNION ALL SELECT 'new', 'H', ${utc} - interval '59 minutes'`)
    await runOnce(own, oldProcessedEvents(hour))
    t.same(await own.test.query('SELECT event_id FROM pgbus_processed_events'), [{ event_id: 'new' }])
  })
})

t.test('given the outbox', async t => {
  t.test('when entries were published long ago, then they go; what waits stays', async t => {
    const own = await rig(t)
    await own.test.query(`INSERT INTO pgbus_outbox_entries (queue_name, payload, created_at, published_at)
      SELECT 'old', '1'::jsonb, ${utc} - interval '2 days', ${utc} - interval '61 minutes' FROM generate_series(1, 1500) n
      UNION ALL SELECT 'new', '1', ${utc} - interval '2 days', ${utc} - interval '59 minutes'
      UNION ALL SELECT 'waits', '1', ${utc} - interval '2 days', null`)
    await runOnce(own, oldOutboxEntries(hour))
    t.same(await own.test.query('SELECT queue_name FROM pgbus_outbox_entries ORDER BY 1'), [
      { queue_name: 'new' },
      { queue_name: 'waits' },
    ])
  })
})

t.test('given archives', async t => {
  t.test('when jobs were archived long ago, then they go, however long they waited before', async t => {
    const own = await rig(t)
    for (const name of ['mail', 'mail_dlq', 'streamed'])
      await own.pgbus.queues.ensurePhysical(`pgbus_${name}`, 'job')
    await own.test.query("SELECT pgmq.create('others_mail')")
    await own.test.query('CREATE INDEX a_pgbus_streamed_msg_id_idx ON pgmq.a_pgbus_streamed (msg_id)')
    for (const name of ['pgbus_mail', 'pgbus_mail_dlq', 'pgbus_streamed', 'others_mail']) {
      await own.test.query(`INSERT INTO pgmq.a_${name} (msg_id, enqueued_at, archived_at, vt)
        SELECT n, now() - interval '30 days', now() - interval '2 hours', now() FROM generate_series(1, 2100) n
        UNION ALL SELECT 9000, now() - interval '30 days', now() - interval '59 minutes', now()`)
    }
    // One queue that cannot be cleaned up does not keep the others from it.
    await own.pgbus.queues.ensurePhysical('pgbus_broken', 'job')
    await own.test.query(`INSERT INTO pgmq.a_pgbus_broken (msg_id, archived_at, vt) VALUES (1, now() - interval '2 hours', now());
      CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
      CREATE TRIGGER refuse BEFORE DELETE ON pgmq.a_pgbus_broken FOR EACH ROW EXECUTE FUNCTION refuse()`)
    await runOnce(own, oldArchives(hour))
    const count = async (name: string) =>
      Number((await own.test.query<{ n: string }>(`SELECT count(*) AS n FROM pgmq.a_${name}`))[0]?.n)
    t.equal(await count('pgbus_mail'), 1)
    t.equal(await count('pgbus_mail_dlq'), 1)
    t.equal(await count('pgbus_streamed'), 2101, 'streams of another version keep their own rules')
    t.equal(await count('others_mail'), 2101, 'queues of others are theirs')
    t.equal(await count('pgbus_broken'), 1)
    t.ok(own.lines.some(line => line.level === 40 && line.msg.includes('pgbus_broken')))
    t.strictSame(own.reports, [])
  })

  t.test('when nothing may be deleted, then there is no task for it', async t => {
    const own = await rig(t, {
      archiveRetention: null,
      idempotencyTtl: null,
      outbox: { retention: null },
      streams: { retention: { default: 0 } },
      recurring: { executionRetention: null },
    })
    t.strictSame(
      maintenanceTasks(own.pgbus.config).map(task => task.name),
      ['dead_processes', 'overdue_pauses', 'uniqueness_locks', 'concurrency_limits', 'tables'],
    )
  })
})

t.test('given records of failures', async t => {
  t.test('when they are old, then they go, unless their message still waits', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure('mail')
    await own.test.query("SELECT pgmq.send('pgbus_mail', '{}'), pgmq.create('bare'), pgmq.send('bare', '{}')")
    await own.test.query(`INSERT INTO pgbus_failed_events (queue_name, msg_id, failed_at) VALUES
      ('mail', 1, ${utc} - interval '2 hours'), ('mail', 77, ${utc} - interval '2 hours'), ('mail', 78, ${utc}),
      ('bare', 1, ${utc} - interval '2 hours'), ('bare', 5, ${utc} - interval '2 hours'), ('gone', 1, ${utc} - interval '2 hours')`)
    await runOnce(own, oldFailures(hour))
    t.strictSame(
      await own.test.query('SELECT queue_name, msg_id::int FROM pgbus_failed_events ORDER BY 1, 2'),
      [
        { queue_name: 'bare', msg_id: 1 },
        { queue_name: 'mail', msg_id: 1 },
        { queue_name: 'mail', msg_id: 78 },
      ],
    )
  })
})

t.test('given much to delete', async t => {
  const context = (aborted = false, held = false) =>
    ({
      signal: aborted ? AbortSignal.abort() : new AbortController().signal,
      locked: async (fn: () => Promise<unknown>) => (held ? undefined : fn()),
      log: { warn: () => undefined, debug: () => undefined },
    }) as unknown as TaskContext
  const source = (name: string, rows: number, taken: string[]) => {
    let left = rows
    return {
      name,
      removeChunk: async (limit: number) => {
        const removed = Math.min(limit, left)
        left -= removed
        taken.push(`${name} ${removed}`)
        return removed
      },
    }
  }

  t.test('when there are several sources, then they take turns until each is empty', async t => {
    const taken: string[] = []
    t.equal(
      await removeInChunks(context(), [source('a', 5, taken), source('b', 1, taken)], {
        rows: 2,
        ms: 60_000,
      }),
      'done',
    )
    t.strictSame(taken, ['a 2', 'b 1', 'a 2', 'a 1'])
  })

  t.test('when time is up or the process ends, then it stops between two chunks', async t => {
    const taken: string[] = []
    t.equal(await removeInChunks(context(), [source('a', 5, taken)], { rows: 2, ms: 0 }), 'more')
    t.equal(await removeInChunks(context(true), [source('a', 5, taken)]), 'more')
    t.equal(
      await removeInChunks(context(false, true), [source('a', 5, taken)]),
      'done',
      'somebody else is at it',
    )
    t.strictSame(taken, [])
  })

  t.test('when every source fails, then the task fails', async t => {
    const bad = { name: 'bad', removeChunk: () => Promise.reject(new TypeError('no')) }
    await t.rejects(removeInChunks(context(), [bad, bad]), { message: 'no' })
    t.equal(await removeInChunks(context(), [bad, source('a', 0, [])]), 'done')
  })
})
