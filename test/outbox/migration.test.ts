import t from 'tap'
import { migrator } from '../db/migrate-setup.ts'
import { createEmptyDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'

t.test('given the outbox of an older client, with entries', async t => {
  const db = await createEmptyDatabase(t)
  await db.query(`CREATE TABLE pgbus_outbox_entries (id bigserial PRIMARY KEY, queue_name varchar, routing_key varchar,
      payload jsonb NOT NULL, headers jsonb, priority int DEFAULT 0, delay int DEFAULT 0, published_at timestamp(6),
      created_at timestamp(6) NOT NULL DEFAULT current_timestamp,
      CONSTRAINT chk_pgbus_outbox_destination CHECK ((queue_name IS NULL) <> (routing_key IS NULL)));
    INSERT INTO pgbus_outbox_entries (queue_name, payload, published_at) VALUES ('done', '1', now()), ('mail', '2', null);
    INSERT INTO pgbus_outbox_entries (routing_key, payload) VALUES ('orders.created', '{"event_id":"e","payload":{}}')`)
  await migrator(db.url).migrate()
  await migrator(db.url).migrate()
  await db.query("SELECT pgmq.create('pgbus_seen'), pgmq.bind_topic('orders.created', 'pgbus_seen')")

  t.test('when it is migrated, then what waits is published, by key, and what was is not', async t => {
    t.match(await createTestPgbus(t, db).outbox.flush(), { published: 2, failed: 0 })
    t.same(await db.query('SELECT message FROM pgmq.q_pgbus_mail'), [{ message: 2 }])
    t.match(await db.query('SELECT message FROM pgmq.q_pgbus_seen'), [
      { message: { event_id: 'e', routing_key: 'orders.created' } },
    ])
  })
})
