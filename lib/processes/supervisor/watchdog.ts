import type { Logger } from '../../core/log.ts'
import type { ChildBeat } from '../messages.ts'

/** A child as the watchdog sees it. */
export interface Watched {
  readonly slot: string
  readonly pid: number
  /** Its last sign of life and when it came, monotonic ms; undefined: not loaded yet, or told to stop. */
  readonly life: { readonly at: number; readonly beat: ChildBeat | undefined } | undefined
  kill(reason: string): void
}

export interface WatchdogOptions {
  /** Ms of silence. */
  threshold: number
  children: () => readonly Watched[]
  log: Logger
  /** Monotonic milliseconds. */
  now?: (() => number) | undefined
}

export const watchdogIntervalMs = 10_000
/** A look that comes this late says more about this process, or a host that slept, than about the children. */
const lateMs = 5_000

/**
 * Ends children that are alive and do nothing: their event loop stands still, or the loop that claims does. It asks
 * no database, so it works when there is none.
 */
export class Watchdog {
  readonly #options: WatchdogOptions
  readonly #now: () => number
  #timer: NodeJS.Timeout | undefined
  #lookedAt = 0

  constructor(options: WatchdogOptions) {
    this.#options = options
    this.#now = options.now ?? (() => performance.now())
  }

  start(): void {
    this.#lookedAt = this.#now()
    this.#timer = setInterval(() => this.look(), watchdogIntervalMs)
    this.#timer.unref()
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  /** One look at all children. */
  look(): void {
    const now = this.#now()
    const late = now - this.#lookedAt > watchdogIntervalMs + lateMs
    this.#lookedAt = now
    if (late) return
    for (const child of this.#options.children()) {
      const symptom = this.#symptomOf(child, now)
      if (symptom === undefined) continue
      const running = child.life?.beat?.oldest ?? undefined
      this.#options.log.error(
        { slot: child.slot, child_pid: child.pid, ...(running && { running }) },
        `${child.slot} is stalled: ${symptom}; it is killed`,
      )
      child.kill(`was stalled: ${symptom}`)
    }
  }

  #symptomOf({ life }: Watched, now: number): string | undefined {
    if (!life) return undefined
    const { threshold } = this.#options
    const silence = now - life.at
    if (silence > threshold) return `no sign of life for ${seconds(silence)}`
    const { loop = null } = life.beat ?? {}
    if (loop === null || loop + silence <= threshold) return undefined
    return `its claim loop stands still for ${seconds(loop + silence)}`
  }
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)} s`
}
