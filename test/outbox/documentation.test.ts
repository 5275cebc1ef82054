import { readFileSync } from 'node:fs'
import pg from 'pg'
import t from 'tap'
import { setup } from '../events/support.ts'

/** The code blocks of a page, as they are. */
const page = readFileSync(new URL('../../../docs/outbox.md', import.meta.url), 'utf8')
const block = (language: string) => new RegExp(`\`\`\`${language}\n([\\s\\S]*?)\`\`\``).exec(page)?.[1] ?? ''

t.test('given the page about the outbox', async t => {
  const bench = await setup(t)
  const { db, pgbus } = bench
  await db.query('CREATE TABLE orders (id int)')
  await db.query("SELECT pgmq.create('pgbus_seen'), pgmq.bind_topic('orders.created', 'pgbus_seen')")
  const client = new pg.Client({ connectionString: db.url })
  await client.connect()
  t.teardown(() => client.end())

  t.test('when its examples are run, then what they write is published', async t => {
    const run = new Function('pgbus', 'client', `return (async () => {${block('ts')}})()`) as (
      own: typeof pgbus,
      tx: pg.Client,
    ) => Promise<void>
    await run(pgbus, client)
    await db.query(block('sql'))
    t.match(await pgbus.outbox.flush(), { published: 6, failed: 0 })
    t.same(
      (await bench.rows('pgbus_seen')).map(({ message }) => message.payload),
      [{ id: 7 }, { id: 8 }, { id: 9 }],
    )
    t.same(
      (await bench.rows()).map(({ message }) => [message.job_class, message.arguments]),
      [
        ['send-receipt', [{ orderId: 7 }]],
        ['send-receipt', [{ orderId: 9 }]],
      ],
    )
    t.match(await bench.rows('pgbus_mail'), [{ message: { to: 'ann@example.org' } }])
  })
})
