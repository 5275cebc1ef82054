import t from 'tap'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { processStatus } from '../../lib/health/process-status.ts'

t.test('given the row of a process', async t => {
  const config = resolveConfig(
    {
      stallThreshold: '90s',
      dispatchInterval: '20s',
      pollingInterval: '1s',
      recurring: { interval: '10s' },
    },
    {},
  )
  const polling = { ...config, notify: { ...config.notify, enabled: false } }
  /** Kind, seconds of silence, seconds that its loop stood still at the last heartbeat. */
  const cases = [
    ['worker', 0, 0.2, config, 'healthy'],
    ['worker', 300, 90, config, 'healthy'],
    ['worker', 300.1, 0, config, 'stale'],
    ['worker', 300.1, 500, config, 'stale'],
    ['worker', 10, 90.1, config, 'stalled'],
    ['worker', 10, null, config, 'healthy'],
    ['worker', 10, 500, { ...config, stallThreshold: null }, 'healthy'],
    ['dispatcher', 10, 110, config, 'healthy'],
    ['dispatcher', 10, 110.1, config, 'stalled'],
    ['scheduler', 10, 100, config, 'healthy'],
    ['scheduler', 10, 100.1, config, 'stalled'],
    ['consumer', 10, 105, config, 'healthy'],
    ['consumer', 10, 105.1, config, 'stalled'],
    ['consumer', 10, 91.1, polling, 'stalled'],
    ['supervisor', 10, 500, config, 'healthy'],
    ['somebody elses', 10, 500, config, 'healthy'],
  ] as const
  for (const [kind, silence, loopAge, rules, expected] of cases) {
    t.test(`when a ${kind} is silent for ${silence} s and its loop for ${loopAge} s`, async t => {
      t.equal(processStatus({ kind, silence, loopAge }, rules), expected)
    })
  }
})
