import {
  type Command,
  configOption,
  idOf,
  jsonOption,
  pageOf,
  pageOptions,
  printTable,
  refuse,
  tell,
  withPgbus,
} from '../cli.ts'

const idArgument = [['<id>', 'id of the entry']] as const
const widestError = 60

const list: Command = {
  name: 'outbox list',
  summary: 'show entries that are not published, oldest first, without their content',
  options: [['--failing', 'only those that could not be sent'], ...pageOptions, jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const { total, entries } = await pgbus.outbox.entries.list({
        failing: flags.failing === true,
        ...pageOf(flags),
      })
      if (flags.json === true) context.print(JSON.stringify({ total, entries }))
      else {
        printTable(
          context,
          ['ID', 'QUEUE', 'ROUTING KEY', 'ATTEMPTS', 'SINCE', 'ERROR'],
          entries.map(entry => [
            entry.id,
            entry.queue,
            entry.routingKey,
            entry.attempts,
            entry.createdAt.toISOString(),
            entry.lastError?.replace(/\s+/g, ' ').slice(0, widestError) ?? null,
          ]),
        )
        context.print(`${total} entries`)
      }
      return 0
    }),
}

const flush: Command = {
  name: 'outbox flush',
  summary: 'publish now what is there',
  options: [jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const result = await pgbus.outbox.flush()
      return tell(flags, context, result, `published ${result.published} entries, ${result.failed} failed`)
    }),
}

const retry: Command = {
  name: 'outbox retry',
  args: [['[id]', 'id of one entry']],
  summary: 'let one entry that failed, or with --all every one, be tried at once',
  options: [['--all', 'all of them'], jsonOption, configOption],
  run: (flags, context, [id]) =>
    withPgbus(flags, context, async pgbus => {
      if ((flags.all === true) === (id !== undefined))
        throw new TypeError('give the id of one entry, or --all')
      let retried = 1
      if (id === undefined) retried = await pgbus.outbox.entries.retryAll()
      else await pgbus.outbox.entries.retry(idOf(id, 'an outbox entry'))
      return tell(flags, context, { retried }, `${retried} entries are tried at the next look`)
    }),
}

const discard: Command = {
  name: 'outbox discard',
  args: idArgument,
  summary: 'delete one entry unpublished',
  options: [['--yes', 'do it; without this flag nothing is changed'], jsonOption, configOption],
  run: (flags, context, [id]) =>
    withPgbus(flags, context, async pgbus => {
      const entry = idOf(id, 'an outbox entry')
      if (flags.yes !== true) return refuse(flags, context, `would delete entry ${entry} unpublished`)
      await pgbus.outbox.entries.discard(entry)
      return tell(flags, context, { id: entry, discarded: true }, `entry ${entry} is deleted`)
    }),
}

export const outboxCommands: readonly Command[] = [list, flush, retry, discard]
