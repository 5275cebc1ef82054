import { Schedule } from '../../lib/core/schedule.ts'
import { type Command, configOption, jsonOption, printTable, tell, withPgbus } from '../cli.ts'

const keyArgument = [['<key>', 'key of the task']] as const

const list: Command = {
  name: 'recurring list',
  summary: 'show the recurring tasks with their last and next run',
  options: [jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const tasks = await pgbus.recurring.list()
      if (flags.json === true) context.print(JSON.stringify({ tasks }))
      else if (tasks.length === 0)
        context.print('there is no recurring task; a scheduler writes those of the configuration')
      else {
        const head = ['KEY', 'JOB', 'SCHEDULE', 'ZONE', 'LAST RUN', 'NEXT RUN', 'STATE']
        const rows = tasks.map(task => [
          task.key,
          task.job,
          task.schedule,
          task.timeZone,
          task.lastRun?.toISOString() ?? null,
          task.nextRun?.toISOString() ?? null,
          task.enabled ? '' : 'disabled',
        ])
        printTable(context, head, rows)
      }
      return 0
    }),
}

const run: Command = {
  name: 'recurring run',
  args: keyArgument,
  summary: 'enqueue the job of a task now',
  options: [jsonOption, configOption],
  run: (flags, context, [key = '']) =>
    withPgbus(flags, context, async pgbus => {
      const { msgId, queue } = await pgbus.recurring.runNow(key)
      return tell(flags, context, { key, queue, msgId }, `task "${key}" is job ${msgId} of queue "${queue}"`)
    }),
}

/** The command that switches a task on or off. */
const switching = (name: 'enable' | 'disable', summary: string): Command => ({
  name: `recurring ${name}`,
  args: keyArgument,
  summary,
  options: [jsonOption, configOption],
  run: (flags, context, [key = '']) =>
    withPgbus(flags, context, async pgbus => {
      await pgbus.recurring[name](key)
      return tell(flags, context, { key, enabled: name === 'enable' }, `task "${key}" is ${name}d`)
    }),
})

const enable = switching('enable', 'let a task run from now on')
const disable = switching('disable', 'let a task run no more until it is enabled')

const explain: Command = {
  name: 'recurring explain',
  args: [['<schedule>', 'for example "30 2 * * *"']],
  summary: 'print the next ten runs of a schedule; needs no database',
  options: [
    ['--tz <zone>', 'IANA time zone; default UTC'],
    ['--from <date>', 'begin there instead of now'],
    jsonOption,
  ],
  async run(flags, { print }, [text = '']) {
    const schedule = new Schedule(text, typeof flags.tz === 'string' ? flags.tz : 'UTC')
    const from = typeof flags.from === 'string' ? new Date(flags.from) : new Date()
    if (Number.isNaN(from.getTime())) throw new TypeError(`--from is no date: "${String(flags.from)}"`)
    const runs = schedule.nextRuns(10, from)
    if (flags.json === true) {
      print(JSON.stringify({ schedule: text, timeZone: schedule.timeZone, runs }))
      return 0
    }
    const local = new Intl.DateTimeFormat('sv-SE', {
      timeZone: schedule.timeZone,
      dateStyle: 'short',
      timeStyle: 'long',
    })
    for (const { at, shifted, repeated } of runs) {
      const mark = shifted
        ? '  shifted: the clock skips the time meant'
        : repeated
          ? '  the first of two such times'
          : ''
      print(`${at.toISOString()}  ${local.format(at)}${mark}`)
    }
    return 0
  },
}

export const recurringCommands: readonly Command[] = [list, run, enable, disable, explain]
