import pg from 'pg'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'

/** A database for the handlers of test/fixtures/events, and what a test sees of them. */
export async function setupLedger(t: TestContext) {
  const db = await createDatabase(t)
  await db.query(`CREATE TABLE ledger (event text, handler text, phase text, pid int);
    CREATE TABLE gates (event text); CREATE TABLE effects (event text)`)
  const pgbus = createTestPgbus(t, db)
  return {
    db,
    pgbus,
    publish: (key: string, eventId: string) => pgbus.publish(key, {}, { eventId }),
    count: async (event: string, phase: 'start' | 'end') =>
      (await db.query('SELECT 1 FROM ledger WHERE event = $1 AND phase = $2', [event, phase])).length,
    effects: async (event: string) =>
      (await db.query('SELECT 1 FROM effects WHERE event = $1', [event])).length,
    openGate: (event: string) => db.query('INSERT INTO gates VALUES ($1)', [event]),
    handled: (queue: string) =>
      waitFor(async () => (await db.query(`SELECT 1 FROM pgmq.q_pgbus_${queue}`)).length === 0, {
        timeout: 30_000,
        message: `an empty queue ${queue}`,
      }),
    /** Undefined: nobody has begun. */
    completed: async (event: string) =>
      (
        await db.query<{ completed: boolean }>(
          'SELECT completed_at IS NOT NULL AS completed FROM pgbus_processed_events WHERE event_id = $1',
          [event],
        )
      )[0]?.completed,
  }
}

/** A consumer in a process of its own. */
export async function spawnConsumer(t: TestContext, url: string) {
  const start = async () => {
    const own = spawnNode(t, compiled('test/fixtures/events/consumer.ts'), [url])
    await own.waitForOutput(/consuming/)
    return own
  }
  let process = await start()
  return {
    /** Kills it and starts another. */
    replace: async () => {
      process.signal('SIGKILL')
      await process.exited
      process = await start()
    },
  }
}

/** Holds up every statement that writes to a table. */
export async function openBlocker(t: TestContext, url: string) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  t.teardown(() => client.end())
  const held = async () =>
    (
      await client.query<{ pid: number }>(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pgbus' AND wait_event_type = 'Lock'",
      )
    ).rows
  return {
    hold: (table: string) => client.query(`BEGIN; LOCK TABLE ${table} IN SHARE MODE`),
    reached: () => waitFor(async () => (await held()).length > 0, { message: 'a statement that is held up' }),
    /** What was held up is lost: a server would otherwise execute it although its client is gone. */
    drop: async () => {
      for (const { pid } of await held()) await client.query('SELECT pg_terminate_backend($1)', [pid])
      await waitFor(async () => (await held()).length === 0)
      await client.query('ROLLBACK')
    },
  }
}
