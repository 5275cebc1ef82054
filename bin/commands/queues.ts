import { closest } from 'fastest-levenshtein'
import { QueueNotFoundError } from '../../lib/core/errors.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import type { QueueMetrics } from '../../lib/pgmq/queues.ts'
import { type Command, configOption, jsonOption, printTable, refuse, tell, withPgbus } from '../cli.ts'

const queueArgument = [['<queue>', 'logical name']] as const
const yesOption = ['--yes', 'do it; without this flag nothing is changed'] as const

const list: Command = {
  name: 'queues list',
  summary: 'show the queues and how much they hold',
  options: [['--all', 'dead-letter queues too'], jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const all = await pgbus.queues.metrics()
      const queues = flags.all === true ? all : all.filter(({ kind }) => kind === 'job')
      const paused = new Set(await pgbus.queues.paused())
      if (flags.json === true) {
        context.print(
          JSON.stringify({ queues: queues.map(queue => ({ ...queue, paused: isPaused(queue, paused) })) }),
        )
      } else if (queues.length === 0) context.print('there is no queue yet; the first job makes one')
      else {
        const head = ['QUEUE', 'DEPTH', 'VISIBLE', 'OLDEST CLAIMABLE (s)', 'TOTAL', 'STATE']
        const rows = queues.map(queue => [
          queue.physical,
          queue.length,
          queue.visibleLength,
          queue.oldestClaimableAge === null ? null : Math.round(queue.oldestClaimableAge),
          queue.total,
          isPaused(queue, paused) ? 'paused' : '',
        ])
        printTable(context, head, rows)
      }
      return 0
    }),
}

function isPaused({ kind, name }: QueueMetrics, paused: ReadonlySet<string>): boolean {
  return kind === 'job' && paused.has(name)
}

const pause: Command = {
  name: 'queues pause',
  args: queueArgument,
  summary: 'let no worker take jobs of a queue; running jobs finish',
  options: [['--reason <text>', 'why, for others to read'], jsonOption, configOption],
  run: (flags, context, [queue = '']) =>
    withPgbus(flags, context, async pgbus => {
      await known(pgbus, queue)
      await pgbus.queues.pause(queue, typeof flags.reason === 'string' ? flags.reason : undefined)
      return tell(flags, context, { queue, paused: true }, `queue "${queue}" is paused`)
    }),
}

const resume: Command = {
  name: 'queues resume',
  args: queueArgument,
  summary: 'let workers go on with a queue',
  options: [jsonOption, configOption],
  run: (flags, context, [queue = '']) =>
    withPgbus(flags, context, async pgbus => {
      await known(pgbus, queue)
      await pgbus.queues.resume(queue)
      return tell(flags, context, { queue, paused: false }, `queue "${queue}" goes on`)
    }),
}

const purge: Command = {
  name: 'queues purge',
  args: queueArgument,
  summary: 'delete all jobs of a queue, those in progress included',
  options: [yesOption, jsonOption, configOption],
  run: (flags, context, [queue = '']) =>
    withPgbus(flags, context, async pgbus => {
      const held = (await known(pgbus, queue)).reduce((sum, { length }) => sum + length, 0)
      if (flags.yes !== true) return refuse(flags, context, `would delete ${held} jobs of queue "${queue}"`)
      const deleted = await pgbus.queues.purge(queue)
      return tell(flags, context, { queue, deleted }, `${deleted} jobs of queue "${queue}" are deleted`)
    }),
}

const drop: Command = {
  name: 'queues drop',
  args: queueArgument,
  summary: 'delete a queue with its jobs and its archive; dead letters stay',
  options: [yesOption, jsonOption, configOption],
  run: (flags, context, [queue = '']) =>
    withPgbus(flags, context, async pgbus => {
      const held = (await known(pgbus, queue)).reduce((sum, { length }) => sum + length, 0)
      if (flags.yes !== true)
        return refuse(flags, context, `would drop queue "${queue}" with ${held} jobs and its archive`)
      const dropped = await pgbus.queues.drop(queue)
      return tell(flags, context, { queue, dropped }, `queue "${queue}" is dropped`)
    }),
}

export const queueCommands: readonly Command[] = [list, pause, resume, purge, drop]

/** What the queue holds. @throws QueueNotFoundError with the name that was probably meant. */
async function known(pgbus: Pgbus, queue: string): Promise<QueueMetrics[]> {
  const found = await pgbus.queues.metrics(queue)
  if (found.length > 0) return found
  const names = (await pgbus.queues.list()).filter(({ kind }) => kind === 'job').map(({ name }) => name)
  const hint = names.length > 0 ? `; did you mean "${closest(queue, names)}"?` : ''
  throw new QueueNotFoundError(`there is no queue "${queue}"${hint}`)
}
