import pg from 'pg'
import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { orphanedLocks } from '../../lib/maintenance/uniqueness-locks.ts'
import { claimOne } from '../jobs/support.ts'
import { type Rig, rig, runOnce } from '../maintenance/setup.ts'
import { waitFor } from '../support/wait-for.ts'

const job = defineJob<number>({ name: 'reaped', unique: { key: n => String(n) } }, () => undefined)

const keys = async ({ test }: Rig) =>
  (await test.query<{ lock_key: string }>('SELECT lock_key FROM pgbus_uniqueness_keys ORDER BY 1')).map(
    row => row.lock_key,
  )

const age = ({ test }: Rig) =>
  test.query(`UPDATE pgbus_uniqueness_keys SET created_at = created_at - interval '1 hour'`)

const foreign = ({ test }: Rig, key: string, queue: string, msgId: number) =>
  test.query(
    `INSERT INTO pgbus_uniqueness_keys VALUES ($1, $2, $3, clock_timestamp() AT TIME ZONE 'UTC' - interval '1 hour')`,
    [key, queue, msgId],
  )

t.test('given old locks', async t => {
  const own = await rig(t)
  const { pgbus, test } = own

  t.test('when their messages wait, run, back off or are delayed, then they stay', async t => {
    await job.enqueue(1, { pgbus })
    await claimOne(pgbus, 60_000)
    await job.enqueue(2, { pgbus })
    await claimOne(pgbus, 60_000)
    await test.query(`UPDATE pgmq.q_pgbus_default SET vt = vt + interval '1 day' WHERE msg_id = 2`)
    await job.enqueue(3, { pgbus })
    await job.enqueue(4, { pgbus, delay: '2d' })
    await age(own)
    await runOnce(own, orphanedLocks)
    t.same(await keys(own), ['reaped:1', 'reaped:2', 'reaped:3', 'reaped:4'])
  })

  t.test('when messages were removed by hand, then their locks go, once they are old enough', async t => {
    await test.query('DELETE FROM pgmq.q_pgbus_default WHERE msg_id IN (1, 3)')
    await job.enqueue(5, { pgbus })
    await test.query('DELETE FROM pgmq.q_pgbus_default WHERE msg_id = 5')
    await runOnce(own, orphanedLocks)
    t.same(await keys(own), ['reaped:2', 'reaped:4', 'reaped:5'])
    t.match(
      own.lines.find(({ msg }) => msg.includes('locks')),
      { msg: 'removed 2 locks without a message' },
    )
  })

  t.test('when their queue is gone with its tables, then they go', async t => {
    await job.enqueue(6, { pgbus, queue: 'gone' })
    await test.query(`SELECT pgmq.drop_queue('pgbus_gone')`)
    await age(own)
    await runOnce(own, orphanedLocks)
    t.same(await keys(own), ['reaped:2', 'reaped:4'])
  })

  t.test('when a part of their queue is there or it cannot be read, then they stay', async t => {
    await job.enqueue(7, { pgbus, queue: 'half' })
    await job.enqueue(8, { pgbus, queue: 'broken' })
    await test.query(`DELETE FROM pgmq.meta WHERE queue_name = 'pgbus_half'`)
    await test.query('DELETE FROM pgmq.q_pgbus_half')
    await test.query('DROP TABLE pgmq.q_pgbus_broken')
    await age(own)
    await runOnce(own, orphanedLocks)
    t.same(await keys(own), ['reaped:2', 'reaped:4', 'reaped:7', 'reaped:8'])
    await test.query(`DELETE FROM pgbus_uniqueness_keys WHERE lock_key ~ '[78]$'`)
    await test.query(`DELETE FROM pgmq.meta WHERE queue_name = 'pgbus_broken'`)
  })

  t.test('when another client wrote logical names, then all levels of the queue are looked at', async t => {
    await test.query(`SELECT pgmq.create('pgbus_mail_p0'), pgmq.create('pgbus_mail_p1')`)
    await test.query(`INSERT INTO pgmq.q_pgbus_mail_p1 (vt, message) VALUES (now(), '{}')`)
    await foreign(own, 'theirs', 'mail', 1)
    await foreign(own, 'not theirs', 'mail', 2)
    await runOnce(own, orphanedLocks)
    t.same(await keys(own), ['reaped:2', 'reaped:4', 'theirs'])
  })

  t.test(
    'when another client took a lock and did not send, then a message with the key keeps it',
    async t => {
      await test.query(
        `INSERT INTO pgmq.q_pgbus_mail_p0 (vt, message) VALUES (now(), '{"pgbus_uniqueness_key": "sent"}')`,
      )
      await foreign(own, 'sent', 'pending', 0)
      await foreign(own, 'unsent', 'pending', 0)
      await runOnce(own, orphanedLocks)
      t.same(await keys(own), ['reaped:2', 'reaped:4', 'sent', 'theirs'])
    },
  )

  t.test('when a lock is taken anew while it is looked at, then it stays', async t => {
    await foreign(own, 'anew', 'pgbus_default', 4711)
    const other = new pg.Client(test.url)
    await other.connect()
    t.teardown(() => other.end())
    await other.query('BEGIN')
    await other.query(`UPDATE pgbus_uniqueness_keys SET msg_id = 4 WHERE lock_key = 'anew'`)
    const reaping = runOnce(own, orphanedLocks)
    await waitFor(
      async () =>
        (await test.query(`SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'`)).length > 0,
    )
    await other.query('COMMIT')
    await reaping
    t.ok((await keys(own)).includes('anew'))
  })
})
