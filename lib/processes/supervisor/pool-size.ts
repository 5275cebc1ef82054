import type { ResolvedConfig } from '../../config/options.ts'
import type { ChildSpec } from '../messages.ts'

/**
 * Connections of one child, unless `pool.size` says otherwise. A worker: as many as jobs run at once, since each
 * claims and finishes by itself.
 */
export function poolSize(config: ResolvedConfig, spec: ChildSpec): number {
  return config.pool.size ?? Math.max(2, spec.entry.concurrency)
}
