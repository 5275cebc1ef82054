import { pino } from 'pino'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { createMaintenance, type Maintenance } from '../../lib/maintenance/maintenance.ts'
import type { MaintenanceTask } from '../../lib/maintenance/task.ts'
import { Pgbus } from '../../lib/pgbus.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../support/database.ts'

export interface LogLine {
  level: number
  msg: string
  task?: string
}

export interface Rig {
  test: TestDatabase
  pgbus: Pgbus
  /** Info and above. */
  lines: LogLine[]
  /** `action` and `task` of what was reported. */
  reports: { message: string; task: unknown }[]
  maintenance(tasks?: MaintenanceTask[], retryDelay?: number): Maintenance
}

/** An instance whose maintenance starts at once; given a database, or with one of its own. */
export async function rig(
  t: TestContext,
  overrides: PgbusConfig = {},
  existing?: TestDatabase,
): Promise<Rig> {
  const test = existing ?? (await createDatabase(t))
  const lines: LogLine[] = []
  const reports: Rig['reports'] = []
  const pgbus = new Pgbus(
    resolveConfig(
      {
        databaseUrl: test.url,
        dispatchInterval: 10,
        log: { logger: pino({ level: 'info' }, { write: line => void lines.push(JSON.parse(line)) }) },
        errorReporters: [
          (error, context) => void reports.push({ message: error.message, task: context.task }),
        ],
        ...overrides,
      },
      {},
    ),
  )
  t.teardown(() => pgbus.close())
  return {
    test,
    pgbus,
    lines,
    reports,
    maintenance(tasks, retryDelay) {
      const made = createMaintenance(pgbus, ['dispatcher'], {
        firstRun: () => 0,
        ...(tasks && { tasks }),
        ...(retryDelay === undefined ? {} : { retryDelay }),
      })
      t.teardown(() => made.stop({ immediate: true }))
      return made
    },
  }
}

/** Runs one task once, as the dispatcher does, and resolves when it has ended. */
export async function runOnce(own: Rig, task: MaintenanceTask): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const once: MaintenanceTask = {
      ...task,
      run: async context => {
        const outcome = task.run(context)
        // The dispatcher has to see it end as well.
        outcome.then(() => setImmediate(resolve), reject)
        return outcome
      },
    }
    void own.maintenance([once]).start()
  })
}

/** The session of the running task. */
export async function adminPid(test: TestDatabase): Promise<number | undefined> {
  return (await test.census()).find(row => row.application_name === 'pgbus-admin')?.pid
}
