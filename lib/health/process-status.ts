import type { ResolvedConfig } from '../config/options.ts'
import type { ProcessFacts } from './facts.ts'

/**
 * `stale`: no heartbeat, so it is gone or stands still as a whole. `stalled`: it writes heartbeats, and the loop that
 * does its work stands still.
 */
export type ProcessStatus = 'healthy' | 'stalled' | 'stale'

export type StatusRules = Pick<
  ResolvedConfig,
  'stallThreshold' | 'dispatchInterval' | 'pollingInterval' | 'notify' | 'recurring'
>

/** Heartbeats come every minute; so many may be missed. */
const staleSeconds = 300
/** Longest wait of a consumer between two looks while notifications arrive. */
const idleCeilingMs = 15_000

export function processStatus(
  { kind, silence, loopAge }: Pick<ProcessFacts, 'kind' | 'silence' | 'loopAge'>,
  rules: StatusRules,
): ProcessStatus {
  if (silence > staleSeconds) return 'stale'
  const slack = slackOf(kind, rules)
  // A process of an older release tells nothing of its loop.
  if (rules.stallThreshold === null || slack === null || loopAge === null) return 'healthy'
  return loopAge * 1_000 > rules.stallThreshold + slack ? 'stalled' : 'healthy'
}

/** Ms for which a loop that is well may rest; null: a process of this kind has none that is watched. */
function slackOf(kind: string, rules: StatusRules): number | null {
  switch (kind) {
    case 'worker':
      return 0
    case 'dispatcher':
      return rules.dispatchInterval
    case 'scheduler':
      return rules.recurring.interval
    case 'consumer':
      return rules.notify.enabled ? Math.max(rules.pollingInterval, idleCeilingMs) : rules.pollingInterval
    default:
      return null
  }
}
