import { SerializationError } from '../core/errors.ts'
import { decode, encode, type JsonValue, parse, stringify } from '../core/json.ts'

/**
 * The message of a job as it lies in its queue. The keys are shared with clients in other languages, so those
 * that this library has no use for are written all the same, and unknown ones are left alone.
 */
export interface JobEnvelope {
  name: string
  jobId: string | null
  priority: number | null
  scheduledAt: Date | null
  /** As stored; decoded by {@link decodeArguments}. */
  rawArguments: readonly unknown[]
}

export interface NewJob {
  name: string
  jobId: string
  queue: string
  priority: number | null
  args: unknown
  enqueuedAt: Date
  scheduledAt: Date | null
  /** The lock that it holds until it has ended, or while it runs. */
  lock?: { key: string; strategy: 'untilExecuted' | 'whileExecuting' } | undefined
  /** Key of the limit that it counts in. */
  concurrencyKey?: string | undefined
  /** It takes its slot when it is claimed: of so many, and what to do when there is none. */
  laterSlot?: { max: number; onConflict: string } | undefined
}

/**
 * JSON text of a job's message.
 * @throws SerializationError, PayloadTooLargeError
 */
export function writeEnvelope(job: NewJob): string {
  return stringify({
    job_class: job.name,
    job_id: job.jobId,
    provider_job_id: null,
    queue_name: job.queue,
    priority: job.priority,
    arguments: [encode(job.args)],
    executions: 0,
    exception_executions: {},
    locale: 'en',
    timezone: 'UTC',
    enqueued_at: timestamp(job.enqueuedAt),
    scheduled_at: job.scheduledAt === null ? null : timestamp(job.scheduledAt),
    ...(job.lock && {
      pgbus_uniqueness_key: job.lock.key,
      pgbus_uniqueness_strategy:
        job.lock.strategy === 'whileExecuting' ? 'while_executing' : 'until_executed',
    }),
    ...(job.concurrencyKey !== undefined && { pgbus_concurrency_key: job.concurrencyKey }),
    ...(job.laterSlot && {
      pgbus_limit: { max: job.laterSlot.max, on_conflict: job.laterSlot.onConflict },
    }),
  })
}

/**
 * Reads a job's message, whoever wrote it.
 * @throws SerializationError
 */
export function readEnvelope(text: string | null): JobEnvelope {
  const body = parse(text ?? 'null')
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw new SerializationError('the message is not a job: it is no JSON object')
  }
  const { job_class, job_id, priority, scheduled_at, arguments: list } = body as Record<string, unknown>
  if (typeof job_class !== 'string') {
    throw new SerializationError('the message is not a job: it has no "job_class"')
  }
  if (!Array.isArray(list)) {
    throw new SerializationError(`the message of job "${job_class}" has no array of "arguments"`)
  }
  return {
    name: job_class,
    jobId: typeof job_id === 'string' ? job_id : null,
    priority: typeof priority === 'number' && Number.isInteger(priority) ? priority : null,
    scheduledAt: readTimestamp(scheduled_at),
    rawArguments: list,
  }
}

/**
 * What the handler gets: the one argument of a job.
 * @throws SerializationError
 */
export function decodeArguments(envelope: JobEnvelope): unknown {
  const { rawArguments, name } = envelope
  if (rawArguments.length > 1) {
    throw new SerializationError(
      `the message of job "${name}" has ${rawArguments.length} arguments; a job takes one (an object, for example)`,
    )
  }
  return rawArguments.length === 0 ? null : decode(rawArguments[0])
}

/** Headers of a message; whatever is not a JSON object counts as none. */
export function readHeaders(text: string | null): Record<string, JsonValue> {
  if (text === null) return {}
  const headers = decode(parse(text, 'headers'), { root: 'headers', plain: true })
  return typeof headers === 'object' && headers !== null && !Array.isArray(headers)
    ? (headers as Record<string, JsonValue>)
    : {}
}

/** ISO 8601 in UTC with nine digits, as clients in other languages write it. */
function timestamp(date: Date): string {
  return date.toISOString().replace(/Z$/, '000000Z')
}

function readTimestamp(value: unknown): Date | null {
  if (typeof value !== 'string') return null
  const date = new Date(value)
  return Number.isNaN(date.getTime()) ? null : date
}
