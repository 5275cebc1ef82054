import fc from 'fast-check'
import t from 'tap'
import type { HeldToken } from '../../../lib/jobs/claim.ts'
import { type HeldDifference, HeldReporter, HeldSet } from '../../../lib/processes/supervisor/held.ts'

const token = (msgId: number, readCount = 1): HeldToken => ['pgbus_default', msgId, readCount]

/** A reporter whose channel is slow: differences wait until `deliver`. */
const setup = () => {
  const onTheWay: { difference: HeldDifference; sent: () => void }[] = []
  const messages: HeldDifference[] = []
  const set = new HeldSet()
  const reporter = new HeldReporter((difference, sent) => onTheWay.push({ difference, sent }))
  const deliver = () => {
    const next = onTheWay.shift()
    if (!next) return false
    messages.push(next.difference)
    set.apply(next.difference)
    next.sent()
    return true
  }
  const held = () => [...set.byTable()].flatMap(([, tokens]) => tokens.map(({ msgId }) => msgId)).sort()
  return { reporter, deliver, held, messages, set, onTheWay }
}

t.test('given a child that reports what it holds', async t => {
  t.test('when it claims, then its supervisor knows at once', async t => {
    const { reporter, onTheWay } = setup()
    reporter.report([token(1), token(2)], [])
    t.strictSame(
      onTheWay.map(({ difference }) => difference),
      [{ taken: [token(1), token(2)], done: [] }],
    )
  })

  t.test('when jobs end faster than the channel, then they are never mentioned', async t => {
    const { reporter, deliver, held, messages } = setup()
    reporter.report([token(1)], [])
    for (let id = 2; id < 1_000; id += 1) {
      reporter.report([token(id)], [])
      reporter.report([], [token(id)])
    }
    reporter.report([token(1_000)], [])
    while (deliver());
    t.equal(messages.length, 2)
    t.strictSame(held(), [1, 1_000])
  })

  t.test('when a delivery is given back and claimed again, then it is held', async t => {
    const { reporter, deliver, held } = setup()
    reporter.report([token(1)], [])
    reporter.report([], [token(1)])
    reporter.report([token(1)], [])
    while (deliver());
    t.strictSame(held(), [1])
    reporter.report([], [token(1)])
    while (deliver());
    t.strictSame(held(), [])
  })

  t.test('when anything happens in any order, then both ends agree once all has arrived', async () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 5 }), fc.boolean())), steps => {
        const { reporter, deliver, held } = setup()
        const truth = new Set<number>()
        for (const [id, arrives] of steps) {
          if (truth.delete(id)) reporter.report([], [token(id)])
          else {
            truth.add(id)
            reporter.report([token(id)], [])
          }
          if (arrives) deliver()
        }
        while (deliver());
        return String(held()) === String([...truth].sort())
      }),
    )
  })

  t.test('when tokens are grouped, then by table', async t => {
    const { set } = setup()
    set.apply({ taken: [token(1), ['pgbus_mail', 1, 3]], done: [] })
    t.strictSame(
      [...set.byTable()],
      [
        ['pgbus_default', [{ msgId: 1, readCount: 1 }]],
        ['pgbus_mail', [{ msgId: 1, readCount: 3 }]],
      ],
    )
    t.equal(set.size, 2)
  })
})
