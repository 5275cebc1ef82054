import t from 'tap'
import { describeSchema } from '../pgmq/setup.ts'
import { createDatabase, createEmptyDatabase } from '../support/database.ts'
import { allFiles, migrator } from './migrate-setup.ts'

t.test('given an empty database', async t => {
  t.test(
    'when ten migrate at once, then all succeed, each file is applied once, and the result is that of one',
    async t => {
      const alone = await describeSchema(await createDatabase(t))
      for (let round = 0; round < 4; round += 1) {
        const test = await createEmptyDatabase(t)
        const results = await Promise.allSettled(
          Array.from({ length: 10 }, () => migrator(test.url).migrate()),
        )
        t.strictSame(
          results.filter(result => result.status === 'rejected'),
          [],
        )
        const applied = results.flatMap(result => (result.status === 'fulfilled' ? result.value : []))
        t.strictSame(applied.sort(), allFiles.toSorted())
        t.strictSame(await describeSchema(test), alone)
      }
    },
  )

  t.test(
    'when a client that takes no lock installs at the same moment, then ours is accepted all the same',
    async t => {
      for (let round = 0; round < 4; round += 1) {
        const test = await createEmptyDatabase(t)
        const foreign = test.query(`
        CREATE SCHEMA pgmq; SELECT pg_sleep(0.0${round});
        CREATE TABLE pgmq.meta (queue_name varchar UNIQUE NOT NULL, is_partitioned boolean NOT NULL, is_unlogged boolean NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
        CREATE TYPE pgmq.queue_record AS (queue_name varchar, is_partitioned boolean, is_unlogged boolean, created_at timestamptz)`)
        const [ours] = await Promise.allSettled([migrator(test.url).migrate(), foreign])
        t.equal(ours.status, 'fulfilled')
        t.strictSame((await migrator(test.url).status()).pending, [])
      }
    },
  )
})
