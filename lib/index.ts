export { parseWorkers } from './config/capsules.ts'
export type { ConsumerEntry } from './config/consumers.ts'
export { defineConfig } from './config/define.ts'
export { type LoadConfigOptions, type LoadedConfig, loadConfig } from './config/load.ts'
export type { PgbusConfig, ResolvedConfig, ResolvedWorkerEntry, WorkerEntry } from './config/options.ts'
export type { RecurringTask } from './config/recurring-tasks.ts'
export { redactConfig } from './config/redact.ts'
export { resolveConfig, validateConfig } from './config/resolve.ts'
export type { Duration } from './core/duration.ts'
export * from './core/errors.ts'
export type { JsonValue } from './core/json.ts'
export type { Logger, LogLevel } from './core/log.ts'
export type { ErrorContext, ErrorReporter } from './core/report.ts'
export type { Occurrence } from './core/schedule.ts'
export type { Queryable } from './db/database.ts'
export type { MigrationStatus } from './db/migrate.ts'
export {
  defineHandler,
  type Event,
  type EventContext,
  type Handler,
  type HandlerOptions,
  type TransactionContext,
} from './events/define.ts'
export type { Binding, BindingInfo, Events, HandlerInfo, PendingClaim } from './events/events.ts'
export type { EventItem, PublishOptions, PublishResult } from './events/publish.ts'
export type { HealthOptions } from './health/health.ts'
export type { HealthSignal, HealthStatus, HealthVerdict, SignalCode } from './health/verdict.ts'
export { DiscardJob, RetryJob } from './jobs/control.ts'
export type { DeadLetter, DeadLetterDetail, DeadLetterPage, DeadLetters } from './jobs/dead-letters.ts'
export {
  defineJob,
  type Job,
  type JobContext,
  type JobEnqueueOptions,
  type JobOptions,
  type RetryPolicy,
} from './jobs/define.ts'
export type { EnqueueItem, EnqueueOptions, EnqueueResult, EnqueueStatus } from './jobs/enqueue.ts'
export type { InProcessWorker } from './jobs/in-process-worker.ts'
export type {
  CancelOptions,
  CancelResult,
  JobDetail,
  JobInfo,
  JobPage,
  JobRef,
  JobState,
  Jobs,
} from './jobs/jobs.ts'
export type { RunResult, RunUntilEmptyOptions } from './jobs/run-until-empty.ts'
export type { StandardSchemaV1 } from './jobs/standard-schema.ts'
export type { WorkerState, WorkerStats } from './jobs/worker.ts'
export type { ConcurrencyOptions, LimitConflict } from './limits/concurrency.ts'
export type { KeyScope } from './limits/keys.ts'
export type { LockInfo, Locks } from './limits/locks.ts'
export type { UniqueConflict, UniqueOptions, UniqueStrategy } from './limits/unique.ts'
export type { Entries, OutboxEntry, OutboxPage, OutboxStats } from './outbox/entries.ts'
export type {
  FlushResult,
  Outbox,
  OutboxEventOptions,
  OutboxMessageOptions,
  OutboxOptions,
} from './outbox/outbox.ts'
export { createPgbus, loadPgbus, type Pgbus, type Schema } from './pgbus.ts'
export type { QueueInfo, QueueMetrics, Queues } from './pgmq/queues.ts'
export {
  type Supervisor,
  type SupervisorOptions,
  startSupervisor,
} from './processes/supervisor/supervisor.ts'
export type { AppContext } from './processes/web/app-module.ts'
export type { Recurring, RecurringTaskInfo } from './recurring/recurring.ts'
export type { BroadcastOptions } from './streams/broadcast.ts'
export type { BroadcastPayload } from './streams/envelope.ts'
export type { FilterPredicate, Filters } from './streams/filters.ts'
export type { StreamName } from './streams/name.ts'
export type { Renderer, Renderers } from './streams/renderers.ts'
export type { SourceTagOptions } from './streams/source-tag.ts'
export type {
  BroadcastLaterOptions,
  BroadcastRenderOptions,
  Stream,
  StreamMessage,
  StreamOptions,
} from './streams/stream.ts'
export type { Streamer, StreamerStats } from './streams/streamer.ts'
export type { Streams } from './streams/streams.ts'
export type { TokenOptions } from './streams/token.ts'
