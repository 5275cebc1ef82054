import type { ResolvedConfig } from '../config/options.ts'
import { parseDelay } from '../core/duration.ts'
import type { Report } from '../core/report.ts'
import type { Task } from './work.ts'

/** What follows a failed attempt that was not the last. */
export type NextStep = { delayMs: number } | 'discard' | 'dead'

const leastDelayMs = 1_000

/**
 * Milliseconds until the attempt after number `attempt`: `base` doubles each time, is spread by `jitter`, and stays
 * between a second and `max`.
 */
export function backoffDelay(
  retry: ResolvedConfig['retry'],
  attempt: number,
  random: () => number = Math.random,
): number {
  const step = Math.min(retry.max, retry.base * 2 ** Math.min(Math.max(attempt, 1) - 1, 52))
  const spread = step * (1 + retry.jitter * (2 * random() - 1))
  return Math.round(Math.min(retry.max, Math.max(spread, Math.min(leastDelayMs, retry.max))))
}

/** Asks the retry policy of what failed. A policy function that fails is reported and replaced by the formula. */
export function nextStep(options: {
  task: Pick<Task, 'noun' | 'name' | 'retry'>
  retry: ResolvedConfig['retry']
  attempt: number
  error: Error
  report: Report
  random?: (() => number) | undefined
}): NextStep {
  const { task, retry, attempt, error, report, random } = options
  const policy = task.retry
  if (typeof policy !== 'function') {
    const base = policy.base ?? retry.base
    // A job that asks for a longer first delay than the common ceiling, and names none of its own, gets it.
    const max = policy.max ?? Math.max(retry.max, base)
    return { delayMs: backoffDelay({ base, max, jitter: policy.jitter ?? retry.jitter }, attempt, random) }
  }
  try {
    const answer = policy(attempt, error)
    if (answer === 'discard' || answer === 'dead') return answer
    const where = `what the retry function of ${task.noun} "${task.name}" returns, if not "discard" or "dead",`
    return { delayMs: parseDelay(where, answer) }
  } catch (failure) {
    report(failure, { action: 'retry_policy', [task.noun]: task.name })
    return { delayMs: backoffDelay(retry, attempt, random) }
  }
}
