import type { ResolvedConfig } from '../config/options.ts'
import { runningHandler } from '../core/context.ts'
import { parseDelay } from '../core/duration.ts'
import type { JsonValue } from '../core/json.ts'
import type { Logger } from '../core/log.ts'
import { toError } from '../core/report.ts'
import type { Database } from '../db/database.ts'
import type { Delivery } from '../jobs/claim.ts'
import { Completion, type EndStatement } from '../jobs/completion.ts'
import { isDiscardJob } from '../jobs/control.ts'
import { readHeaders } from '../jobs/envelope.ts'
import type { Attempt, Task, TaskEnd, Work } from '../jobs/work.ts'
import type { Pgbus } from '../pgbus.ts'
import { logicalOf, physicalName } from '../pgmq/names.ts'
import { archiveMany } from '../pgmq/statements.ts'
import { type Event, type EventContext, type HandlerDefinition, handlersFor } from './define.ts'
import { decodePayload, type EventEnvelope, readEvent } from './envelope.ts'
import { type ClaimState, completeIn, completion, type Idempotency } from './idempotency.ts'

export interface EventWorkOptions {
  config: ResolvedConfig
  db: Database
  log: Logger
  pgbus: Pgbus
  idempotency: Idempotency
  /** Makes sure that the queues of all handlers exist and are bound. */
  setup: () => Promise<void>
}

/** Another message of the event is being handled; looked at again about then. */
const busyMs = 5_000
/** An event that nobody here handles is looked at again so late: a newer process may know it. */
const unhandledMs = 30_000
/** It is given up when nobody has handled it for so long. */
const unhandledLimitMs = 600_000

/** What a consumer does with events: each message goes to those handlers of its queue that its key matches. */
export class EventWork implements Work {
  readonly kind = 'consumer'
  readonly #options: EventWorkOptions

  constructor(options: EventWorkOptions) {
    this.#options = options
  }

  /** Handler queues have no priorities. */
  tablesOf(queue: string): readonly string[] {
    return [physicalName(this.#options.config, queue)]
  }

  /** Nobody reads handler queues by pattern. */
  isForPatterns(): boolean {
    return false
  }

  prepare(): Promise<void> {
    return this.#options.setup()
  }

  read(delivery: Delivery): Task {
    const { config } = this.#options
    const { event, headers, error } = tryRead(delivery)
    const queue = logicalOf(config, delivery.physical)
    const handlers = event ? handlersFor(queue, event.routingKey) : []
    const progress: Progress = { handler: handlers[0] }
    return {
      noun: 'event',
      action: 'process_message',
      name: event ? (event.routingKey ?? event.id) : null,
      get fields() {
        return {
          event_id: event?.id ?? null,
          routing_key: event?.routingKey ?? null,
          handler: progress.handler?.name ?? null,
        }
      },
      maxAttempts: most(handlers.map(handler => handler.maxRetries ?? config.maxRetries)),
      renew: undefined,
      timeout: sum(handlers.map(({ timeout }) => (timeout === undefined ? config.jobTimeout : timeout))),
      get retry() {
        // What is no event will be none the next time.
        return event ? (progress.handler?.retry ?? {}) : () => 'dead'
      },
      done: { kind: 'archive' },
      run: async attempt => {
        if (!event) throw error
        if (handlers.length === 0) return this.#unhandled(attempt, event, queue)
        return new EventRun(this.#options, { attempt, event, headers, handlers, progress }).run()
      },
    }
  }

  /** During a deploy an old process may get what only a new one handles. */
  #unhandled({ lease: { delivery } }: Attempt, event: EventEnvelope, queue: string): TaskEnd {
    const visibleAt = Math.max(delivery.enqueuedAt.getTime(), event.dueAt?.getTime() ?? 0)
    if (Date.now() - visibleAt < unhandledLimitMs) {
      return { outcome: { kind: 'release', delayMs: unhandledMs } }
    }
    const { id, routingKey } = event
    return {
      outcome: { kind: 'archive' },
      written: () =>
        this.#options.log.warn(
          { event_id: id, routing_key: routingKey, queue },
          `event ${id} "${routingKey}" matches no handler of queue "${queue}"; it was archived`,
        ),
    }
  }
}

/** Which handler runs, or will be the first to; for those who tell of a failure. */
interface Progress {
  handler: HandlerDefinition | undefined
}

interface RunInput {
  attempt: Attempt
  event: EventEnvelope
  headers: Readonly<Record<string, JsonValue>>
  handlers: readonly HandlerDefinition[]
  progress: Progress
}

/** One delivery of one event, through its handlers in the order of their definitions. */
class EventRun {
  readonly #options: EventWorkOptions
  readonly #input: RunInput
  /** Two-phase claims whose handler has run. */
  readonly #completed: string[] = []

  constructor(options: EventWorkOptions, input: RunInput) {
    this.#options = options
    this.#input = input
  }

  async run(): Promise<TaskEnd> {
    const { attempt, handlers, progress, event } = this.#input
    const { idempotency } = this.#options
    const { delivery, signal } = attempt.lease
    const open = handlers.filter(({ name, idempotent }) => !idempotent || !idempotency.knows(name, event.id))
    const claimed = open.filter(({ idempotent }) => idempotent === true).map(({ name }) => name)
    const states =
      claimed.length > 0 ? await idempotency.claim(event.id, claimed, delivery) : new Map<string, never>()
    if ([...states.values()].includes('busy' as never)) return later()
    const payload = decodePayload(event)
    for (const handler of open) {
      signal.throwIfAborted()
      progress.handler = handler
      if (states.get(handler.name) === 'done') this.#skip(handler)
      else if (handler.idempotent === 'transaction') {
        const end = await this.#runInTransaction(handler, payload)
        if (end !== undefined) return end
      } else {
        await this.#runClaimed(handler, payload)
      }
    }
    return this.#end()
  }

  #end(): TaskEnd {
    const { attempt, event } = this.#input
    const { idempotency } = this.#options
    const completed = this.#completed
    const written = () => {
      for (const handler of completed) idempotency.remember(handler, event.id)
    }
    if (completed.length === 0 || !idempotency.completes) return { outcome: { kind: 'archive' }, written }
    const token = idempotency.tokenOf(attempt.lease.delivery, event.id, completed)
    return { outcome: { kind: 'own', token, ending: completion }, written }
  }

  async #runClaimed(handler: HandlerDefinition, payload: unknown): Promise<void> {
    const { idempotency } = this.#options
    const context = this.#context(handler)
    try {
      await this.#call(handler, payload, context)
    } catch (thrown) {
      if (!isDiscardJob(thrown)) {
        // A claim without phases would keep the next attempt from running.
        if (handler.idempotent && !idempotency.completes) {
          await idempotency.unclaim(this.#input.event.id, handler.name)
        }
        throw thrown
      }
      tellDiscarded(context, thrown)
    }
    if (handler.idempotent) this.#completed.push(handler.name)
  }

  /** Undefined: go on with the next. The end of the event is part of it when no other handler shares the queue. */
  async #runInTransaction(handler: HandlerDefinition, payload: unknown): Promise<TaskEnd | undefined> {
    const { attempt, event, handlers } = this.#input
    const { db, config, idempotency } = this.#options
    const { lease } = attempt
    const endsHere = handlers.length === 1
    const context = this.#context(handler)
    await idempotency.prepare()
    let state: ClaimState
    try {
      state = await db.transaction(async tx => {
        const state = await idempotency.claimIn(tx, event.id, handler.name, lease.delivery)
        if (state !== 'run') return state
        await this.#call(handler, payload, Object.assign(context, { tx }))
        // Its failure may be recorded already; then nothing of it may stay.
        lease.signal.throwIfAborted()
        if (endsHere) {
          await new Completion({ lease, config, statement: this.#endOf(handler) }).writeIn(tx)
        } else {
          const { text, values } = completeIn(event.id, handler.name, idempotency.completes)
          await tx.query(text, values)
        }
        return state
      })
    } catch (thrown) {
      if (!isDiscardJob(thrown)) throw thrown
      // What it wrote is undone; the event ends all the same.
      tellDiscarded(context, thrown)
      this.#completed.push(handler.name)
      return undefined
    }
    if (state === 'busy') return later()
    if (state === 'done') {
      this.#skip(handler)
      return undefined
    }
    idempotency.remember(handler.name, event.id)
    return endsHere ? 'recorded' : undefined
  }

  /** The end of the event with the completion of one handler, for a transaction. */
  #endOf(handler: HandlerDefinition): EndStatement {
    const { idempotency } = this.#options
    const { attempt, event } = this.#input
    return (physical, tokens, failed) => {
      if (!idempotency.completes) return archiveMany(physical, tokens, failed)
      const token = idempotency.tokenOf(attempt.lease.delivery, event.id, [handler.name])
      return completion.statement(physical, [token], failed)
    }
  }

  async #call(handler: HandlerDefinition, payload: unknown, context: EventContext): Promise<void> {
    const { event, attempt, headers } = this.#input
    const { msgId, readCount, enqueuedAt } = attempt.lease.delivery
    const told: Event = Object.freeze({
      id: event.id,
      routingKey: event.routingKey ?? '',
      payload: payload as JsonValue,
      publishedAt: event.publishedAt ?? enqueuedAt,
      headers,
      msgId,
      readCount,
    })
    const { pgbus } = this.#options
    await runningHandler.run({ pgbus, log: context.log }, async () => handler.handler(told, context))
  }

  #skip(handler: HandlerDefinition): void {
    const { event } = this.#input
    this.#options.idempotency.remember(handler.name, event.id)
    this.#options.log.debug(
      { event_id: event.id, routing_key: event.routingKey, handler: handler.name },
      'event skipped, its handler has completed it before',
    )
  }

  #context(handler: HandlerDefinition): EventContext {
    const { attempt, event } = this.#input
    const { lease, limit, isStopping, extend } = attempt
    const { physical, msgId, readCount } = lease.delivery
    const { config, pgbus } = this.#options
    return {
      handler: handler.name,
      attempt: readCount,
      maxAttempts: limit,
      signal: lease.signal,
      get stopping() {
        return isStopping()
      },
      log: this.#options.log.child({
        handler: handler.name,
        event_id: event.id,
        routing_key: event.routingKey,
        queue: logicalOf(config, physical),
        msg_id: msgId,
        attempt: readCount,
      }),
      pgbus,
      extend: async by => extend(parseDelay('extend: by', by)),
    }
  }
}

function tellDiscarded({ log }: EventContext, { message }: Error): void {
  log.info({ reason: message }, 'event discarded by its handler')
}

/** Not charged: nothing was run. Spread, so that messages of one event do not meet again. */
function later(): TaskEnd {
  return { outcome: { kind: 'release', delayMs: Math.round(busyMs * (0.8 + 0.4 * Math.random())) } }
}

function tryRead({
  message,
  headers: text,
}: Delivery):
  | { event: EventEnvelope; headers: Record<string, JsonValue>; error?: never }
  | { event?: never; headers: Record<string, JsonValue>; error: Error } {
  try {
    const headers = readHeaders(text)
    return { event: readEvent(message, headers), headers: Object.freeze(headers) as typeof headers }
  } catch (error) {
    return { headers: {}, error: toError(error) }
  }
}

function most(numbers: readonly number[]): number | undefined {
  return numbers.length === 0 ? undefined : Math.max(...numbers)
}

/** Handlers of one queue run one after the other. Null: one of them has no limit. */
function sum(timeouts: readonly (number | null)[]): number | null | undefined {
  if (timeouts.length === 0) return undefined
  let total = 0
  for (const timeout of timeouts) {
    if (timeout === null) return null
    total += timeout
  }
  return total
}
