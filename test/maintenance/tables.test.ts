import t from 'tap'
import { tables } from '../../lib/maintenance/tables.ts'
import { openSession } from '../pgmq/setup.ts'
import type { TestDatabase } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { rig, runOnce } from './setup.ts'

/** Table whose rows have been read many times; `dead` of them are counted. */
async function flood(test: TestDatabase, name: string): Promise<void> {
  await test.query(`ALTER TABLE pgmq.q_${name} SET (autovacuum_enabled = false)`)
  await test.query(`SELECT pgmq.send_batch($1::text, array_fill('{}'::jsonb, array[2000]))`, [name])
  await test.query(`DELETE FROM pgmq.q_${name} WHERE msg_id > 10`)
  await waitFor(async () => (await dead(test, `q_${name}`)) >= 1_900)
}

async function dead(test: TestDatabase, table: string): Promise<number> {
  const [row] = await test.query<{ n: string }>(
    'SELECT pg_stat_get_dead_tuples(c.oid) AS n FROM pg_class c WHERE relname = $1',
    [table],
  )
  return Number(row?.n)
}

t.test('given queues that were busy', async t => {
  t.test('when there are many dead rows, then the table is vacuumed, if it is ours', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure(['mail', 'calm'])
    await own.test.query("SELECT pgmq.create('others')")
    await flood(own.test, 'pgbus_mail')
    await flood(own.test, 'others')
    await runOnce(own, tables())
    await waitFor(async () => (await dead(own.test, 'q_pgbus_mail')) === 0)
    t.ok((await dead(own.test, 'q_others')) >= 1_900)
    t.strictSame(own.reports, [])
  })

  t.test('when indexes have outgrown their table, then they are rebuilt, and readers go on', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure('mail')
    await flood(own.test, 'pgbus_mail')
    const size = async () =>
      Number((await own.test.query<{ n: string }>("SELECT pg_indexes_size('pgmq.q_pgbus_mail') AS n"))[0]?.n)
    const before = await size()
    await runOnce(own, tables({ deadRows: 1_000, indexBytes: 8_192 }))
    t.ok((await size()) < before, `${await size()} of ${before} bytes`)
    t.equal((await own.test.query('SELECT 1 FROM pg_index WHERE NOT indisvalid')).length, 0)
    t.equal((await own.test.query("SELECT * FROM pgmq.read('pgbus_mail', 30, 1)")).length, 1)
  })

  t.test('when a rebuild was interrupted, then what it left is dropped, and nothing else', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure('mail')
    await own.test.query(`CREATE INDEX q_pgbus_mail_vt_idx_ccnew ON pgmq.q_pgbus_mail (vt);
      CREATE INDEX my_ccnew ON pgmq.q_pgbus_mail (vt); CREATE INDEX building ON pgmq.q_pgbus_mail (vt);
      UPDATE pg_index SET indisvalid = false WHERE indexrelid IN ('pgmq.q_pgbus_mail_vt_idx_ccnew'::regclass, 'pgmq.building'::regclass)`)
    await runOnce(own, tables())
    t.strictSame(
      await own.test.query(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'q_pgbus_mail' AND indexname ~ 'ccnew|building' ORDER BY 1",
      ),
      [{ indexname: 'building' }, { indexname: 'my_ccnew' }],
    )
  })

  t.test('when another process is at it, then it is left alone', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure('mail')
    await flood(own.test, 'pgbus_mail')
    const other = await openSession(t, own.test.url)
    await other.query('SELECT pg_advisory_lock(1885823602, 16)')
    await runOnce(own, tables())
    t.ok((await dead(own.test, 'q_pgbus_mail')) >= 1_900)
  })

  t.test('when somebody holds a table, then it is left to the next run', async t => {
    const own = await rig(t)
    await own.pgbus.queues.ensure('mail')
    await flood(own.test, 'pgbus_mail')
    const other = await openSession(t, own.test.url)
    await other.query('BEGIN; LOCK TABLE pgmq.q_pgbus_mail IN ACCESS EXCLUSIVE MODE')
    await runOnce(own, tables())
    await other.query('ROLLBACK')
    t.ok((await dead(own.test, 'q_pgbus_mail')) >= 1_900)
    t.strictSame(own.reports, [])
  })
})
