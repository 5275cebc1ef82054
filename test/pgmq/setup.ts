import pg from 'pg'
import type { PgbusConfig, ResolvedConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { createLogger } from '../../lib/core/log.ts'
import { Connector } from '../../lib/db/connector.ts'
import { Database, type Statement } from '../../lib/db/database.ts'
import { Queues } from '../../lib/pgmq/queues.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../support/database.ts'

export const log = createLogger({ logger: null, format: 'json', level: 'silent' })

export interface Bench {
  test: TestDatabase
  config: ResolvedConfig
  db: Database
  queues: Queues
  /** Runs a statement on a pooled connection of ours. */
  run<R>(statement: Statement): Promise<R[]>
}

/** A migrated database, a pool and the queues on it. */
export async function setup(t: TestContext, overrides: PgbusConfig = {}): Promise<Bench> {
  const test = await createDatabase(t)
  return { test, ...openQueues(t, test.url, overrides) }
}

/** Another process, as far as the database can tell. */
export function openQueues(t: TestContext, url: string, overrides: PgbusConfig = {}): Omit<Bench, 'test'> {
  const config = resolveConfig({ databaseUrl: url, ...overrides })
  const db = new Database({
    connector: new Connector(config),
    connect: { target: 'base', applicationName: 'pgbus', statementTimeout: 30_000 },
    size: 4,
    sizeKey: 'pool.size',
    timeout: 5_000,
    readTimeout: 30_000,
    requirePrimary: false,
    log,
  })
  t.teardown(() => db.close())
  const queues = new Queues({ db, config, log })
  return { config, db, queues, run: async statement => (await db.query<never>(statement)).rows }
}

/** A session of its own, as a user's application has it. */
export async function openSession(t: TestContext, url: string, options = ''): Promise<pg.Client> {
  const client = new pg.Client({
    connectionString: url,
    application_name: 'test',
    ...(options && { options }),
  })
  client.on('error', () => undefined)
  await client.connect()
  t.teardown(() => client.end())
  return client
}

/** Listens on a channel and collects what arrives. */
export async function listen(t: TestContext, url: string, channel: string): Promise<string[]> {
  const client = await openSession(t, url)
  const heard: string[] = []
  client.on('notification', message => heard.push(message.payload ?? ''))
  await client.query(`LISTEN ${client.escapeIdentifier(channel)}`)
  return heard
}

/** A queue as other clients make it, without a lock. */
export async function foreignQueue(test: Pick<TestDatabase, 'query'>, name: string): Promise<void> {
  await test.query(`
    CREATE TABLE IF NOT EXISTS pgmq.q_${name} (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int NOT NULL DEFAULT 0,
      enqueued_at timestamptz NOT NULL DEFAULT now(), last_read_at timestamptz, vt timestamptz NOT NULL, message jsonb, headers jsonb);
    CREATE TABLE IF NOT EXISTS pgmq.a_${name} (msg_id bigint PRIMARY KEY, read_ct int NOT NULL DEFAULT 0,
      enqueued_at timestamptz NOT NULL DEFAULT now(), last_read_at timestamptz, archived_at timestamptz NOT NULL DEFAULT now(),
      vt timestamptz NOT NULL, message jsonb, headers jsonb);
    CREATE INDEX IF NOT EXISTS q_${name}_vt_idx ON pgmq.q_${name} (vt);
    INSERT INTO pgmq.meta (queue_name, is_partitioned, is_unlogged) VALUES ('${name}', false, false) ON CONFLICT DO NOTHING`)
}

/** The part of a database that migrations make, as text lines that can be compared. */
export async function describeSchema(test: Pick<TestDatabase, 'query'>): Promise<string[]> {
  const rows = await test.query<{ line: string }>(`
SELECT format('relation %s.%s %s%s %s', n.nspname, c.relname, c.relkind, c.relpersistence, array_to_string(c.reloptions, ',')) AS line
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname IN ('public', 'pgmq') AND c.relkind <> 't'
UNION ALL
SELECT format('column %s.%s %s %s%s %s', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attnotnull THEN 'not null' ELSE 'null' END, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname IN ('public', 'pgmq')
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND c.relkind IN ('r', 'c')
UNION ALL
SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname IN ('public', 'pgmq')
UNION ALL
SELECT 'constraint ' || k.conrelid::regclass || ' ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace AND n.nspname IN ('public', 'pgmq') AND k.contype <> 'n'
UNION ALL
SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname IN ('public', 'pgmq') WHERE NOT t.tgisinternal
UNION ALL
SELECT 'function ' || n.nspname || ' ' || pg_get_functiondef(p.oid) FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname IN ('public', 'pgmq')
UNION ALL
SELECT 'migration ' || name || ' ' || checksum FROM pgbus_schema_migrations
UNION ALL
SELECT 'version ' || version || ' ' || install_method FROM pgbus_pgmq_schema_versions
ORDER BY 1`)
  return rows.map(row => row.line)
}
