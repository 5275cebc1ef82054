/** The program that reads a configuration for `reload.ts`, answers once, and ends. */
import { toPortable } from '../../config/portable.ts'
import { ConfigurationError } from '../../core/errors.ts'
import { toError } from '../../core/report.ts'
import type { ReloadAnswer, ReloadQuestion } from './reload.ts'
import { configure } from './setup.ts'

process.once('disconnect', () => process.exit())
process.once('message', async ({ options, previous }: ReloadQuestion) => {
  let answer: ReloadAnswer
  try {
    const { config, sources, ...setup } = await configure(options, previous)
    answer = { ok: true, setup, config: toPortable(config), sources: [...sources] }
  } catch (thrown) {
    const error = toError(thrown)
    answer = {
      ok: false,
      code: (error as { code?: string }).code,
      message: error.message,
      issues: error instanceof ConfigurationError ? error.issues : [],
    }
  }
  process.send?.(answer, () => process.exit())
})
