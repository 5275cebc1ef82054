import t from 'tap'
import type { TestDatabase } from '../support/database.ts'
import { foreignQueue, openQueues, openSession, setup } from './setup.ts'

function triggers(test: TestDatabase, table: string): Promise<{ name: string; definition: string }[]> {
  return test.query(
    `SELECT tgname AS name, pg_get_triggerdef(oid) AS definition FROM pg_trigger WHERE tgrelid = $1::regclass AND NOT tgisinternal`,
    [table],
  )
}

t.test('given fifty processes', async t => {
  t.test(
    'when all create the same new queue at the same moment, then all succeed, three times over',
    async t => {
      const { test } = await setup(t)
      const processes = Array.from({ length: 50 }, () => openQueues(t, test.url))
      await Promise.all(processes.map(({ db }) => db.query('SELECT 1')))
      for (let round = 0; round < 3; round += 1) {
        const results = await Promise.allSettled(processes.map(({ queues }) => queues.ensure(`new_${round}`)))
        t.strictSame(
          results.filter(result => result.status === 'rejected'),
          [],
        )
      }
      t.equal((await processes[0]!.queues.list()).length, 3)
      t.equal((await triggers(test, 'pgmq.q_pgbus_new_2')).length, 1)
    },
  )

  t.test('when all call the SQL function itself, then it alone is enough', async t => {
    const { test } = await setup(t)
    const sessions = await Promise.all(Array.from({ length: 20 }, () => openSession(t, test.url)))
    for (let round = 0; round < 6; round += 1) {
      // Every other time there is only something to complete.
      if (round % 2 === 1) await foreignQueue(test, `raw_${round}`)
      const calls = sessions.map(session => session.query('SELECT pgbus_create_queue($1)', [`raw_${round}`]))
      const results = await Promise.allSettled(calls)
      t.strictSame(
        results.filter(result => result.status === 'rejected'),
        [],
      )
    }
  })

  t.test('when each ensures several queues in another order, then nobody deadlocks', async t => {
    const { test } = await setup(t)
    const names = ['a', 'b', 'c', 'd']
    const processes = Array.from({ length: 12 }, () => openQueues(t, test.url))
    const results = await Promise.allSettled(
      processes.map(({ queues }, at) => queues.ensure([...names.slice(at % 4), ...names.slice(0, at % 4)])),
    )
    t.strictSame(
      results.filter(result => result.status === 'rejected'),
      [],
    )
  })

  t.test('when a client that takes no lock creates the queue too, then both succeed', async t => {
    const { test } = await setup(t)
    for (let round = 0; round < 10; round += 1) {
      const { queues } = openQueues(t, test.url)
      const name = `race_${round}`
      const [ours] = await Promise.allSettled([
        queues.ensure(name),
        foreignQueue(test, `pgbus_${name}`).catch(() => undefined),
      ])
      t.equal(ours.status, 'fulfilled')
    }
  })
})
