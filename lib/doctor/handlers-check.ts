import { queueMatcher } from '../config/queue-names.ts'
import { counted, listed } from '../core/wording.ts'
import { sqlState } from '../db/database.ts'
import { uncovered } from '../events/consumers.ts'
import { definedHandlers } from '../events/define.ts'
import { findJob } from '../jobs/define.ts'
import { queueTable } from '../pgmq/statements.ts'
import { findModules, importModules } from '../processes/supervisor/imports.ts'
import { type Check, ok, type Subject, warn } from './check.ts'

/** Of each queue the newest: enough to see what was deployed last, and quick on any queue. */
const newest = 100

/** Imports the modules of `imports` into this process, and looks for jobs and events that nobody handles then. */
export const handlers: Check = {
  name: 'Handlers',
  async examine(subject) {
    const { config, file } = subject.loaded
    const { files, unmatched } = findModules(config.imports, file)
    await importModules(files)
    const { tasks } = await subject.pgbus.recurring.table.read()
    const undefinedTasks = tasks
      .filter(({ task }) => !findJob(task.job))
      .map(({ key, task }) => `${key} (${task.job})`)
    const waiting = await undefinedJobs(subject)
    const unheard = uncovered(definedHandlers(), config).map(handler => handler.name)
    const problems = [
      ...unmatched.map(pattern => `nothing matches "${pattern}" (imports)`),
      ...(undefinedTasks.length > 0 ? [`recurring tasks without a job: ${listed(undefinedTasks)}`] : []),
      ...(unheard.length > 0 ? [`no consumer for event handlers: ${listed(unheard)}`] : []),
      ...(waiting.length > 0 ? [`jobs wait that nobody defines: ${listed(waiting)}`] : []),
    ]
    if (problems.length > 0) return warn(problems.join('; '))
    return ok(
      `${counted(files.length, 'module')}, ${counted(tasks.length, 'recurring task')}, every waiting job has a handler`,
    )
  },
}

/** Names of jobs in the queues of this configuration, as `name in queue`. */
async function undefinedJobs({ pgbus, loaded: { config } }: Subject): Promise<string[]> {
  const isRead = queueMatcher(config.workers.flatMap(({ queues }) => queues))
  const queues = (await pgbus.queues.list()).filter(({ name, kind }) => kind === 'job' && isRead(name))
  const found: string[] = []
  for (const { physical } of queues) {
    for (const name of await jobsIn(pgbus, physical)) if (!findJob(name)) found.push(`${name} in ${physical}`)
  }
  return found
}

async function jobsIn({ db }: Subject['pgbus'], physical: string): Promise<string[]> {
  try {
    const { rows } = await db.query<{ name: string }>(
      `SELECT DISTINCT message->>'job_class' AS name
  FROM (SELECT message FROM ${queueTable(physical)} ORDER BY msg_id DESC LIMIT ${newest}) m
 WHERE message->>'job_class' IS NOT NULL ORDER BY 1`,
    )
    return rows.map(row => row.name)
  } catch (error) {
    // Dropped meanwhile.
    if (sqlState(error) === '42P01') return []
    throw error
  }
}
