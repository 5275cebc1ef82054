import {
  type Command,
  configOption,
  type Flags,
  idOf,
  jsonOption,
  pageOf,
  pageOptions,
  printDetail,
  printTable,
  refuse,
  tell,
  withPgbus,
} from '../cli.ts'

const queueOption = ['--queue <queue>', 'logical queue that they come from'] as const
const idArgument = [['[id]', 'id of one dead letter']] as const
const widestMessage = 60

const list: Command = {
  name: 'dlq list',
  summary: 'show dead letters, newest first, without their content',
  options: [queueOption, ...pageOptions, jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const { total, deadLetters } = await pgbus.deadLetters.list({
        queue: queueOf(flags),
        ...pageOf(flags),
      })
      if (flags.json === true) context.print(JSON.stringify({ total, deadLetters }))
      else {
        const head = ['ID', 'QUEUE', 'JOB OR EVENT', 'ATTEMPTS', 'SINCE', 'ERROR']
        const rows = deadLetters.map(dead => [
          dead.msgId,
          dead.queue,
          dead.job ?? dead.routingKey,
          dead.attempts,
          dead.deadAt.toISOString(),
          [dead.errorClass, dead.errorMessage?.replace(/\s+/g, ' ').slice(0, widestMessage)]
            .filter(part => part)
            .join(': ') || dead.reason,
        ])
        printTable(context, head, rows)
        context.print(`${total} dead letters`)
      }
      return 0
    }),
}

const show: Command = {
  name: 'dlq show',
  args: [['<id>', 'id of the dead letter']],
  summary: 'show one dead letter with its arguments and its error',
  options: [queueOption, jsonOption, configOption],
  run: (flags, context, [id]) =>
    withPgbus(flags, context, async pgbus => {
      const dead = await pgbus.deadLetters.get(idOf(id, 'a dead letter'), { queue: queueOf(flags) })
      return printDetail(flags, context, dead)
    }),
}

const retry: Command = {
  name: 'dlq retry',
  args: idArgument,
  summary: 'send one, or with --all every, dead letter back to its queue as new',
  options: [queueOption, ['--all', 'all of them'], jsonOption, configOption],
  run: (flags, context, [id]) =>
    withPgbus(flags, context, async pgbus => {
      const ref = { queue: queueOf(flags) }
      if (wantsAll(flags, id)) {
        const retried = await pgbus.deadLetters.retryAll(ref)
        return tell(flags, context, { retried }, `${retried} dead letters are sent back`)
      }
      const sent = await pgbus.deadLetters.retry(idOf(id, 'a dead letter'), ref)
      return tell(flags, context, { retried: 1, ...sent }, `message ${sent.msgId} of queue "${sent.queue}"`)
    }),
}

const discard: Command = {
  name: 'dlq discard',
  args: idArgument,
  summary: 'delete one, or with --all every, dead letter for ever',
  options: [
    queueOption,
    ['--all', 'all of them'],
    ['--yes', 'do it; without this flag nothing is changed'],
    jsonOption,
    configOption,
  ],
  run: (flags, context, [id]) =>
    withPgbus(flags, context, async pgbus => {
      const ref = { queue: queueOf(flags) }
      const all = wantsAll(flags, id)
      if (flags.yes !== true) {
        const count = all ? (await pgbus.deadLetters.list({ ...ref, perPage: 1 })).total : 1
        if (!all) await pgbus.deadLetters.get(idOf(id, 'a dead letter'), ref)
        return refuse(flags, context, `would delete ${count} dead letters for ever`)
      }
      let discarded = 1
      if (all) discarded = await pgbus.deadLetters.discardAll(ref)
      else await pgbus.deadLetters.discard(idOf(id, 'a dead letter'), ref)
      return tell(flags, context, { discarded }, `${discarded} dead letters are deleted`)
    }),
}

export const deadLetterCommands: readonly Command[] = [list, show, retry, discard]

function queueOf({ queue }: Flags): string | undefined {
  return typeof queue === 'string' ? queue : undefined
}

function wantsAll(flags: Flags, id: string | undefined): boolean {
  if ((flags.all === true) === (id === undefined)) return flags.all === true
  throw new TypeError('give the id of one dead letter, or --all')
}
