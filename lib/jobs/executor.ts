import type { ResolvedConfig } from '../config/options.ts'
import { deferred } from '../core/deferred.ts'
import { type JobCancelledError, JobTimeoutError, LeaseLostError, ShutdownError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { maxTimerMs } from '../core/sleep.ts'
import type { Database } from '../db/database.ts'
import { failedName } from '../pgmq/names.ts'
import { isDiscardJob, isRetryJob } from './control.ts'
import { errorRecord, readFailure, reportableError } from './failures.ts'
import type { Lease, Leases } from './lease.ts'
import type { Outcome, Outcomes } from './outcome.ts'
import { nextStep } from './retry.ts'
import type { Task, TaskEnd, Work } from './work.ts'

/** How one delivery ended here. */
export type Ending =
  | 'succeeded'
  | 'discarded'
  | 'retried'
  /** To run again as its handler asked, which is no failure. */
  | 'postponed'
  | 'buried'
  /** Buried unrun: it had been delivered too often. */
  | 'expired'
  | 'released'
  /** Somebody archived its message meanwhile. */
  | 'cancelled'
  /** The message belongs to somebody else; nothing was changed. */
  | 'lost'
  /** It ended, but that could not be written. */
  | 'unrecorded'

/** How the handler ended. */
type Settled =
  | { kind: 'ended'; end: TaskEnd }
  | { kind: 'threw'; thrown: unknown }
  | { kind: 'timedOut'; error: Error }
  | { kind: 'cancelled' }

export interface ExecutorOptions {
  db: Database
  config: ResolvedConfig
  log: Logger
  report: Report
  work: Work
  leases: Leases
  outcomes: Outcomes
  /** The worker is draining. */
  isStopping: () => boolean
}

/** How long a handler may take to settle after its timeout, or when it was cancelled. */
const settleGraceMs = 5_000
const maxCauses = 5

/** Runs one delivery from its raw text to its written end. Nothing that a message or handler does makes it throw. */
export class Executor {
  readonly #options: ExecutorOptions
  #stuck = 0

  constructor(options: ExecutorOptions) {
    this.#options = options
  }

  /** Handlers that run on although nobody waits for them any more: they ignored their signal. */
  get stuck(): number {
    return this.#stuck
  }

  async run(lease: Lease): Promise<Ending> {
    const { delivery } = lease
    const { config, work } = this.#options
    const task = work.read(delivery)
    lease.renew = task.renew ?? config.renewVisibility
    const limit = Math.max(1, task.maxAttempts ?? config.maxRetries)
    const end = { lease, task, limit, started: performance.now() }
    if (delivery.readCount > limit) return this.#buryOnArrival(end)

    const settled = await this.#execute(end)
    switch (settled.kind) {
      case 'cancelled':
        return this.#cancelled(end)
      case 'timedOut':
        return this.#fail(end, settled.error)
      case 'threw':
        return this.#threw(end, settled.thrown)
      case 'ended':
        if (settled.end === 'parked') return 'released'
        // Whether its transaction committed is the business of the handler.
        return settled.end === 'recorded' ? 'succeeded' : this.#ended(end, settled.end)
    }
  }

  async #execute({ lease, task, limit }: End): Promise<Settled> {
    const { config, leases, isStopping } = this.#options
    const settled = deferred<Settled>()
    const timeout = task.timeout === undefined ? config.jobTimeout : task.timeout
    /** Nobody waits for a handler that ignores its signal. */
    const giveUp = (end: Settled) =>
      after(settleGraceMs, () => {
        this.#stuck += 1
        const forget = () => {
          this.#stuck -= 1
        }
        work.then(forget, forget)
        settled.resolve(end)
      })
    const stopTimer =
      timeout === null
        ? () => undefined
        : after(timeout, () => {
            const error = new JobTimeoutError(`${task.noun} "${task.name}" ran longer than ${timeout} ms`)
            lease.abort(error)
            return giveUp({ kind: 'timedOut', error })
          })
    let stopGrace = () => {}
    lease.signal.addEventListener('abort', () => {
      if (lease.cancelled) stopGrace = giveUp({ kind: 'cancelled' })
    })
    const work = task.run({ lease, limit, isStopping, extend: ms => leases.extend(lease, ms) })
    work.then(
      end => settled.resolve({ kind: 'ended', end }),
      (thrown: unknown) => settled.resolve({ kind: 'threw', thrown }),
    )
    const result = await settled.promise
    stopTimer()
    stopGrace()
    if (result.kind === 'ended' && typeof result.end === 'string') return result
    // Its message is archived: whatever became of the handler, there is nothing to write.
    if (lease.cancelled) return { kind: 'cancelled' }
    const reason: unknown = lease.signal.reason
    // Whatever a handler makes of its timeout, it was one.
    return reason instanceof JobTimeoutError ? { kind: 'timedOut', error: reason } : result
  }

  async #ended(end: End, { outcome, written }: Exclude<TaskEnd, string>): Promise<Ending> {
    const ending = await this.#write(end, outcome, outcome.kind === 'release' ? 'released' : 'succeeded')
    if (ending === 'succeeded') {
      written?.()
      this.#options.log.debug({ ...fieldsOf(end), ms: elapsed(end) }, `${end.task.noun} completed`)
    }
    return ending
  }

  #threw(end: End, thrown: unknown): Promise<Ending> | Ending {
    const { signal } = end.lease
    if (signal.aborted && isAbort(thrown, signal.reason)) {
      if (signal.reason instanceof LeaseLostError) return 'lost'
      if (signal.reason instanceof ShutdownError) return this.#release(end)
    }
    if (isDiscardJob(thrown)) return this.#discard(end, thrown.message)
    if (isRetryJob(thrown)) return this.#retryAsAsked(end, thrown.delay, thrown)
    return this.#fail(end, thrown)
  }

  #cancelled(end: End): Ending {
    const { message } = end.lease.signal.reason as JobCancelledError
    this.#options.log.info({ ...fieldsOf(end), ms: elapsed(end) }, `${end.task.noun} cancelled: ${message}`)
    return 'cancelled'
  }

  async #release(end: End): Promise<Ending> {
    const ending = await this.#write(end, { kind: 'release' }, 'released')
    if (ending === 'released') {
      this.#options.log.info(fieldsOf(end), `${end.task.noun} given back, the worker is stopping`)
    }
    return ending
  }

  async #discard(end: End, reason: string): Promise<Ending> {
    const { done } = end.task
    const discarded = done.kind === 'archive' || done.kind === 'delete' ? { ...done, discarded: true } : done
    const ending = await this.#write(end, discarded, 'discarded')
    if (ending === 'discarded') {
      this.#options.log.info({ ...fieldsOf(end), reason, ms: elapsed(end) }, `${end.task.noun} discarded`)
    }
    return ending
  }

  async #retryAsAsked(end: End, delayMs: number, thrown: unknown): Promise<Ending> {
    const record = errorRecord(thrown)
    if (end.lease.delivery.readCount >= end.limit) {
      return this.#bury(end, { kind: 'bury', record, failedAt: new Date() })
    }
    return this.#write(end, { kind: 'retry', delayMs, record }, 'postponed')
  }

  async #fail(end: End, thrown: unknown): Promise<Ending> {
    const { config, report } = this.#options
    const record = errorRecord(thrown)
    const error = reportableError(thrown, record)
    const attempt = end.lease.delivery.readCount
    const bury = { kind: 'bury', record, failedAt: new Date() } as const
    const step =
      attempt >= end.limit
        ? 'dead'
        : nextStep({ task: end.task, retry: config.retry, attempt, error, report })
    let ending: Ending
    if (step === 'discard') ending = await this.#discard(end, record.errorMessage)
    else if (step === 'dead') ending = await this.#bury(end, bury)
    else ending = await this.#write(end, { kind: 'retry', delayMs: step.delayMs, record }, 'retried')
    if (ending === 'retried' || ending === 'buried') {
      report(error, {
        action: end.task.action,
        ...fieldsOf(end),
        ms: elapsed(end),
        ...(typeof step === 'object' && { retry_in_ms: step.delayMs }),
      })
    }
    return ending
  }

  async #bury(end: End, outcome: Outcome & { kind: 'bury' }): Promise<Ending> {
    const ending = await this.#write(end, outcome, 'buried')
    if (ending === 'buried') {
      const { record } = outcome
      this.#options.log.warn(
        { ...fieldsOf(end), ...(record && { error_class: record.errorClass }) },
        `${end.task.noun} moved to the dead-letter queue`,
      )
    }
    return ending
  }

  /** It was delivered too often: its attempts ended without a word, or the limit is lower than it was. */
  async #buryOnArrival(end: End): Promise<Ending> {
    const { db, config } = this.#options
    const { physical, msgId } = end.lease.delivery
    // Its last words, if it had any. Without them it is buried all the same.
    const failure = await readFailure(db, failedName(config, physical), msgId).catch(() => undefined)
    const ending = await this.#bury(end, {
      kind: 'bury',
      record: failure ?? null,
      failedAt: failure?.failedAt ?? new Date(),
    })
    return ending === 'buried' ? 'expired' : ending
  }

  async #write(end: End, outcome: Outcome, done: Ending): Promise<Ending> {
    const { outcomes, log } = this.#options
    switch (await outcomes.write(end.lease, outcome)) {
      case 'written':
        return done
      case 'lost':
        log.warn(fieldsOf(end), `lost claim: the message was taken from this worker, nothing was changed`)
        return 'lost'
      case 'unrecorded':
        log.error(fieldsOf(end), `${end.task.noun} finished but not recorded, it will run again`)
        return 'unrecorded'
    }
  }
}

interface End {
  lease: Lease
  task: Task
  limit: number
  started: number
}

/** What identifies the delivery in a log line; never its content. */
function fieldsOf({ lease, task }: End): Record<string, unknown> {
  const { physical, msgId, readCount } = lease.delivery
  return { ...task.fields, queue: physical, msg_id: msgId, attempt: readCount }
}

/** The reason itself, something caused by it, or the AbortError that Node's own functions make of it. */
function isAbort(thrown: unknown, reason: unknown): boolean {
  try {
    for (let error = thrown, depth = 0; depth <= maxCauses; depth += 1) {
      if (error === reason) return true
      if (typeof error !== 'object' || error === null) return false
      if ((error as { name?: unknown }).name === 'AbortError') return true
      error = (error as { cause?: unknown }).cause
    }
  } catch {
    // A getter of the handler's own error threw: not an abort.
  }
  return false
}

function elapsed(end: End): number {
  return Math.round(performance.now() - end.started)
}

/** Calls `fn` after `ms`, however long; returns how to cancel, which also cancels what `fn` started. */
function after(ms: number, fn: () => unknown): () => void {
  let cancelStarted: unknown
  let timer: NodeJS.Timeout
  const wait = (left: number) => {
    timer = setTimeout(
      () => {
        if (left > maxTimerMs) wait(left - maxTimerMs)
        else cancelStarted = fn()
      },
      Math.min(left, maxTimerMs),
    )
  }
  wait(ms)
  return () => {
    clearTimeout(timer)
    if (typeof cancelStarted === 'function') cancelStarted()
  }
}
