/** The job of the soak: writes into the ledger when it starts and ends; some fail at first. */
import { setTimeout as wait } from 'node:timers/promises'
import { defineJob } from '../../lib/jobs/define.ts'
import { ended, started, threw } from '../../test/fixtures/jobs/ledger.ts'

export interface SoakArgs {
  n: number
  ms: number
  /** Throws at its first attempt. */
  fails: boolean
}

export const work = defineJob<SoakArgs>(
  { name: 'soak', retry: () => 1_000 },
  async ({ n, ms, fails }, ctx) => {
    const id = await started(ctx, n)
    if (ms > 0) await wait(ms)
    if (fails && ctx.job.attempt === 1) {
      await threw(ctx, id)
      throw new Error('fails at first')
    }
    await ended(ctx, id)
  },
)
