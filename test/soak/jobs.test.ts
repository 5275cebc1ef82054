import t from 'tap'
import { compiled, spawnNode } from '../support/spawn.ts'

/** With its start, its end and the leases that must run out this takes a minute. */
const seconds = '35'

t.test('given jobs under violence for a while', async t => {
  t.test('when all is counted, then none is lost and none ran twice without a reason', async t => {
    const soak = spawnNode(t, compiled('benchmark/soak/jobs.ts'), ['--seconds', seconds])
    t.strictSame(await soak.exited, { code: 0, signal: null }, soak.output())
    t.comment(soak.output())
    t.match(soak.output(), /jobs that had to run +[1-9]/)
    t.match(soak.output(), /workers killed +[1-9]/)
  })
})
