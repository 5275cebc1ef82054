import type { ResolvedConfig } from '../config/options.ts'
import { runningHandler } from '../core/context.ts'
import { deferred } from '../core/deferred.ts'
import { parseDelay } from '../core/duration.ts'
import {
  type JobCancelledError,
  JobTimeoutError,
  LeaseLostError,
  ShutdownError,
  UnknownJobError,
} from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type Report, toError } from '../core/report.ts'
import { maxTimerMs } from '../core/sleep.ts'
import type { Database } from '../db/database.ts'
import type { Pgbus } from '../pgbus.ts'
import { failedName, logicalOf } from '../pgmq/names.ts'
import { Completion } from './completion.ts'
import { isDiscardJob, isRetryJob } from './control.ts'
import { findJob, type JobContext, type JobDefinition } from './define.ts'
import { decodeArguments, type JobEnvelope, readEnvelope, readHeaders } from './envelope.ts'
import { errorRecord, readFailure, reportableError } from './failures.ts'
import type { Lease, Leases } from './lease.ts'
import type { Outcome, Outcomes } from './outcome.ts'
import { nextStep } from './retry.ts'
import { applySchema } from './standard-schema.ts'

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
  | { kind: 'returned' }
  /** Its end is in a transaction of the handler. */
  | { kind: 'completed' }
  | { kind: 'threw'; thrown: unknown }
  | { kind: 'timedOut'; error: Error }
  | { kind: 'cancelled' }

export interface ExecutorOptions {
  db: Database
  config: ResolvedConfig
  log: Logger
  report: Report
  pgbus: Pgbus
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
    const { config } = this.#options
    // Read before anything is judged: even what cannot be read must be buried in the end.
    const body = tryRead(delivery.message)
    const definition = body.envelope && findJob(body.envelope.name)
    lease.renew = definition?.renew ?? config.renewVisibility
    const limit = Math.max(1, definition?.maxAttempts ?? config.maxRetries)
    if (delivery.readCount > limit) return this.#buryOnArrival(lease, body.envelope, limit)

    const started = performance.now()
    let settled: Settled
    try {
      if (!body.envelope) throw body.error
      if (!definition) throw this.#unknownJob(body.envelope, lease)
      settled = await this.#execute(lease, body.envelope, definition, limit)
    } catch (thrown) {
      settled = { kind: 'threw', thrown }
    }
    const end = { lease, envelope: body.envelope, definition, limit, started }
    if (settled.kind === 'cancelled') return this.#cancelled(end)
    if (settled.kind === 'returned') return this.#succeed(end)
    // Whether its transaction committed is the business of the handler.
    if (settled.kind === 'completed') return 'succeeded'
    if (settled.kind === 'timedOut') return this.#fail(end, settled.error)
    return this.#threw(end, settled.thrown)
  }

  /** Rejects when the arguments cannot be read. */
  async #execute(
    lease: Lease,
    envelope: JobEnvelope,
    definition: JobDefinition,
    limit: number,
  ): Promise<Settled> {
    const { config, pgbus } = this.#options
    const args = decodeArguments(envelope)
    const completion = new Completion({ lease, archive: definition.archive, config })
    const context = this.#context(lease, envelope, limit, completion)
    const settled = deferred<Settled>()
    const timeout = definition.timeout === undefined ? config.jobTimeout : definition.timeout
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
            const error = new JobTimeoutError(`job "${envelope.name}" ran longer than ${timeout} ms`)
            lease.abort(error)
            return giveUp({ kind: 'timedOut', error })
          })
    let stopGrace = () => {}
    lease.signal.addEventListener('abort', () => {
      if (lease.cancelled) stopGrace = giveUp({ kind: 'cancelled' })
    })
    const work = runningHandler.run({ pgbus, log: context.log }, async () => {
      const checked = definition.schema ? await applySchema(envelope.name, definition.schema, args) : args
      await definition.handler(checked, context)
    })
    work.then(
      () => settled.resolve({ kind: completion.used ? 'completed' : 'returned' }),
      (thrown: unknown) => settled.resolve({ kind: 'threw', thrown }),
    )
    const end = await settled.promise
    stopTimer()
    stopGrace()
    if (end.kind === 'completed') return end
    // Its message is archived: whatever became of the handler, there is nothing to write.
    if (lease.cancelled) return { kind: 'cancelled' }
    const reason: unknown = lease.signal.reason
    // Whatever a handler makes of its timeout, it was one.
    return reason instanceof JobTimeoutError ? { kind: 'timedOut', error: reason } : end
  }

  #context(lease: Lease, envelope: JobEnvelope, limit: number, completion: Completion): JobContext {
    const { config, pgbus, leases, isStopping } = this.#options
    const { physical, msgId, readCount, enqueuedAt, headers } = lease.delivery
    const id = jobIdOf(lease, envelope)
    const queue = logicalOf(config, physical)
    const log = this.#options.log.child({
      job: envelope.name,
      job_id: id,
      queue,
      msg_id: msgId,
      attempt: readCount,
    })
    return {
      job: Object.freeze({
        id,
        name: envelope.name,
        queue,
        msgId,
        attempt: readCount,
        maxAttempts: limit,
        priority: envelope.priority,
        enqueuedAt,
        scheduledAt: envelope.scheduledAt,
        headers: readHeaders(headers),
      }),
      signal: lease.signal,
      get stopping() {
        return isStopping()
      },
      log,
      pgbus,
      completeIn: tx => completion.writeIn(tx),
      extend: async by => {
        await leases.extend(lease, parseDelay('extend: by', by))
      },
    }
  }

  async #succeed(end: End): Promise<Ending> {
    const ending = await this.#write(end, done(end), 'succeeded')
    if (ending === 'succeeded') {
      this.#options.log.debug({ ...this.#fields(end), ms: elapsed(end) }, 'job completed')
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
    this.#options.log.info({ ...this.#fields(end), ms: elapsed(end) }, `job cancelled: ${message}`)
    return 'cancelled'
  }

  async #release(end: End): Promise<Ending> {
    const ending = await this.#write(end, { kind: 'release' }, 'released')
    if (ending === 'released') {
      this.#options.log.info(this.#fields(end), 'job given back, the worker is stopping')
    }
    return ending
  }

  async #discard(end: End, reason: string): Promise<Ending> {
    const ending = await this.#write(end, done(end), 'discarded')
    if (ending === 'discarded') {
      this.#options.log.info({ ...this.#fields(end), reason, ms: elapsed(end) }, 'job discarded')
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
        : nextStep({ definition: end.definition, retry: config.retry, attempt, error, report })
    let ending: Ending
    if (step === 'discard') ending = await this.#discard(end, record.errorMessage)
    else if (step === 'dead') ending = await this.#bury(end, bury)
    else ending = await this.#write(end, { kind: 'retry', delayMs: step.delayMs, record }, 'retried')
    if (ending === 'retried' || ending === 'buried') {
      report(error, {
        action: 'execute_job',
        ...this.#fields(end),
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
        { ...this.#fields(end), ...(record && { error_class: record.errorClass }) },
        'job moved to the dead-letter queue',
      )
    }
    return ending
  }

  /** It was delivered too often: its attempts ended without a word, or the limit is lower than it was. */
  async #buryOnArrival(lease: Lease, envelope: JobEnvelope | undefined, limit: number): Promise<Ending> {
    const { db, config } = this.#options
    const { physical, msgId } = lease.delivery
    const end = { lease, envelope, definition: undefined, limit, started: performance.now() }
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
        log.warn(this.#fields(end), `lost claim: the message was taken from this worker, nothing was changed`)
        return 'lost'
      case 'unrecorded':
        log.error(this.#fields(end), 'job finished but not recorded, it will run again')
        return 'unrecorded'
    }
  }

  #unknownJob(envelope: JobEnvelope, lease: Lease): UnknownJobError {
    const queue = logicalOf(this.#options.config, lease.delivery.physical)
    return new UnknownJobError(
      `no handler for job "${envelope.name}" in queue "${queue}"; is its module listed in imports?`,
    )
  }

  /** What identifies the job in a log line; never its arguments. */
  #fields({ lease, envelope }: End): Record<string, unknown> {
    const { physical, msgId, readCount } = lease.delivery
    return {
      job: envelope?.name ?? null,
      job_id: envelope && jobIdOf(lease, envelope),
      queue: physical,
      msg_id: msgId,
      attempt: readCount,
    }
  }
}

interface End {
  lease: Lease
  envelope: JobEnvelope | undefined
  definition: JobDefinition | undefined
  limit: number
  started: number
}

function tryRead(
  message: string | null,
): { envelope: JobEnvelope; error?: never } | { envelope?: never; error: Error } {
  try {
    return { envelope: readEnvelope(message) }
  } catch (error) {
    return { error: toError(error) }
  }
}

/** Clients of other libraries may leave the id out. */
function jobIdOf(lease: Lease, envelope: JobEnvelope): string {
  return envelope.jobId ?? `${lease.delivery.physical}:${lease.delivery.msgId}`
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

/** Where a job goes that is done with. */
function done(end: End): Outcome {
  return { kind: end.definition?.archive === false ? 'delete' : 'archive' }
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
