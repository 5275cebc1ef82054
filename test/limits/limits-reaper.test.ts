import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { limits } from '../../lib/maintenance/limits.ts'
import { orphanedLocks } from '../../lib/maintenance/uniqueness-locks.ts'
import { type Rig, rig, runOnce } from '../maintenance/setup.ts'

const job = defineJob<{ key: string; n: number }>(
  { name: 'limited', concurrency: { limit: 2, key: ({ key }) => key, scope: 'global' } },
  () => undefined,
)

const held = ({ test }: Rig) =>
  test.query(
    `SELECT s.key, s.value, (SELECT count(*)::int FROM pgbus_semaphore_slots t WHERE t.key = s.key) AS slots,
            (SELECT count(*)::int FROM pgbus_blocked_executions b WHERE b.concurrency_key = s.key) AS blocked
       FROM pgbus_semaphores s ORDER BY s.key`,
  )

const enqueue = async (own: Rig, key: string, count: number, queue?: string) => {
  for (let n = 0; n < count; n += 1) await job.enqueue({ key, n }, { pgbus: own.pgbus, queue })
}

t.test('given limits that were tampered with', async t => {
  const own = await rig(t)
  const { pgbus, test } = own
  const reset = async () => {
    for (const { physical } of await pgbus.queues.list()) await pgbus.queues.drop({ physical })
    await test.query('TRUNCATE pgbus_semaphores, pgbus_semaphore_slots, pgbus_blocked_executions')
  }

  t.test('when nothing is wrong, then nothing is changed', async t => {
    await enqueue(own, 'a', 3)
    await test.query(
      `UPDATE pgmq.q_pgbus_default SET vt = vt + interval '1 day', read_ct = 1 WHERE msg_id = 1`,
    )
    await test.query(`UPDATE pgbus_semaphores SET expires_at = expires_at - interval '1 day'`)
    await runOnce(own, limits)
    t.same(await held(own), [{ key: 'a', value: 2, slots: 2, blocked: 1 }])
    t.same(own.lines, [])
    await reset()
  })

  t.test('when messages were removed by hand, then their slots go to those that wait', async t => {
    await enqueue(own, 'a', 4)
    await enqueue(own, 'b', 1)
    await test.query('DELETE FROM pgmq.q_pgbus_default WHERE msg_id IN (1, 3)')
    await runOnce(own, limits)
    t.same(await held(own), [{ key: 'a', value: 2, slots: 2, blocked: 1 }])
    t.match(own.lines, [{ msg: 'counted the running jobs of 2 limits anew' }])
    await test.query('TRUNCATE pgmq.q_pgbus_default')
    await runOnce(own, limits)
    t.same(await held(own), [{ key: 'a', value: 1, slots: 1, blocked: 0 }])
    await reset()
  })

  t.test('when a count was changed or deleted, then it is that of the slots again', async t => {
    for (const key of ['a', 'b', 'c']) await enqueue(own, key, 3)
    await test.query(`UPDATE pgbus_semaphores SET value = 0 WHERE key = 'a'`)
    await test.query(`DELETE FROM pgbus_semaphores WHERE key = 'b'`)
    // As another client counts: without slots.
    await test.query(`UPDATE pgbus_semaphores SET value = 7 WHERE key = 'c'`)
    await runOnce(own, limits)
    t.same(await held(own), [
      { key: 'a', value: 2, slots: 2, blocked: 1 },
      { key: 'b', value: 2, slots: 2, blocked: 1 },
      { key: 'c', value: 7, slots: 2, blocked: 1 },
    ])
    await test.query(`UPDATE pgbus_semaphores SET expires_at = expires_at - interval '1 day'`)
    await runOnce(own, limits)
    t.match((await held(own))[2], { key: 'c', value: 2, slots: 2, blocked: 1 })
    await reset()
  })

  t.test('when a job has waited for longer than anything, then it still runs', async t => {
    await enqueue(own, 'a', 3)
    await test.query(
      `UPDATE pgbus_blocked_executions SET expires_at = expires_at - interval '1 year', created_at = created_at - interval '1 year'`,
    )
    await runOnce(own, limits)
    t.match(await held(own), [{ key: 'a', value: 2, blocked: 1 }])
    await pgbus.cancel('default', 2)
    t.match(await held(own), [{ key: 'a', value: 2, blocked: 0 }])
    await reset()
  })

  t.test('when the queue of those that wait was dropped elsewhere, then it is made again', async t => {
    await enqueue(own, 'a', 3, 'fleeting')
    await test.query(`SELECT pgmq.drop_queue('pgbus_fleeting')`)
    await runOnce(own, limits)
    t.match(await held(own), [{ key: 'a', value: 1, slots: 1, blocked: 0 }])
    t.same(await test.query('SELECT count(*)::int AS n FROM pgmq.q_pgbus_fleeting'), [{ n: 1 }])
    await reset()
  })

  t.test('when a limit was raised, then those that wait do not wait for an end', async t => {
    await enqueue(own, 'a', 4)
    await test.query('UPDATE pgbus_semaphores SET max_value = 3')
    await runOnce(own, limits)
    t.match(await held(own), [{ key: 'a', value: 3, slots: 3, blocked: 1 }])
    await reset()
  })

  t.test('when a unique job waits for a slot, then its lock is not taken for an orphan', async t => {
    const both = defineJob<number>(
      { name: 'waits_and_locks', unique: { key: n => String(n) }, concurrency: { limit: 1 } },
      () => undefined,
    )
    for (const n of [1, 2]) await both.enqueue(n, { pgbus })
    await test.query(`UPDATE pgbus_uniqueness_keys SET created_at = created_at - interval '1 day'`)
    await runOnce(own, orphanedLocks)
    t.equal((await pgbus.locks.list()).length, 2)
  })
})
