import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { Schedule } from '../core/schedule.ts'
import { sleep } from '../core/sleep.ts'
import type { Recurring } from './recurring.ts'
import type { StoredTask } from './task-table.ts'

/** What it does not catch up may still be so late: a busy host, a collector at work. */
const toleranceMs = 60_000
const reloadMs = 10_000
/** Occurrences of one task that are caught up at once, the newest. */
const mostCaughtUp = 1_000

export interface SchedulerOptions {
  recurring: Recurring
  /** Longest time between two looks, ms. */
  interval: number
  log: Logger
  report: Report
  /** Ms of the epoch. */
  now?: (() => number) | undefined
}

interface Entry {
  stored: StoredTask
  readonly schedule: Schedule
  /** Everything up to here is decided. */
  doneUntil: number
  /** What was looked at last, and when the next occurrence is: nothing to do in between. */
  lookedAt: number
  nextAt: number
  failing: boolean
}

/**
 * Enqueues tasks when they are due. It keeps nothing that another scheduler would need: an occurrence is decided by
 * its row in the database, so any number may run, and the clock may jump. What could not be written is tried at the
 * next look, as long as the task's window lasts.
 */
export class Scheduler {
  readonly #options: SchedulerOptions
  readonly #now: () => number
  readonly #stopping = new AbortController()
  readonly #entries = new Map<string, Entry>()
  readonly #complained = new Set<string>()
  #reloadedAt = Number.NEGATIVE_INFINITY
  #lastTick = performance.now()
  #failing = false
  #running: Promise<void> | undefined

  constructor(options: SchedulerOptions) {
    this.#options = options
    this.#now = options.now ?? Date.now
  }

  /** Ms since it last looked. */
  get loopAge(): number {
    return performance.now() - this.#lastTick
  }

  /** How many tasks it knows. */
  get taskCount(): number {
    return this.#entries.size
  }

  start(): void {
    this.#running ??= this.#run()
  }

  /** Starts nothing more; resolves when the running look has ended. Never rejects. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#running
  }

  /** One look at all tasks. Never rejects. */
  async tick(): Promise<void> {
    this.#lastTick = performance.now()
    if (performance.now() - this.#reloadedAt >= reloadMs) await this.reload()
    for (const entry of this.#entries.values()) {
      if (this.#stopping.signal.aborted) return
      if (entry.stored.enabled) await this.#look(entry)
    }
  }

  /** Writes the tasks of the configuration, and reads all. While that fails, those known so far go on. */
  async reload(): Promise<void> {
    const { recurring, log, report } = this.#options
    try {
      for (const key of await recurring.table.sync())
        this.#complain(
          key,
          `recurring task "${key}" belongs to another program and is not run; choose another key`,
        )
      const { tasks, unreadable } = await recurring.table.read()
      for (const { key, reason } of unreadable)
        this.#complain(key, `recurring task "${key}" is not run: ${reason}`)
      const keys = new Set(tasks.map(({ key }) => key))
      for (const key of this.#entries.keys()) if (!keys.has(key)) this.#entries.delete(key)
      for (const stored of tasks) this.#take(stored)
      this.#reloadedAt = performance.now()
      if (this.#failing) log.info('recurring tasks can be read again')
      this.#failing = false
    } catch (error) {
      if (this.#failing) log.debug({ err: error }, 'recurring tasks still cannot be read')
      else report(error, { action: 'recurring_reload' })
      this.#failing = true
    }
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      await this.tick()
      await sleep(this.#pause(), signal)
    }
  }

  /** Until the next occurrence, if that comes before the next regular look. */
  #pause(): number {
    const now = this.#now()
    let pause = this.#options.interval
    for (const { stored, nextAt, failing } of this.#entries.values())
      if (stored.enabled && !failing) pause = Math.min(pause, nextAt - now)
    return Math.max(1, pause)
  }

  #take(stored: StoredTask): void {
    const known = this.#entries.get(stored.key)
    if (known?.stored.changedAt === stored.changedAt && known.stored.enabled === stored.enabled) return
    this.#entries.set(stored.key, {
      stored,
      schedule: new Schedule(stored.task.schedule, stored.task.timeZone),
      doneUntil: stored.changedAt,
      lookedAt: Number.POSITIVE_INFINITY,
      nextAt: 0,
      failing: false,
    })
  }

  async #look(entry: Entry): Promise<void> {
    const now = this.#now()
    // The first condition is false after a clock that went back.
    if (entry.lookedAt <= now && now < entry.nextAt) return
    const { recurring, log, report } = this.#options
    const { key, task } = entry.stored
    try {
      for (const at of this.#due(entry, now)) {
        if (this.#stopping.signal.aborted) return
        const result = await recurring.fire(entry.stored, at)
        entry.doneUntil = at.getTime()
        if (result) {
          const done = result.status === 'duplicate' ? 'is skipped: its job still has its key' : 'is enqueued'
          log.debug({ task: key, run_at: at, msg_id: result.msgId }, `recurring task "${key}" ${done}`)
        }
      }
      if (entry.failing) log.info({ task: key }, `recurring task "${key}" is enqueued again`)
      entry.failing = false
      entry.lookedAt = now
      entry.nextAt = entry.schedule.next(new Date(now))?.at.getTime() ?? Number.POSITIVE_INFINITY
    } catch (error) {
      // Nothing was kept of it, so it is due at the next look as well.
      if (entry.failing)
        log.debug({ err: error, task: key }, `recurring task "${key}" still cannot be enqueued`)
      else report(error, { action: 'recurring_enqueue', task: key, job: task.job })
      entry.failing = true
    }
  }

  /** Occurrences to be enqueued, oldest first. */
  #due({ stored, schedule, doneUntil }: Entry, now: number): Date[] {
    const { catchUp, catchUpWindow } = stored.task
    const from = Math.max(doneUntil, now - (catchUp === 'none' ? toleranceMs : catchUpWindow))
    const due: Date[] = []
    let at = schedule.latest(new Date(now))
    while (at && at.getTime() > from && due.length < mostCaughtUp) {
      due.unshift(at)
      if (catchUp !== 'all') break
      at = schedule.latest(new Date(at.getTime() - 1))
    }
    return due
  }

  /** Once per problem, not at each reload. */
  #complain(key: string, text: string): void {
    if (this.#complained.has(text)) return
    this.#complained.add(text)
    this.#options.log.warn({ task: key }, text)
  }
}
