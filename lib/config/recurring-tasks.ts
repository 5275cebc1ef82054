import { type Duration, parseDuration } from '../core/duration.ts'
import type { JsonValue } from '../core/json.ts'
import { Schedule } from '../core/schedule.ts'
import { isPlain } from './plain.ts'
import { custom, type Rule } from './rules.ts'

/** A job that is enqueued again and again. */
export interface RecurringTask {
  /** Name of the job. It need not be defined where the scheduler runs. */
  job: string
  /**
   * Cron with five fields, or six with seconds first; `@daily` and its like; `every 15 minutes`. An IANA time zone at
   * its end wins over `timeZone`.
   */
  schedule: string
  /** IANA name. Default `UTC`. */
  timeZone?: string | undefined
  /** What the handler gets. Default null. */
  args?: JsonValue | undefined
  /** Logical queue. Default: that of the job, else `defaultQueue`. */
  queue?: string | null | undefined
  /** Default: that of the job. */
  priority?: number | null | undefined
  /** For people. */
  description?: string | null | undefined
  /** Whether a task that is new begins at once. Default true. Later `enable` and `disable` decide. */
  enabled?: boolean | undefined
  /**
   * What happens to occurrences that nobody noticed in time: `none`, those older than a minute are left out; `last`
   * (default), only the latest runs; `all`, each runs.
   */
  catchUp?: 'none' | 'last' | 'all' | undefined
  /** Age beyond which nothing is caught up. Default 1 h. */
  catchUpWindow?: Duration | undefined
}

/** Complete; durations in milliseconds. */
export interface ResolvedRecurringTask {
  readonly job: string
  readonly schedule: string
  readonly timeZone: string
  readonly args: JsonValue
  readonly queue: string | null
  readonly priority: number | null
  readonly description: string | null
  readonly enabled: boolean
  readonly catchUp: 'none' | 'last' | 'all'
  readonly catchUpWindow: number
}

const fields = [
  'job',
  'schedule',
  'timeZone',
  'args',
  'queue',
  'priority',
  'description',
  'enabled',
  'catchUp',
  'catchUpWindow',
]

const keyRule = /^[A-Za-z0-9_.:-]{1,255}$/

/** @throws TypeError */
export function checkTaskKey(key: unknown): string {
  if (typeof key === 'string' && keyRule.test(key)) return key
  throw new TypeError(
    `the key of a recurring task is 1 to 255 letters, digits and "_.:-", got ${JSON.stringify(key)}`,
  )
}

/** A task with its defaults. @throws TypeError that says which field is wrong. */
export function resolveTask(task: unknown): ResolvedRecurringTask {
  if (typeof task !== 'object' || task === null || Array.isArray(task))
    throw new TypeError('must be an object with job and schedule')
  const given = task as Record<string, unknown>
  for (const name of Object.keys(given))
    if (!fields.includes(name)) throw new TypeError(`has no field "${name}"; there are ${fields.join(', ')}`)
  const { timeZone = 'UTC', priority = null, enabled = true, catchUp = 'last', catchUpWindow = '1h' } = given
  if (typeof given.job !== 'string' || given.job === '' || given.job.length > 255)
    throw new TypeError('job must be the name of a job')
  const { text } = new Schedule(given.schedule as string, timeZone as string)
  if (priority !== null && !(Number.isSafeInteger(priority) && (priority as number) >= 0))
    throw new TypeError(`priority must be an integer of at least 0, got ${String(priority)}`)
  if (typeof enabled !== 'boolean') throw new TypeError('enabled must be true or false')
  if (catchUp !== 'none' && catchUp !== 'last' && catchUp !== 'all')
    throw new TypeError(`catchUp must be "none", "last" or "all", got ${JSON.stringify(catchUp)}`)
  const window = parseDuration(catchUpWindow)
  if (window === undefined || window === 0)
    throw new TypeError(`catchUpWindow must be a positive duration, got ${JSON.stringify(catchUpWindow)}`)
  return {
    job: given.job,
    schedule: text,
    timeZone: timeZone as string,
    args: (given.args ?? null) as JsonValue,
    queue: textOrNull('queue', given.queue),
    priority: priority as number | null,
    description: textOrNull('description', given.description),
    enabled,
    catchUp,
    catchUpWindow: window,
  }
}

function textOrNull(name: string, value: unknown): string | null {
  if (value === undefined || value === null) return null
  if (typeof value === 'string' && value !== '' && !value.includes('\0')) return value
  throw new TypeError(`${name} must be a non-empty string`)
}

/** By key; null: the configuration says nothing about tasks. */
export const recurringTasks: Rule = custom('record of tasks or null', 'json', value => {
  if (value === null) return { value }
  if (!isPlain(value) || Array.isArray(value)) return { rule: 'must be an object of tasks by key' }
  const tasks: Record<string, ResolvedRecurringTask> = {}
  for (const [key, task] of Object.entries(value)) {
    try {
      tasks[checkTaskKey(key)] = resolveTask(task)
    } catch (error) {
      return { rule: `${key}: ${(error as Error).message}` }
    }
  }
  return { value: tasks }
})
