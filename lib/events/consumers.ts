import type { ResolvedConsumerEntry } from '../config/consumers.ts'
import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { ConfigurationError } from '../core/errors.ts'
import { topicsOverlap } from '../core/topics.ts'
import type { HandlerDefinition } from './define.ts'

/** The handlers whose events a consumer may get: those that some key of its topics can reach. */
export function handlersOf(
  { topics }: Pick<ResolvedConsumerEntry, 'topics'>,
  handlers: readonly HandlerDefinition[],
): HandlerDefinition[] {
  return handlers.filter(({ on }) => topics.some(topic => on.some(pattern => topicsOverlap(topic, pattern))))
}

/**
 * The worker that a consumer is. All its handlers take turns, so none waits for a busy one.
 * @throws ConfigurationError when a job worker reads one of the queues too.
 */
export function workerOf(
  consumer: ResolvedConsumerEntry,
  handlers: readonly HandlerDefinition[],
  config: Pick<ResolvedConfig, 'workers' | 'prefetchLimit' | 'groupMode'>,
): ResolvedWorkerEntry {
  const queues = [...new Set(handlersOf(consumer, handlers).map(({ queue }) => queue))]
  checkApart(handlers, config.workers)
  return {
    name: null,
    queues,
    concurrency: consumer.concurrency,
    processes: 1,
    order: 'fair',
    prefetchLimit: config.prefetchLimit,
    groupMode: config.groupMode,
    singleActiveConsumer: false,
    consumerPriority: 0,
  }
}

/** @throws ConfigurationError when a queue belongs to job workers and to a handler. */
export function checkApart(
  handlers: readonly Pick<HandlerDefinition, 'name' | 'queue'>[],
  workers: readonly Pick<ResolvedWorkerEntry, 'queues'>[],
): void {
  const queues = new Set(workers.flatMap(worker => worker.queues))
  const handler = handlers.find(({ queue }) => queues.has(queue))
  if (handler === undefined) return
  throw new ConfigurationError(
    `a job worker reads queue "${handler.queue}", which belongs to handler "${handler.name}"; give the handler another queue`,
  )
}

/** Handlers that no consumer of this configuration gets events for. */
export function uncovered(
  handlers: readonly HandlerDefinition[],
  { consumers }: Pick<ResolvedConfig, 'consumers'>,
): HandlerDefinition[] {
  const covered = new Set(consumers.flatMap(consumer => handlersOf(consumer, handlers)))
  return handlers.filter(handler => !covered.has(handler))
}
