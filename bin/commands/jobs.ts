import type { JobState } from '../../lib/jobs/jobs.ts'
import {
  type Command,
  configOption,
  idOf,
  jsonOption,
  numberOf,
  pageOf,
  pageOptions,
  printDetail,
  printTable,
  tell,
  withPgbus,
} from '../cli.ts'

const jobArguments = [
  ['<queue>', 'logical name'],
  ['<id>', 'message id of the job'],
] as const
const priorityOption = ['--priority <level>', 'level of its table, where several levels have the id'] as const

const list: Command = {
  name: 'jobs list',
  args: [['<queue>', 'logical name']],
  summary: 'show jobs of a queue, the next one first, without their arguments',
  options: [
    ['--state <state>', 'only those scheduled, ready, running or retrying'],
    ...pageOptions,
    jsonOption,
    configOption,
  ],
  run: (flags, context, [queue = '']) =>
    withPgbus(flags, context, async pgbus => {
      const { total, jobs } = await pgbus.jobs.list(queue, {
        // What is no state is refused there.
        state: flags.state as JobState | undefined,
        ...pageOf(flags),
      })
      if (flags.json === true) context.print(JSON.stringify({ total, jobs }))
      else {
        const head = ['ID', 'JOB', 'STATE', 'ATTEMPTS', 'DUE', 'PRIORITY', 'ERROR']
        const rows = jobs.map(job => [
          job.msgId,
          job.job,
          job.state,
          job.attempts,
          job.dueAt.toISOString(),
          job.priority,
          job.errorClass,
        ])
        printTable(context, head, rows)
        context.print(`${total} jobs`)
      }
      return 0
    }),
}

const show: Command = {
  name: 'jobs show',
  args: jobArguments,
  summary: 'show one job with its arguments, also one that is archived',
  options: [priorityOption, jsonOption, configOption],
  run: (flags, context, [queue = '', id]) =>
    withPgbus(flags, context, async pgbus => {
      const job = await pgbus.jobs.get(queue, idOf(id, 'a job'), { priority: numberOf(flags.priority) })
      return printDetail(flags, context, job)
    }),
}

const cancel: Command = {
  name: 'jobs cancel',
  args: jobArguments,
  summary: 'end a job, whether it waits or runs; its message is archived',
  options: [
    ['--reason <text>', 'why, for its handler and for others to read'],
    priorityOption,
    jsonOption,
    configOption,
  ],
  run: (flags, context, [queue = '', id]) =>
    withPgbus(flags, context, async pgbus => {
      const msgId = idOf(id, 'a job')
      const result = await pgbus.jobs.cancel(queue, msgId, {
        reason: typeof flags.reason === 'string' ? flags.reason : undefined,
        priority: numberOf(flags.priority),
      })
      const found = result.status === 'cancelled'
      tell(
        flags,
        context,
        result,
        !found
          ? `queue "${queue}" has no job ${msgId} (any more); nothing was changed`
          : `job ${msgId} is cancelled${result.wasRunning ? '; the worker that runs it is told' : ''}`,
      )
      return found ? 0 : 1
    }),
}

export const jobCommands: readonly Command[] = [list, show, cancel]
