import { callSite, isSameDefinition } from '../core/definition.ts'
import { type Duration, parseDuration } from '../core/duration.ts'
import type { JsonValue } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import { checkTopicPattern, topicMatches } from '../core/topics.ts'
import type { Queryable } from '../db/database.ts'
import { checkRetry, type RetryPolicy, type RetryRule } from '../jobs/define.ts'
import type { Pgbus } from '../pgbus.ts'
import { handlerQueues } from '../pgmq/handler-queues.ts'

export interface HandlerOptions {
  /** Unique name, at most 255 characters. Idempotent handlers are told apart by it in the database. */
  name: string
  /** Patterns of the routing keys that it handles; `*` is one word, `#` any number of words, at least one. */
  on: string | readonly string[]
  /** Logical queue that its events wait in. Default: made of the name, `OrderMailer` → `order_mailer`. */
  queue?: string | undefined
  /**
   * true: an event that it has handled is not handled again, however often it is delivered.
   * `transaction`: it runs in a transaction, `ctx.tx`, in which the event ends too; so what it writes there happens
   * exactly once. Holds a connection of the pool while it runs. Default false.
   */
  idempotent?: boolean | 'transaction' | undefined
  /** Executions until the event is dead-lettered, at least 1. Default `maxRetries` of the configuration. */
  maxRetries?: number | undefined
  /** Default `retry` of the configuration. */
  retry?: RetryPolicy | undefined
  /** Longest run; null: none. Default `jobTimeout`. */
  timeout?: Duration | null | undefined
}

/** One event, as a handler sees it. */
export interface Event<P = JsonValue> {
  /** The same in every queue that the event reached. */
  readonly id: string
  readonly routingKey: string
  /** A payload that is no object arrives as `{ value }`. */
  readonly payload: P
  readonly publishedAt: Date
  readonly headers: Readonly<Record<string, JsonValue>>
  readonly msgId: number
  /** Deliveries so far, this one included. */
  readonly readCount: number
}

/** What a handler gets beside the event. */
export interface EventContext {
  /** Its name. */
  readonly handler: string
  /** 1 for the first. */
  readonly attempt: number
  readonly maxAttempts: number
  /** Aborts with JobTimeoutError, LeaseLostError or ShutdownError. */
  readonly signal: AbortSignal
  /** The consumer is finishing its last events. */
  readonly stopping: boolean
  /** Names handler and event in every line. */
  readonly log: Logger
  readonly pgbus: Pgbus
  /** Keeps the event for at least this long from now, beyond the renewal that happens anyway. */
  extend(by: Duration): Promise<void>
}

/** The context of a handler that is `idempotent: 'transaction'`. */
export interface TransactionContext extends EventContext {
  /** Commits with the end of the event, or not at all. */
  readonly tx: Queryable
}

/** A defined handler. */
export interface Handler {
  readonly name: string
  /** Logical name. */
  readonly queue: string
  readonly on: readonly string[]
}

/** @internal */
export interface HandlerDefinition extends Handler {
  readonly idempotent: boolean | 'transaction'
  readonly maxRetries: number | undefined
  readonly retry: RetryRule
  /** Milliseconds; null: none; undefined: as configured. */
  readonly timeout: number | null | undefined
  readonly handler: (event: Event, context: EventContext) => unknown
  /** File and position of the definition. */
  readonly place: string
}

const key = Symbol.for('pgbus.handlers')
const holder = globalThis as { [key]?: Map<string, HandlerDefinition> }

/** Every definition of the process, in the order in which they were made. */
holder[key] ??= new Map<string, HandlerDefinition>()
const catalogue = holder[key]

const optionNames = new Set(['name', 'on', 'queue', 'idempotent', 'maxRetries', 'retry', 'timeout'])
const maxNameLength = 255
/** What the shortest prefix and the suffix of the dead-letter queue leave of 47 characters. */
const maxQueueLength = 41

/**
 * Defines a handler: the events that it wants, and the function that handles one.
 * @throws TypeError naming the handler when an option is wrong, when the name is taken, or when its queue belongs to
 * another handler and not both are idempotent.
 */
export function defineHandler<P = JsonValue>(
  options: HandlerOptions & { idempotent: 'transaction' },
  handler: (event: Event<P>, context: TransactionContext) => unknown,
): Handler
export function defineHandler<P = JsonValue>(
  options: HandlerOptions,
  handler: (event: Event<P>, context: EventContext) => unknown,
): Handler
export function defineHandler(
  options: HandlerOptions,
  handler: (event: Event<never>, context: TransactionContext) => unknown,
): Handler {
  const definition = check(options, handler as HandlerDefinition['handler'], callSite(defineHandler))
  const known = catalogue.get(definition.name)
  if (known && !isSameDefinition(known, definition)) {
    throw new TypeError(
      `handler "${definition.name}" is defined twice: at ${known.place} and at ${definition.place}; give one another name`,
    )
  }
  for (const other of catalogue.values()) {
    if (other.name === definition.name || other.queue !== definition.queue) continue
    // A failure of one would run the other again.
    if (other.idempotent && definition.idempotent) continue
    throw new TypeError(
      `handlers "${other.name}" and "${definition.name}" share queue "${definition.queue}"; make both idempotent or give each its own queue`,
    )
  }
  catalogue.set(definition.name, definition)
  handlerQueues.add(definition.queue)
  return Object.freeze({ name: definition.name, queue: definition.queue, on: definition.on })
}

/** Every handler of this process. @internal */
export function definedHandlers(): HandlerDefinition[] {
  return [...catalogue.values()]
}

/** The handlers of one queue that want an event; a key of null matches what matches everything. @internal */
export function handlersFor(queue: string, routingKey: string | null): HandlerDefinition[] {
  return definedHandlers().filter(
    handler => handler.queue === queue && handler.on.some(pattern => topicMatches(pattern, routingKey ?? '')),
  )
}

/** `OrderMailer` → `order_mailer`, `Billing::HTTPHook` → `billing_http_hook`. */
export function queueOfHandler(name: string): string {
  return name
    .replaceAll('::', '_')
    .replace(/\W/g, '_')
    .replace(/([A-Z]+)([A-Z][a-z])/g, '$1_$2')
    .replace(/([a-z\d])([A-Z])/g, '$1_$2')
    .toLowerCase()
}

function check(
  options: HandlerOptions,
  handler: HandlerDefinition['handler'],
  place: string,
): HandlerDefinition {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError('defineHandler: the first argument must be an object of options')
  }
  const { name, on, idempotent = false, maxRetries, timeout, retry } = options
  if (typeof name !== 'string' || name === '' || name.length > maxNameLength || name.includes('\0')) {
    throw new TypeError(`defineHandler: name must be a string of 1 to ${maxNameLength} characters`)
  }
  const refuse = (rule: string, value: unknown): never => {
    throw new TypeError(`handler "${name}": ${rule}, got ${JSON.stringify(value) ?? String(value)}`)
  }
  for (const option of Object.keys(options)) {
    if (!optionNames.has(option)) {
      throw new TypeError(
        `handler "${name}": unknown option "${option}"; there are ${[...optionNames].join(', ')}`,
      )
    }
  }
  if (typeof handler !== 'function') refuse('the handler must be a function', handler)
  const queue = options.queue ?? queueOfHandler(name)
  if (typeof queue !== 'string' || !/^[A-Za-z0-9_]+$/.test(queue) || queue.length > maxQueueLength) {
    refuse(`queue must be a name of at most ${maxQueueLength} letters, digits and underscores`, queue)
  }
  if (idempotent !== true && idempotent !== false && idempotent !== 'transaction') {
    refuse('idempotent must be true, false or "transaction"', idempotent)
  }
  if (maxRetries !== undefined && (!Number.isSafeInteger(maxRetries) || maxRetries < 1)) {
    refuse('maxRetries must be an integer of at least 1', maxRetries)
  }
  const timeoutMs = timeout === undefined || timeout === null ? timeout : parseDuration(timeout)
  if (timeout !== undefined && timeout !== null && !timeoutMs) {
    refuse('timeout must be null or a duration above 0 such as "30s"', timeout)
  }
  return Object.freeze({
    name,
    queue: queue.toLowerCase(),
    on: checkPatterns(on, refuse),
    idempotent,
    maxRetries,
    retry: checkRetry(retry, refuse),
    timeout: timeoutMs,
    handler,
    place,
  })
}

function checkPatterns(
  on: HandlerOptions['on'],
  refuse: (rule: string, value: unknown) => never,
): readonly string[] {
  const patterns: readonly unknown[] = typeof on === 'string' ? [on] : on
  if (!Array.isArray(patterns) || patterns.length === 0) {
    return refuse('on must be a pattern or a non-empty array of patterns', on)
  }
  for (const pattern of patterns) {
    try {
      checkTopicPattern(pattern)
    } catch (error) {
      refuse(`on: ${(error as Error).message.replace(/, got .*$/, '')}`, pattern)
    }
  }
  return Object.freeze([...new Set(patterns as string[])])
}
