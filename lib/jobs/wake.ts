import { maxTimerMs } from '../core/sleep.ts'

/** Longest wait while notifications are delivered. */
export const idleCeilingMs = 15_000
/** While no queue can be read. */
const blockedMs = 1_000
/** A commit that ends in the moment of another may not be notified; these looks find what it left. */
const settleMs = [250, 250, 500]
const dueMarginMs = 5
const dueSpreadMs = 20
const pollSpread = 0.1

export interface WaitRule {
  /** Notifications arrive. */
  delivering: boolean
  pollingInterval: number
  /** Looks that found nothing since the last wake or message. */
  emptyLooks: number
  /** Time until a known message comes due. */
  dueInMs: number | null
  /** A queue is paused, missing or in other hands, and nobody may tell when that ends. */
  blocked?: boolean | undefined
  random?: (() => number) | undefined
}

/** How long to wait after a claim that left free slots, unless something wakes the loop before. */
export function waitAfterClaim(rule: WaitRule): number {
  const { delivering, pollingInterval, emptyLooks, dueInMs, random = Math.random } = rule
  const due =
    dueInMs === null ? Number.POSITIVE_INFINITY : Math.max(0, dueInMs) + dueMarginMs + random() * dueSpreadMs
  if (rule.blocked) return Math.min(due, blockedMs)
  if (!delivering) return Math.min(due, pollingInterval * (1 - pollSpread + 2 * pollSpread * random()))
  const settle = settleMs[emptyLooks]
  if (settle === undefined) return Math.min(due, idleCeilingMs)
  return Math.min(due, emptyLooks === 0 ? Math.min(pollingInterval, settle) : settle)
}

/**
 * A level-triggered flag that one loop waits for: set before the wait, it ends the wait at once. Setting it twice
 * is setting it once.
 */
export class Wake {
  #set = false
  #resolve: (() => void) | undefined

  set(): void {
    this.#set = true
    this.#resolve?.()
  }

  clear(): void {
    this.#set = false
  }

  /** Resolves when set, or after `ms`. */
  async wait(ms: number): Promise<void> {
    if (this.#set) return
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>(resolve => {
      this.#resolve = resolve
      // Not unref'ed: it is what keeps the process of an idle worker alive.
      timer = setTimeout(resolve, Math.min(ms, maxTimerMs))
    })
    clearTimeout(timer)
    this.#resolve = undefined
  }
}
