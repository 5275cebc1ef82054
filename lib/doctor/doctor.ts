import { redactText } from '../config/redact.ts'
import { deadline } from '../core/deadline.ts'
import { driverMessage } from '../db/driver-message.ts'
import type { Check, Finding, Subject } from './check.ts'
import { budgets, streamChecks, validity } from './configuration-checks.ts'
import { connectionChecks, databaseChecks } from './database-checks.ts'
import { handlers } from './handlers-check.ts'

export interface CheckResult extends Finding {
  name: string
}

export interface Diagnosis {
  /** Nothing failed; there may be warnings. */
  ok: boolean
  checks: CheckResult[]
}

const limitMs = 5_000

/** All checks, in the order of the report. */
export const checks: readonly Check[] = [
  validity,
  ...databaseChecks,
  handlers,
  ...streamChecks,
  ...connectionChecks,
  ...budgets,
]

/**
 * Runs the checks, each for `limit` ms at most, all at once. Never rejects: what goes wrong is a result.
 */
export async function diagnose(
  subject: Subject,
  { only = checks, limit = limitMs }: { only?: readonly Check[]; limit?: number } = {},
): Promise<Diagnosis> {
  const results = await Promise.all(only.map(check => runCheck(check, subject, limit)))
  return { ok: results.every(({ status }) => status !== 'fail'), checks: results }
}

async function runCheck(check: Check, subject: Subject, limit: number): Promise<CheckResult> {
  const { name, onError = 'fail' } = check
  let cancel: () => void = () => undefined
  const late = new Promise<Finding>(resolve => {
    const detail = `no answer within ${limit / 1_000} s`
    cancel = deadline(limit, () => resolve({ status: onError, detail }))
  })
  const { config } = subject.loaded
  try {
    // What comes after the limit is nobody's concern.
    const { status, detail } = await Promise.race([attempt(check, subject), late])
    return { name, status, detail: redactText(detail, config) }
  } catch (error) {
    return { name, status: onError, detail: redactText(driverMessage(error), config) }
  } finally {
    cancel()
  }
}

async function attempt({ examine }: Check, subject: Subject): Promise<Finding> {
  return examine(subject)
}
