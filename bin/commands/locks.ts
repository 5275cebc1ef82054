import {
  type Command,
  configOption,
  jsonOption,
  numberOf,
  printTable,
  refuse,
  tell,
  withPgbus,
} from '../cli.ts'

const list: Command = {
  name: 'locks list',
  summary: 'show the locks of unique jobs, the newest first',
  options: [['--limit <number>', 'default 100'], jsonOption, configOption],
  run: (flags, context) =>
    withPgbus(flags, context, async pgbus => {
      const locks = await pgbus.locks.list({ limit: numberOf(flags.limit) })
      if (flags.json === true) context.print(JSON.stringify({ locks }))
      else if (locks.length === 0) context.print('no unique job waits or runs')
      else {
        const rows = locks.map(lock => [lock.key, lock.queue, lock.msgId, lock.since.toISOString()])
        printTable(context, ['KEY', 'QUEUE', 'JOB', 'SINCE'], rows)
      }
      return 0
    }),
}

const discard: Command = {
  name: 'locks discard',
  args: [['<key>', 'as "locks list" shows it']],
  summary: 'let another job with this key be enqueued although one has not ended; that one stays',
  options: [['--yes', 'do it'], jsonOption, configOption],
  run: (flags, context, [key = '']) => {
    if (flags.yes !== true)
      return Promise.resolve(refuse(flags, context, `the lock "${key}" would be discarded`))
    return withPgbus(flags, context, async pgbus => {
      const discarded = await pgbus.locks.discard(key)
      tell(
        flags,
        context,
        { key, discarded },
        discarded ? `lock "${key}" is discarded` : `there is no lock "${key}"`,
      )
      return discarded ? 0 : 1
    })
  },
}

export const lockCommands: readonly Command[] = [list, discard]
