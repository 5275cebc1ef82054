import { readFileSync } from 'node:fs'
import t from 'tap'
import { Room } from '../../lib/streams/room.ts'
import { type RoomClass, simulate } from './room-simulation.ts'

t.setTimeout(180_000)

const runs = 250
const firstSeed = Number(process.env.PGBUS_TEST_SEED ?? Date.now() % 1_000_000_000)

t.test('given a room and everything that can happen around it, in any order', async t => {
  t.test('when it is over, then no message was lost, repeated or out of order', async t => {
    t.comment(`PGBUS_TEST_SEED=${firstSeed}`)
    const sum = { delivered: 0, joined: 0, lagged: 0 }
    for (let seed = firstSeed; seed < firstSeed + runs; seed += 1) {
      const { problem, delivered, joined, lagged } = await simulate(seed, Room)
      sum.delivered += delivered
      sum.joined += joined
      sum.lagged += lagged
      if (problem !== null) return t.fail(`PGBUS_TEST_SEED=${seed}: ${problem}`)
    }
    t.comment(JSON.stringify(sum))
    t.ok(sum.delivered > 5 * runs && sum.joined > 2 * runs, 'there was something to lose')
    t.ok(sum.lagged > 0, 'there were clients that did not read')
  })
})

/** The same room with one mistake. Each has to be found, or the simulation proves nothing. */
const mistakes: [string, RegExp, string][] = [
  [
    'makes a connection live outside a pass',
    /connection\.markReady\(\);\s*this\.#askForPass\(\);/,
    'connection.markReady(); connection.promote();',
  ],
  ['reads before LISTEN is established', /await listening;/, ''],
  [
    'lets connections into a pass that is already reading',
    /for \(const connection of members\)/,
    'for (const connection of this.#connections)',
  ],
  [
    'forgets a wake that comes during a pass',
    /this\.#again = true;/,
    'if (this.#running) return; this.#again = true;',
  ],
  [
    'reads one page per pass',
    /(position = row\.id;[\s\S]*?)if \(rows\.length < this\.#pageSize\)\s*break;/,
    '$1break;',
  ],
  [
    'starts a pass at the highest position',
    /Math\.min\(position, connection\.scan\)/,
    'Math.max(position === Infinity ? 0 : position, connection.scan)',
  ],
  [
    'goes on writing to a client that has fallen behind',
    /members\.delete\(connection\);\s*void this\.#resume/,
    'void this.#resume',
  ],
  [
    'gives up a read that failed',
    /if \(!signal\.aborted\)\s*await sleep\(backoff\.next\(\), signal\);/,
    'return undefined;',
  ],
]

t.test('given a room with a mistake', async t => {
  for (const [what, pattern, replacement] of mistakes) {
    t.test(`when it ${what}, then the simulation finds it`, async t => {
      const MistakenRoom = await roomWith(pattern, replacement)
      // The same seeds each time, so that this test does not depend on luck.
      for (let seed = 1; seed <= 1_000; seed += 1) {
        const { problem } = await simulate(seed, MistakenRoom)
        if (problem !== null) return t.pass(`after ${seed} runs: ${problem.slice(0, 200)}`)
      }
      return t.fail('not found in 1000 runs')
    })
  }
})

/** The compiled module with a piece of its text replaced. */
async function roomWith(pattern: RegExp, replacement: string): Promise<RoomClass> {
  const url = new URL('../../lib/streams/room.js', import.meta.url)
  // A module made from text has no place that a source map could be relative to.
  const text = readFileSync(url, 'utf8').replace(/^\/\/# sourceMappingURL=.*$/m, '')
  const changed = text.replace(pattern, replacement)
  if (changed === text) throw new Error(`lib/streams/room.ts has nothing like ${pattern} any more`)
  const absolute = changed.replace(
    /from '(\.[^']+)'/g,
    (_, path: string) => `from '${new URL(path, url).href}'`,
  )
  const module = (await import(`data:text/javascript,${encodeURIComponent(absolute)}`)) as { Room: RoomClass }
  return module.Room
}
