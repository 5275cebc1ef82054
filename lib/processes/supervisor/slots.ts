import type { ResolvedConfig } from '../../config/options.ts'
import type { ChildSpec } from '../messages.ts'

/** A place for one child, by name. */
export interface SlotPlan {
  readonly name: string
  readonly spec: ChildSpec
}

/** The places that a configuration asks for, in the order in which they are filled. */
export function planSlots(config: ResolvedConfig): SlotPlan[] {
  return config.workers.flatMap((entry, index) =>
    Array.from({ length: entry.processes }, (_, copy) => ({
      name: `worker:${index}.${copy}`,
      spec: { role: 'worker' as const, entry },
    })),
  )
}
