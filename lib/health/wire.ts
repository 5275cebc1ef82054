import type { HealthVerdict } from './verdict.ts'

/** A verdict as it leaves the process. */
export function toWire({ status, reasons, signals, checkedAt, summary }: HealthVerdict): object {
  return {
    status,
    reasons,
    signals,
    checked_at: checkedAt.toISOString(),
    summary: {
      queues: summary.queues,
      total_visible: summary.totalVisible,
      total_depth: summary.totalDepth,
      workers: summary.workers,
      stalled_workers: summary.stalledWorkers,
      stale_processes: summary.staleProcesses,
      oldest_transaction_age_sec: summary.oldestTransactionAge,
    },
  }
}
