import t from 'tap'
import { CompletedEvents } from '../../lib/events/completed-events.ts'

t.test('given the events that a handler has completed', async t => {
  let now = 0
  const completed = new CompletedEvents(() => now)

  t.test('when five minutes have passed, then one is forgotten', async t => {
    completed.add('a')
    now = 299_999
    t.ok(completed.has('a'))
    now = 300_000
    t.notOk(completed.has('a'))
    t.equal(completed.size, 0)
  })

  t.test(
    'when one is set again while there is no room, then the oldest goes, never the fresh one',
    async t => {
      for (let n = 0; n < 10_000; n += 1) completed.add(`e${n}`)
      now += 300_000
      completed.add('e0')
      completed.add('new')
      t.equal(completed.size, 10_000)
      t.ok(completed.has('e0'))
      t.ok(completed.has('new'))
      for (let n = 0; n < 20_000; n += 1) completed.add(`f${n}`)
      t.equal(completed.size, 10_000)
    },
  )
})
