import type { Pgbus } from '../../lib/pgbus.ts'
import {
  type Command,
  type Context,
  configOption,
  type Flags,
  jsonOption,
  load,
  numberOf,
  printTable,
  refuse,
  tell,
  withPgbus,
} from '../cli.ts'

/** Runs `work` with the handlers of the application defined. */
async function withHandlers(
  flags: Flags,
  context: Context,
  work: (pgbus: Pgbus) => Promise<number>,
): Promise<number> {
  const { config, file } = await load(flags, context)
  const { findModules, importModules } = await import('../../lib/processes/supervisor/imports.ts')
  const { files, unmatched } = findModules(config.imports, file)
  for (const pattern of unmatched) context.warn(`pgbus: imports: "${pattern}" matches no module`)
  await importModules(files)
  return withPgbus(flags, context, work)
}

const list: Command = {
  name: 'events list',
  summary:
    'show by which patterns events are routed to which queues, and whether a handler still asks for it',
  options: [jsonOption, configOption],
  run: (flags, context) =>
    withHandlers(flags, context, async pgbus => {
      const bindings = await pgbus.events.bindings()
      if (flags.json === true) context.print(JSON.stringify({ bindings }))
      else {
        const state = { true: 'yes', false: 'no', null: '-' }
        printTable(
          context,
          ['QUEUE', 'PATTERN', 'DECLARED', 'SINCE'],
          bindings.map(({ queue, pattern, declared, boundAt }) => [
            queue,
            pattern,
            state[`${declared}`],
            boundAt.toISOString(),
          ]),
        )
        context.print(`${bindings.length} routes`)
      }
      return 0
    }),
}

const test: Command = {
  name: 'events test',
  args: [['<routing-key>', 'for example orders.created']],
  summary: 'show which queues would get an event with this key',
  options: [jsonOption, configOption],
  run: (flags, context, [key = '']) =>
    withPgbus(flags, context, async pgbus => {
      const routes = await pgbus.events.test(key)
      if (flags.json === true) context.print(JSON.stringify({ routes }))
      else if (routes.length === 0) context.print(`no queue would get an event "${key}"`)
      else
        printTable(
          context,
          ['QUEUE', 'PATTERN'],
          routes.map(({ queue, pattern }) => [queue, pattern]),
        )
      return 0
    }),
}

const prune: Command = {
  name: 'events prune',
  summary: 'remove routes to queues of our handlers that no handler asks for any more',
  options: [['--yes', 'do it; without this flag nothing is changed'], jsonOption, configOption],
  run: (flags, context) =>
    withHandlers(flags, context, async pgbus => {
      if (flags.yes !== true) {
        const stale = (await pgbus.events.bindings()).filter(({ declared }) => declared === false)
        const names = stale.map(({ pattern, queue }) => `"${pattern}" of queue "${queue}"`)
        return refuse(flags, context, `would remove ${stale.length} routes: ${names.join(', ')}`)
      }
      const removed = await pgbus.events.prune()
      return tell(flags, context, { removed }, `${removed.length} routes are removed`)
    }),
}

const pending: Command = {
  name: 'events pending',
  summary: 'show what idempotent handlers have begun with and not completed, oldest first',
  options: [['--limit <number>', 'default 100'], jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const claims = await pgbus.events.pending({ limit: numberOf(flags.limit) })
      if (flags.json === true) context.print(JSON.stringify({ pending: claims }))
      else {
        const rows = claims.map(({ eventId, handler, queue, msgId, since }) => [
          eventId,
          handler,
          queue,
          msgId,
          since.toISOString(),
        ])
        printTable(context, ['EVENT', 'HANDLER', 'QUEUE', 'MESSAGE', 'SINCE'], rows)
        context.print(`${claims.length} events are not completed`)
      }
      return 0
    }),
}

const handled: Command = {
  name: 'events handled',
  args: [
    ['<event-id>', 'the event'],
    ['<handler>', 'name of an idempotent handler'],
  ],
  summary: 'note that a handler has handled an event, so that no further delivery runs it',
  options: [['--yes', 'do it; without this flag nothing is changed'], jsonOption, configOption],
  run: (flags, context, [eventId = '', handler = '']) =>
    withHandlers(flags, context, async pgbus => {
      if (flags.yes !== true)
        return refuse(flags, context, `would keep handler "${handler}" from event "${eventId}"`)
      await pgbus.events.markHandled(eventId, handler)
      return tell(
        flags,
        context,
        { eventId, handler },
        `event "${eventId}" counts as handled by "${handler}"`,
      )
    }),
}

export const eventCommands: readonly Command[] = [list, test, prune, pending, handled]
