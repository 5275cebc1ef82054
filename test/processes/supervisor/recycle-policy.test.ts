import t from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import { RecyclePolicy } from '../../../lib/processes/supervisor/recycle-policy.ts'

const setup = (recycle: object, random = 0) => {
  const state = { now: 0, rss: 50 * 1024 * 1024, samples: 0 }
  const policy = new RecyclePolicy(resolveConfig({ recycle }, {}).recycle, {
    now: () => state.now,
    memory: () => {
      state.samples += 1
      return state.rss
    },
    random: () => random,
  })
  return { state, policy }
}

const fresh = { processed: 0, stuck: 0 }

t.test('given no limits', async t => {
  t.test('when a process is old and busy, then it stays', async t => {
    const { state, policy } = setup({})
    state.now = 1e9
    state.rss = 1e12
    t.equal(policy.reason({ processed: 1e9, stuck: 0 }), undefined)
    t.equal(state.samples, 0)
  })

  t.test('when a handler ignores its timeout, then the process goes', async t => {
    const { policy } = setup({})
    t.equal(policy.reason({ processed: 3, stuck: 1 }), 'stuck_job: 1 handlers ignore their timeout')
  })
})

t.test('given limits', async t => {
  t.test('when enough jobs are handled, then it says so once', async t => {
    const { policy } = setup({ maxJobs: 10 })
    t.equal(policy.reason({ processed: 9, stuck: 0 }), undefined)
    t.equal(policy.reason({ processed: 12, stuck: 0 }), 'max_jobs: 12 jobs handled')
    t.equal(policy.reason({ processed: 13, stuck: 0 }), undefined)
  })

  t.test('when memory grows, then it is looked at every 5 s at most', async t => {
    const { state, policy } = setup({ maxMemoryMb: 100 })
    t.equal(policy.reason(fresh), undefined)
    state.rss = 101 * 1024 * 1024
    state.now = 4_999
    t.equal(policy.reason(fresh), undefined)
    state.now = 5_000
    t.equal(policy.reason(fresh), 'max_memory: 101 MiB used')
    t.equal(state.samples, 2)
  })

  t.test('when siblings grow old together, then they do not go together', async t => {
    const early = setup({ maxLifetime: '100s' }, 0)
    const late = setup({ maxLifetime: '100s' }, 0.99)
    early.state.now = 100_001
    late.state.now = 100_001
    t.equal(early.policy.reason(fresh), 'max_lifetime: 100 s old')
    t.equal(late.policy.reason(fresh), undefined)
    late.state.now = 110_000
    t.equal(late.policy.reason(fresh), 'max_lifetime: 110 s old')
  })

  t.test('when they make no sense, then they are refused', async t => {
    for (const recycle of [
      { maxJobs: 0 },
      { maxMemoryMb: -1 },
      { maxMemoryMb: Number.NaN },
      { maxLifetime: 0 },
    ])
      t.throws(() => resolveConfig({ recycle } as object, {}), { code: 'PGBUS_ERR_CONFIG' })
  })
})
