import { deathsHeader } from '../pgmq/deaths.ts'
import type { Delivery } from './claim.ts'

/**
 * Whether a process died while it ran this message. Which of several running jobs was to blame nobody knows, so
 * each of them runs alone the next time: then a second death has one possible cause.
 */
export function isSuspect({ headers }: Pick<Delivery, 'headers'>): boolean {
  // Nearly no message has it, so nearly none is parsed.
  if (headers === null || !headers.includes(`"${deathsHeader}"`)) return false
  const read: unknown = JSON.parse(headers)
  return typeof read === 'object' && read !== null && Object.hasOwn(read, deathsHeader)
}

/** What of a claim starts now, what is given back, and whether it must be alone. */
export interface StartPlan<T> {
  readonly start: T[]
  readonly giveBack: T[]
  readonly alone: boolean
}

/** A suspect starts alone, and the rest of its claim goes back; without one, everything starts. */
export function planStart<T extends { readonly delivery: Pick<Delivery, 'headers'> }>(
  leases: readonly T[],
): StartPlan<T> {
  const suspect = leases.find(({ delivery }) => isSuspect(delivery))
  if (suspect === undefined) return { start: [...leases], giveBack: [], alone: false }
  return { start: [suspect], giveBack: leases.filter(lease => lease !== suspect), alone: true }
}
