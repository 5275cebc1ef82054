import t from 'tap'
import { migrator } from '../db/migrate-setup.ts'
import { createEmptyDatabase } from '../support/database.ts'

t.test('given the table of an older client, which knows no completion', async t => {
  const db = await createEmptyDatabase(t)
  await db.query(`CREATE TABLE pgbus_processed_events (id bigserial PRIMARY KEY, event_id varchar NOT NULL,
      handler_class varchar NOT NULL, processed_at timestamp(6) NOT NULL DEFAULT current_timestamp);
    CREATE UNIQUE INDEX idx_pgbus_processed_events_unique ON pgbus_processed_events (event_id, handler_class);
    INSERT INTO pgbus_processed_events (event_id, handler_class, processed_at) VALUES ('e', 'H', '2020-01-01')`)

  t.test('when it is migrated, then what is there counts as completed, and only once', async t => {
    await migrator(db.url).migrate()
    t.same(await db.query('SELECT completed_at::text FROM pgbus_processed_events'), [
      { completed_at: '2020-01-01 00:00:00' },
    ])
    await db.query("INSERT INTO pgbus_processed_events (event_id, handler_class) VALUES ('f', 'H')")
    await db.query("DELETE FROM pgbus_schema_migrations WHERE name = '006_events.sql'")
    await migrator(db.url).migrate()
    t.same(await db.query('SELECT event_id FROM pgbus_processed_events WHERE completed_at IS NULL'), [
      { event_id: 'f' },
    ])
  })

  t.test('when an event is claimed in a session of another time zone, then UTC is stored', async t => {
    await db.query(
      "SET timezone TO 'Asia/Tokyo'; SELECT pgbus_claim_event('g', ARRAY['H'], 'pgbus_h', 1); RESET timezone",
    )
    t.same(
      await db.query(
        "SELECT 1 AS ok FROM pgbus_processed_events WHERE event_id = 'g' AND processed_at BETWEEN (now() AT TIME ZONE 'UTC') - interval '1 minute' AND (now() AT TIME ZONE 'UTC') + interval '1 minute'",
      ),
      [{ ok: 1 }],
    )
  })
})
