import fc from 'fast-check'
import t from 'tap'
import type { HeldToken } from '../../../lib/jobs/held-tokens.ts'
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
  const ids = (tables: Map<string, { msgId: number }[]>) =>
    [...tables].flatMap(([, tokens]) => tokens.map(({ msgId }) => msgId)).sort()
  const held = () => [...ids(set.waiting), ...ids(set.running)].sort()
  return { reporter, deliver, held, ids, messages, set, onTheWay }
}

t.test('given a child that reports what it holds', async t => {
  t.test('when it claims, then its supervisor knows at once', async t => {
    const { reporter, onTheWay } = setup()
    void reporter.report({ claimed: [token(1), token(2)] })
    t.strictSame(
      onTheWay.map(({ difference }) => difference),
      [{ claimed: [token(1), token(2)], running: [], done: [] }],
    )
  })

  t.test('when jobs end faster than the channel, then they are never mentioned', async t => {
    const { reporter, deliver, held, messages } = setup()
    void reporter.report({ running: [token(1)] })
    for (let id = 2; id < 1_000; id += 1) {
      void reporter.report({ running: [token(id)] })
      void reporter.report({ done: [token(id)] })
    }
    void reporter.report({ running: [token(1_000)] })
    while (deliver());
    t.equal(messages.length, 2)
    t.strictSame(held(), [1, 1_000])
  })

  t.test('when a delivery is given back and claimed again, then it is held', async t => {
    const { reporter, deliver, held } = setup()
    void reporter.report({ running: [token(1)] })
    void reporter.report({ done: [token(1)] })
    void reporter.report({ claimed: [token(1)] })
    while (deliver());
    t.strictSame(held(), [1])
    void reporter.report({ done: [token(1)] })
    while (deliver());
    t.strictSame(held(), [])
  })

  t.test('when an end is reported, then that resolves once it has been sent, and not before', async t => {
    const { reporter, deliver, held } = setup()
    void reporter.report({ running: [token(1)] })
    let sent = false
    const reported = reporter.report({ done: [token(1)] }).then(() => {
      sent = true
    })
    await new Promise(setImmediate)
    t.equal(sent, false, 'the channel is busy')
    deliver()
    await new Promise(setImmediate)
    t.equal(sent, false, 'it has just left')
    t.strictSame(held(), [1])
    deliver()
    await reported
    t.strictSame(held(), [])
    await reporter.report({ done: [token(2)] })
    t.pass('nothing to tell is told at once')
  })

  t.test('when what was to be told has ended meanwhile, then whoever waits goes on', async t => {
    const { reporter, deliver } = setup()
    void reporter.report({ running: [token(1)] })
    const claimed = reporter.report({ claimed: [token(2)] })
    void reporter.report({ done: [token(2)] })
    deliver()
    await claimed
    t.equal(deliver(), false)
  })

  t.test('when anything happens in any order, then both ends agree once all has arrived', async () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.integer({ min: 0, max: 5 }), fc.boolean(), fc.boolean())), steps => {
        const { reporter, deliver, ids, set } = setup()
        const truth = new Map<number, 'claimed' | 'running'>()
        for (const [id, starts, arrives] of steps) {
          const state = truth.get(id)
          if (state === 'running' || (state === 'claimed' && !starts)) {
            truth.delete(id)
            void reporter.report({ done: [token(id)] })
          } else {
            const next = starts ? 'running' : 'claimed'
            truth.set(id, next)
            void reporter.report({ [next]: [token(id)] })
          }
          if (arrives) deliver()
        }
        while (deliver());
        const are = (wanted: string) =>
          [...truth].flatMap(([id, state]) => (state === wanted ? [id] : [])).sort()
        return (
          String(ids(set.waiting)) === String(are('claimed')) &&
          String(ids(set.running)) === String(are('running'))
        )
      }),
    )
  })

  t.test('when tokens are grouped, then by table', async t => {
    const { set } = setup()
    set.apply({ claimed: [token(2)], running: [token(1), ['pgbus_mail', 1, 3]], done: [] })
    t.strictSame([...set.waiting], [['pgbus_default', [{ msgId: 2, readCount: 1 }]]])
    t.strictSame(
      [...set.running],
      [
        ['pgbus_default', [{ msgId: 1, readCount: 1 }]],
        ['pgbus_mail', [{ msgId: 1, readCount: 3 }]],
      ],
    )
    t.equal(set.size, 3)
  })
})
