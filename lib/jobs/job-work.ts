import type { ResolvedConfig } from '../config/options.ts'
import { runningHandler } from '../core/context.ts'
import { parseDelay } from '../core/duration.ts'
import { UnknownJobError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type Report, toError } from '../core/report.ts'
import { type Admission, admit, finishTracked, isTracked, needsAdmission } from '../limits/statements.ts'
import type { Pgbus } from '../pgbus.ts'
import { handlerQueues } from '../pgmq/handler-queues.ts'
import { failedName, logicalOf, workerTables } from '../pgmq/names.ts'
import type { Queues } from '../pgmq/queues.ts'
import { archiveMany, deleteMany } from '../pgmq/statements.ts'
import type { Delivery } from './claim.ts'
import { Completion, type EndStatement } from './completion.ts'
import { DiscardJob } from './control.ts'
import { findJob, type JobContext, type JobDefinition } from './define.ts'
import { decodeArguments, type JobEnvelope, readEnvelope, readHeaders } from './envelope.ts'
import type { Lease } from './lease.ts'
import { applySchema } from './standard-schema.ts'
import type { Attempt, Task, TaskEnd, Work } from './work.ts'

export interface JobWorkOptions {
  config: ResolvedConfig
  queues: Queues
  log: Logger
  report: Report
  pgbus: Pgbus
}

/** Until a message is looked at again that could not be asked for. */
const admissionRetryMs = 1_000
/** Until one is looked at again while another with its key runs; spread, so that those that wait do not meet. */
const runWaitMs = 5_000
const runWaitSpread = 0.2

/** What a worker does with jobs: each message names a definition, which has the function to run. */
export class JobWork implements Work {
  readonly kind = 'worker'
  readonly #options: JobWorkOptions

  constructor(options: JobWorkOptions) {
    this.#options = options
  }

  tablesOf(queue: string): readonly string[] {
    return workerTables(this.#options.config, [queue])
  }

  isForPatterns(queue: string): boolean {
    return !handlerQueues.has(queue)
  }

  prepare(queues: readonly string[]): Promise<void> {
    return this.#options.queues.ensure(queues)
  }

  read(delivery: Delivery): Task {
    // Read before anything is judged: even what cannot be read must be buried in the end.
    const body = tryRead(delivery.message)
    const { envelope } = body
    const definition = envelope && findJob(envelope.name)
    return {
      noun: 'job',
      action: 'execute_job',
      name: envelope?.name ?? null,
      fields: { job: envelope?.name ?? null, job_id: envelope && jobIdOf(delivery, envelope) },
      maxAttempts: definition?.maxAttempts,
      renew: definition?.renew,
      timeout: definition?.timeout,
      retry: definition?.retry ?? {},
      done: { kind: definition?.archive === false ? 'delete' : 'archive' },
      run: async attempt => {
        if (!envelope) throw body.error
        if (!definition) throw this.#unknownJob(envelope, delivery)
        return this.#run(attempt, envelope, definition)
      },
    }
  }

  /** Rejects when the arguments cannot be read. */
  async #run(attempt: Attempt, envelope: JobEnvelope, definition: JobDefinition): Promise<TaskEnd> {
    const { config, pgbus } = this.#options
    if (needsAdmission(attempt.lease.delivery.message)) {
      const refused = await this.#admit(attempt.lease, definition)
      if (refused) return refused
    }
    const args = decodeArguments(envelope)
    const { archive } = definition
    const plain = archive ? archiveMany : deleteMany
    const statement: EndStatement = (physical, tokens, failed) =>
      isTracked(attempt.lease.delivery.message)
        ? finishTracked(physical, { kind: archive ? 'archive' : 'delete', atCommit: true }, tokens, failed)
        : plain(physical, tokens, failed)
    const completion = new Completion({ lease: attempt.lease, statement, config })
    const context = this.#context(attempt, envelope, completion)
    await runningHandler.run({ pgbus, log: context.log }, async () => {
      const checked = definition.schema ? await applySchema(envelope.name, definition.schema, args) : args
      await definition.handler(checked, context)
    })
    return completion.used ? 'recorded' : { outcome: { kind: archive ? 'archive' : 'delete' } }
  }

  /** Takes the lock and the slot that the job needs. What it ends with instead, if there is none. */
  async #admit(lease: Lease, { name, unique, concurrency }: JobDefinition): Promise<TaskEnd | undefined> {
    const { config, pgbus, log, report } = this.#options
    const { physical, msgId } = lease.delivery
    let answer: Admission | undefined
    // Its row may be gone because it waits elsewhere.
    lease.writing = true
    try {
      const failed = failedName(config, physical)
      const rules = { unique, concurrency }
      const statement = admit(physical, lease.delivery, rules, config.priority.default, failed)
      const { rows } = await pgbus.db.query<{ answer: Admission }>(statement)
      answer = rows[0]?.answer
    } catch (error) {
      report(error, { action: 'admit_job', job: name, queue: physical, msg_id: msgId })
      return { outcome: { kind: 'release', delayMs: admissionRetryMs } }
    }
    switch (answer) {
      case 'run':
        lease.writing = false
        return undefined
      case 'parked':
        log.debug({ job: name, queue: physical, msg_id: msgId }, 'job waits for others with its key to end')
        return 'parked'
      case 'wait': {
        const delayMs = Math.round(runWaitMs * (1 + runWaitSpread * (2 * Math.random() - 1)))
        log.debug(
          { job: name, queue: physical, msg_id: msgId },
          'job waits for another with its key that runs',
        )
        return { outcome: { kind: 'release', delayMs } }
      }
      case 'discard':
        throw new DiscardJob('as many jobs with its key as are allowed run, or have not ended yet')
      default:
        // Changes nothing and says so.
        return { outcome: { kind: 'release' } }
    }
  }

  #context(
    { lease, limit, isStopping, extend }: Attempt,
    envelope: JobEnvelope,
    completion: Completion,
  ): JobContext {
    const { config, pgbus } = this.#options
    const { physical, msgId, readCount, enqueuedAt, headers } = lease.delivery
    const id = jobIdOf(lease.delivery, envelope)
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
      extend: async by => extend(parseDelay('extend: by', by)),
    }
  }

  #unknownJob(envelope: JobEnvelope, delivery: Delivery): UnknownJobError {
    const queue = logicalOf(this.#options.config, delivery.physical)
    return new UnknownJobError(
      `no handler for job "${envelope.name}" in queue "${queue}"; is its module listed in imports?`,
    )
  }
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
function jobIdOf({ physical, msgId }: Delivery, envelope: JobEnvelope): string {
  return envelope.jobId ?? `${physical}:${msgId}`
}
