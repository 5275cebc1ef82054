import { readFileSync } from 'node:fs'
import t from 'tap'
import * as surface from '../../lib/index.ts'
import { waitFor } from '../support/wait-for.ts'
import { setup } from './support.ts'

/** The code blocks of a page, as they are. */
const page = readFileSync(new URL('../../../docs/events.md', import.meta.url), 'utf8')
const blocks = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map(match => match[1] ?? '')
const blockWith = (text: string) => blocks.find(block => block.includes(text)) ?? ''

t.test('given the page about events', async t => {
  const bench = await setup(t)
  const { db, pgbus } = bench
  const mails: unknown[] = []
  const send = async (to: unknown) => void mails.push(to)
  await db.query('CREATE TABLE entries (event text, amount int)')

  t.test('when its example is run, then its handlers do what it says', async t => {
    const definitions = blockWith('// handlers.ts')
      .split('// pgbus.config.ts')[0]!
      .replace(/^import .*$/m, '')
    new Function('defineHandler', 'send', definitions)(surface.defineHandler, send)
    await bench.consume()
    await run(blockWith("publish('orders.created'"))
    await waitFor(async () => (await db.query('SELECT 1 FROM entries')).length === 3)
    await waitFor(() => mails.length === 1)
    t.same(mails, ['ann@example.org'])
    t.same(await db.query('SELECT amount FROM entries ORDER BY 1'), [
      { amount: 3 },
      { amount: 12 },
      { amount: 12 },
    ])
    t.equal((await bench.rows('pgbus_bookkeeping')).length, 1, 'the one of later waits')
    await run(blockWith('pgbus.events.handlers()'))
  })

  async function run(code: string): Promise<void> {
    await (new Function('pgbus', `return (async () => {${code}})()`)(pgbus) as Promise<void>)
  }
})
