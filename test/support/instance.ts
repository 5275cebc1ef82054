import type { PgbusConfig } from '../../lib/config/options.ts'
import { createPgbus, type Pgbus } from '../../lib/pgbus.ts'
import type { TestContext, TestDatabase } from './database.ts'

/** An instance on a test's database: silent, closed at the end of the test. */
export function createTestPgbus(
  t: TestContext,
  db: Pick<TestDatabase, 'url'>,
  overrides: PgbusConfig = {},
): Pgbus {
  const pgbus = createPgbus({
    databaseUrl: db.url,
    log: { level: 'silent' },
    ...overrides,
    streams: { secret: 'a-secret-for-the-tests', ...overrides.streams },
  })
  t.teardown(() => pgbus.close())
  return pgbus
}
