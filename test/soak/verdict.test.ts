import t from 'tap'
import { type Entry, type Evidence, tally } from '../../benchmark/soak/verdict.ts'

const entry = (n: number, more: Partial<Entry> = {}): Entry => ({
  n,
  pid: 1,
  started: 10_000,
  ended: 10_100,
  threw: false,
  ...more,
})

const judge = (ledger: Entry[], more: Partial<Evidence> = {}) =>
  tally({ expected: [1], maybe: new Set(), ledger, killed: new Set(), breaks: [], ...more })

t.test('given what handlers wrote', async t => {
  t.test('when each job ended once, then there is nothing to say', async t => {
    t.strictSame(judge([entry(1)]), {
      lost: [],
      unknown: [],
      afterKill: 0,
      afterBreak: 0,
      unexplained: [],
      twiceDone: 0,
    })
  })

  t.test('when a job never ended, or never started, then it is lost', async t => {
    t.strictSame(judge([entry(1, { ended: null })], { expected: [1, 2] }).lost, [1, 2])
  })

  t.test('when a job started twice, then only a kill, a cut or its own error excuses that', async t => {
    const twice = [entry(1), entry(1, { pid: 2, started: 11_000, ended: 11_100 })]
    t.match(judge(twice), { unexplained: [1], twiceDone: 1 })
    t.match(judge(twice, { killed: new Set([2]) }), { unexplained: [1] })
    t.match(judge(twice, { killed: new Set([1]) }), { unexplained: [], afterKill: 1 })
    t.match(judge(twice, { breaks: [{ from: 10_050, to: 10_060 }] }), { unexplained: [], afterBreak: 1 })
    t.match(judge(twice, { breaks: [{ from: 9_000, to: 9_999 }] }), { unexplained: [1] })
    t.match(judge([entry(1, { threw: true, ended: null }), entry(1)]), { unexplained: [], lost: [] })
  })

  t.test('when a job ran that nobody enqueued, then it is named unless its enqueue is in doubt', async t => {
    t.strictSame(judge([entry(1), entry(7)]).unknown, [7])
    t.strictSame(judge([entry(1), entry(7)], { maybe: new Set([7]) }).unknown, [])
  })
})
