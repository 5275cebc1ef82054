import { currentInstance } from '../core/context.ts'
import { callSite, isSameDefinition } from '../core/definition.ts'
import { type Duration, longestDelayMs, parseDuration } from '../core/duration.ts'
import type { JsonValue } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import type { Queryable } from '../db/database.ts'
import { type ConcurrencyOptions, type ConcurrencyRule, checkConcurrency } from '../limits/concurrency.ts'
import { checkUnique, type UniqueOptions, type UniqueRule } from '../limits/unique.ts'
import type { Pgbus } from '../pgbus.ts'
import type { EnqueueOptions, EnqueueResult } from './enqueue.ts'
import { isSchema, type SchemaInput, type SchemaOutput, type StandardSchemaV1 } from './standard-schema.ts'

/** How long to wait before the next attempt: parts of the formula, or a function of the attempt that failed. */
export type RetryPolicy =
  | { base?: Duration | undefined; max?: Duration | undefined; jitter?: number | undefined }
  | ((attempt: number, error: Error) => Duration | 'discard' | 'dead')

export interface JobOptions<A = never> {
  /** Unique name, at most 255 characters. It is stored with every job. */
  name: string
  /** Logical queue. Default `defaultQueue`. */
  queue?: string | undefined
  /** Lower runs first. Only with `priority.levels`; else it is stored and nothing more. */
  priority?: number | undefined
  /** Longest run of one attempt; null: none. Default `jobTimeout`. */
  timeout?: Duration | null | undefined
  /** Executions until the job is dead-lettered, at least 1. Default `maxRetries`. */
  maxAttempts?: number | undefined
  /** Default `retry`. */
  retry?: RetryPolicy | undefined
  /** Keep the lease of a running attempt renewed. Default `renewVisibility`. */
  renew?: boolean | undefined
  /** What is done goes to the archive of its queue; false: it is deleted. Default true. */
  archive?: boolean | undefined
  /** Checks the arguments at enqueue and before the handler, which gets what the schema made of them. */
  schema?: StandardSchemaV1 | undefined
  /** There is one job with the same key at a time, whoever enqueues it. Holds where this definition is loaded. */
  unique?: UniqueOptions<A> | undefined
  /** So many jobs with one key at a time, whoever enqueues them. Holds where this definition is loaded. */
  concurrency?: ConcurrencyOptions<A> | undefined
}

/** Options of `job.enqueue`. */
export interface JobEnqueueOptions extends EnqueueOptions {
  /** Instance to use. Default: that of the running handler, else the only open one of the process. */
  pgbus?: Pgbus | undefined
}

/** A defined job. */
export interface Job<A = JsonValue> {
  readonly name: string
  /** Puts this job on its queue. */
  enqueue(args: A, options?: JobEnqueueOptions): Promise<EnqueueResult>
  /** Puts many on their queues in one transaction: all or none. `options` apply where an item says nothing. */
  enqueueMany(
    items: readonly ({ args: A } & Omit<EnqueueOptions, 'tx'>)[],
    options?: JobEnqueueOptions,
  ): Promise<EnqueueResult[]>
}

/** What a handler gets beside its arguments. */
export interface JobContext {
  readonly job: {
    readonly id: string
    readonly name: string
    /** Logical name. */
    readonly queue: string
    readonly msgId: number
    /** 1 for the first. */
    readonly attempt: number
    readonly maxAttempts: number
    readonly priority: number | null
    readonly enqueuedAt: Date
    /** When it was to run; null: at once. */
    readonly scheduledAt: Date | null
    readonly headers: Readonly<Record<string, JsonValue>>
  }
  /** Aborts with JobTimeoutError, JobCancelledError, LeaseLostError or ShutdownError. */
  readonly signal: AbortSignal
  /** The worker is finishing its last jobs. */
  readonly stopping: boolean
  /** Names the job in every line. */
  readonly log: Logger
  readonly pgbus: Pgbus
  /**
   * Ends the job within a transaction of the handler, once: it is done exactly if that commits. After that the
   * message is not renewed; if the transaction is rolled back, the job runs again when its lease has run out, or is
   * retried when the handler throws.
   * @throws LeaseLostError when somebody else has the message: then roll back.
   */
  completeIn(tx: Queryable): Promise<void>
  /** Keeps the message for at least this long from now, beyond the renewal that happens anyway. */
  extend(by: Duration): Promise<void>
}

/** A {@link RetryPolicy} that was checked; milliseconds. */
export type RetryRule =
  | { readonly base?: number; readonly max?: number; readonly jitter?: number }
  | ((attempt: number, error: Error) => unknown)

/** @internal */
export interface JobDefinition {
  readonly name: string
  readonly queue: string | undefined
  readonly priority: number | undefined
  /** Milliseconds; null: none; undefined: as configured. */
  readonly timeout: number | null | undefined
  readonly maxAttempts: number | undefined
  readonly retry: RetryRule
  /** Undefined: as configured. */
  readonly renew: boolean | undefined
  readonly archive: boolean
  readonly schema: StandardSchemaV1 | undefined
  readonly unique: UniqueRule | undefined
  readonly concurrency: ConcurrencyRule | undefined
  readonly handler: (args: unknown, context: JobContext) => unknown
  /** File and position of the definition. */
  readonly place: string
}

const key = Symbol.for('pgbus.jobs')
const holder = globalThis as { [key]?: Map<string, JobDefinition> }

/** Every definition of the process. A Map: a job may be called `__proto__`. */
holder[key] ??= new Map<string, JobDefinition>()
const catalogue = holder[key]

const optionNames = new Set([
  'name',
  'queue',
  'priority',
  'timeout',
  'maxAttempts',
  'retry',
  'renew',
  'archive',
  'schema',
  'unique',
  'concurrency',
])
const retryNames = new Set(['base', 'max', 'jitter'])
const maxNameLength = 255

/**
 * Defines a job: its name, and the function that does it.
 * @throws TypeError naming the job when an option is wrong, or when the name is taken by another handler.
 */
export function defineJob<S extends StandardSchemaV1>(
  options: JobOptions<SchemaInput<S>> & { schema: S },
  handler: (args: SchemaOutput<S>, context: JobContext) => unknown,
): Job<SchemaInput<S>>
export function defineJob<A = JsonValue>(
  options: JobOptions<A> & { schema?: StandardSchemaV1<A, A> | undefined },
  handler: (args: A, context: JobContext) => unknown,
): Job<A>
export function defineJob<A>(
  options: JobOptions<A>,
  handler: (args: A, context: JobContext) => unknown,
): Job<A> {
  const definition = check(options, handler as JobDefinition['handler'], callSite(defineJob))
  const known = catalogue.get(definition.name)
  if (known && !isSameDefinition(known, definition)) {
    throw new TypeError(
      `job "${definition.name}" is defined twice: at ${known.place} and at ${definition.place}; give one another name`,
    )
  }
  catalogue.set(definition.name, definition)
  return Object.freeze({
    name: definition.name,
    enqueue: async (args: A, { pgbus, ...own }: JobEnqueueOptions = {}) =>
      currentInstance(pgbus).enqueue(definition.name, args, own),
    enqueueMany: async (
      items: readonly ({ args: A } & Omit<EnqueueOptions, 'tx'>)[],
      { pgbus, tx, ...shared }: JobEnqueueOptions = {},
    ) => {
      if (shared.jobId !== undefined) {
        throw new TypeError('enqueueMany: jobId identifies one job; give it with its item')
      }
      return currentInstance(pgbus).enqueueMany(
        items.map(item => ({ ...shared, ...item, job: definition.name })),
        { tx },
      )
    },
  })
}

/** The definition of a job, if this process has one. @internal */
export function findJob(name: string): JobDefinition | undefined {
  return catalogue.get(name)
}

function check(options: JobOptions<never>, handler: JobDefinition['handler'], place: string): JobDefinition {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError('defineJob: the first argument must be an object of options')
  }
  const { name, queue, priority, timeout, maxAttempts, retry, renew, archive = true, schema } = options
  if (typeof name !== 'string' || name === '' || name.length > maxNameLength || name.includes('\0')) {
    throw new TypeError(
      `defineJob: name must be a string of 1 to ${maxNameLength} characters, got ${shown(name)}`,
    )
  }
  const refuse = (rule: string, value: unknown): never => {
    throw new TypeError(`job "${name}": ${rule}, got ${shown(value)}`)
  }
  for (const option of Object.keys(options)) {
    if (!optionNames.has(option)) {
      throw new TypeError(
        `job "${name}": unknown option "${option}"; there are ${[...optionNames].join(', ')}`,
      )
    }
  }
  if (typeof handler !== 'function') refuse('the handler must be a function', handler)
  // Prefix and suffixes are known only to an instance; the rest of the rules for names hold everywhere.
  if (queue !== undefined && (typeof queue !== 'string' || !/^[A-Za-z0-9_]+$/.test(queue))) {
    refuse('queue must be a name of letters, digits and underscores', queue)
  }
  if (priority !== undefined && (!Number.isSafeInteger(priority) || priority < 0)) {
    refuse('priority must be an integer of at least 0', priority)
  }
  if (maxAttempts !== undefined && (!Number.isSafeInteger(maxAttempts) || maxAttempts < 1)) {
    refuse('maxAttempts must be an integer of at least 1', maxAttempts)
  }
  const timeoutMs = timeout === undefined || timeout === null ? timeout : parseDuration(timeout)
  if (timeout !== undefined && timeout !== null && !timeoutMs) {
    refuse('timeout must be null or a duration above 0 such as "30s"', timeout)
  }
  for (const [option, value] of Object.entries({ renew, archive })) {
    if (value !== undefined && typeof value !== 'boolean') refuse(`${option} must be true or false`, value)
  }
  if (schema !== undefined && !isSchema(schema)) {
    refuse('schema must follow Standard Schema (it has no "~standard".validate)', schema)
  }
  return Object.freeze({
    name,
    queue,
    priority,
    timeout: timeoutMs,
    maxAttempts,
    retry: checkRetry(retry, refuse),
    renew,
    archive,
    schema,
    unique: checkUnique(options.unique, refuse),
    concurrency: checkConcurrency(options.concurrency, refuse),
    handler,
    place,
  })
}

/** A retry policy with its durations in ms; what is wrong with it is given to `refuse`, which throws. @internal */
export function checkRetry(
  retry: RetryPolicy | undefined,
  refuse: (rule: string, value: unknown) => never,
): RetryRule {
  if (typeof retry === 'function') return retry
  if (retry === undefined) return {}
  if (typeof retry !== 'object' || retry === null) {
    return refuse('retry must be a function or an object of base, max and jitter', retry)
  }
  for (const option of Object.keys(retry)) {
    if (!retryNames.has(option)) refuse('retry has only base, max and jitter', option)
  }
  const parts: { base?: number; max?: number; jitter?: number } = {}
  for (const part of ['base', 'max'] as const) {
    if (retry[part] === undefined) continue
    const ms = parseDuration(retry[part])
    parts[part] =
      ms !== undefined && ms <= longestDelayMs
        ? ms
        : refuse(`retry.${part} must be a duration of at most 100 years such as "30s"`, retry[part])
  }
  if ((parts.base ?? 0) > (parts.max ?? Number.POSITIVE_INFINITY)) {
    refuse('retry.base must not be above retry.max', retry.base)
  }
  const { jitter } = retry
  if (jitter !== undefined) {
    if (typeof jitter !== 'number' || !(jitter >= 0 && jitter <= 1)) {
      refuse('retry.jitter must be a number from 0 to 1', jitter)
    }
    parts.jitter = jitter
  }
  return parts
}

function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value)
  return typeof value === 'object' && value !== null ? 'an object' : String(value)
}
