import { pino } from 'pino'
import t from 'tap'
import type { ChildBeat } from '../../../lib/processes/messages.ts'
import { Watchdog, type Watched, watchdogIntervalMs } from '../../../lib/processes/supervisor/watchdog.ts'

const threshold = 90_000
const busy: ChildBeat = { loop: 100, oldest: { queue: 'mail', msgId: 7, ms: 5 } }

const setup = () => {
  let now = 1_000_000
  const lines: { msg: string; running?: unknown }[] = []
  const killed: string[] = []
  let life: Watched['life']
  const watchdog = new Watchdog({
    threshold,
    children: () => [{ slot: 'worker:0.0', pid: 4711, life, kill: reason => void killed.push(reason) }],
    log: pino({ level: 'info' }, { write: line => void lines.push(JSON.parse(line)) }),
    now: () => now,
  })
  watchdog.start()
  watchdog.stop()
  return {
    killed,
    lines,
    /** Looks again and again, as the timer does, for `ms`. */
    pass: (ms: number, state: (now: number) => Watched['life']) => {
      for (let left = ms; left > 0; left -= watchdogIntervalMs) {
        now += watchdogIntervalMs
        life = state(now)
        watchdog.look()
      }
    },
    sleep: (ms: number) => {
      now += ms
      watchdog.look()
    },
    at: () => now,
  }
}

t.test('given a child that gives signs of life', async t => {
  t.test('when its loop goes round, or it has none, then it is left alone', async t => {
    const { pass, killed } = setup()
    pass(3 * threshold, now => ({ at: now - 900, beat: busy }))
    pass(3 * threshold, now => ({ at: now - 900, beat: { loop: null, oldest: null } }))
    t.strictSame(killed, [])
  })

  t.test('when its loop stands still, then it is killed, and the job it runs is named', async t => {
    const { pass, killed, lines } = setup()
    pass(20_000, now => ({ at: now, beat: { ...busy, loop: threshold - 1 } }))
    t.strictSame(killed, [])
    pass(10_000, now => ({ at: now - 1, beat: { ...busy, loop: threshold } }))
    t.strictSame(killed, ['was stalled: its claim loop stands still for 90 s'])
    t.match(lines, [{ msg: /^worker:0\.0 is stalled/, running: { queue: 'mail', msgId: 7 } }])
  })
})

t.test('given a child that is silent', async t => {
  t.test('when that lasts, then it is killed', async t => {
    const { pass, killed, at } = setup()
    const last = at()
    const silent = () => ({ at: last, beat: { ...busy, loop: 0 } })
    pass(threshold, silent)
    t.strictSame(killed, [], 'not before the threshold')
    pass(10_000, silent)
    t.strictSame(killed, ['was stalled: no sign of life for 100 s'])
  })

  t.test('when it boots or ends, then others have an eye on it', async t => {
    const { pass, killed } = setup()
    pass(3 * threshold, () => undefined)
    t.strictSame(killed, [])
  })

  t.test('when the host slept, then one look passes before anybody is blamed', async t => {
    const { pass, sleep, killed, at } = setup()
    const before = at()
    pass(10_000, () => ({ at: before, beat: busy }))
    sleep(3_600_000)
    t.strictSame(killed, [])
    pass(10_000, () => ({ at: before, beat: busy }))
    t.equal(killed.length, 1)
  })
})
