/**
 * Every error class of pgbus. Operational errors extend {@link PgbusError}; errors about the shape of an
 * argument extend `TypeError` and still carry a `code`. Match on `code`, never on the text.
 */

const brand = Symbol.for('pgbus.error')

export interface PgbusErrorOptions {
  cause?: unknown
}

/** Base of every operational error. Two copies of the package recognise each other's errors by a brand. */
export class PgbusError extends Error {
  readonly code: string = 'PGBUS_ERR'
  readonly [brand] = true

  constructor(message: string, options: PgbusErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = new.target.name
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    if (typeof value !== 'object' || value === null) return false
    if (this === PgbusError) return (value as { [brand]?: unknown })[brand] === true
    return Function.prototype[Symbol.hasInstance].call(this, value)
  }
}

/** One thing that is wrong with a configuration. */
export interface ConfigIssue {
  /** Key path, for example `pool.size` or `env PGBUS_POOL_SIZE`. */
  path: string
  /** The rule that the value breaks. */
  rule: string
  /** The value as received, shortened and with secrets removed. */
  received: string
  /** What to write instead, when that can be guessed. */
  hint?: string | undefined
}

/** The configuration is wrong, or there is no database to talk to. */
export class ConfigurationError extends PgbusError {
  override readonly code = 'PGBUS_ERR_CONFIG'
  readonly issues: readonly ConfigIssue[]

  constructor(message: string, options: PgbusErrorOptions & { issues?: readonly ConfigIssue[] } = {}) {
    super(message, options)
    this.issues = options.issues ?? []
  }
}

/** A value cannot be stored as a message, or a stored message cannot be read. The text names the path. */
export class SerializationError extends PgbusError {
  override readonly code = 'PGBUS_ERR_SERIALIZATION'
}

export class QueueNotFoundError extends PgbusError {
  override readonly code = 'PGBUS_ERR_QUEUE_NOT_FOUND'
}

/** Tables or functions of pgbus are missing in the database. */
export class SchemaNotReadyError extends PgbusError {
  override readonly code = 'PGBUS_ERR_SCHEMA_NOT_READY'
}

export class MigrationError extends PgbusError {
  override readonly code = 'PGBUS_ERR_MIGRATION'
}

/** An enqueue stored another number of messages than it was given. Nothing was kept. */
export class EnqueueError extends PgbusError {
  override readonly code = 'PGBUS_ERR_ENQUEUE'
}

/** Reported, not thrown: an entry of the outbox could not be sent, and is tried again later. */
export class OutboxPublishError extends PgbusError {
  override readonly code = 'PGBUS_ERR_OUTBOX_PUBLISH'
}

/** A job with the same key has not ended yet. Nothing was stored. */
export class JobNotUniqueError extends PgbusError {
  override readonly code = 'PGBUS_ERR_JOB_NOT_UNIQUE'
  /** As stored. */
  readonly key: string | null
  /** The job that has the key: its logical queue and message; null: not known. */
  readonly queue: string | null
  readonly msgId: number | null
  /** The key was taken by a transaction that had not ended after 5 s. */
  readonly pending: boolean

  constructor(
    message: string,
    holder: {
      key?: string | undefined
      queue?: string | null | undefined
      msgId?: number | null | undefined
      pending?: boolean | undefined
    } = {},
  ) {
    super(message)
    this.key = holder.key ?? null
    this.queue = holder.queue ?? null
    this.msgId = holder.msgId ?? null
    this.pending = holder.pending ?? false
  }
}

/** An event was published as mandatory, but no queue wants it. */
export class UnroutableEventError extends PgbusError {
  override readonly code = 'PGBUS_ERR_UNROUTABLE_EVENT'
}

/** As many jobs with this key as its limit allows have not ended yet. Nothing was stored. */
export class ConcurrencyLimitExceededError extends PgbusError {
  override readonly code = 'PGBUS_ERR_CONCURRENCY_LIMIT_EXCEEDED'
  /** As stored. */
  readonly key: string | null
  readonly limit: number | null

  constructor(
    message: string,
    { key, limit }: { key?: string | undefined; limit?: number | undefined } = {},
  ) {
    super(message)
    this.key = key ?? null
    this.limit = limit ?? null
  }
}

/** A message names a job that this worker does not define. */
export class UnknownJobError extends PgbusError {
  override readonly code = 'PGBUS_ERR_UNKNOWN_JOB'
}

/** A handler ran longer than its timeout. */
export class JobTimeoutError extends PgbusError {
  override readonly code = 'PGBUS_ERR_JOB_TIMEOUT'
}

/** Somebody cancelled a running job. Its message is archived; whatever its handler still does counts for nothing. */
export class JobCancelledError extends PgbusError {
  override readonly code = 'PGBUS_ERR_JOB_CANCELLED'
}

/** The message of a running job belongs to somebody else now. */
export class LeaseLostError extends PgbusError {
  override readonly code = 'PGBUS_ERR_LEASE_LOST'
}

/** Abort reason of a job whose process is stopping. */
export class ShutdownError extends PgbusError {
  override readonly code = 'PGBUS_ERR_SHUTDOWN'
}

/** The instance, or a part of it, was used after it was closed. */
export class ClosedError extends PgbusError {
  override readonly code = 'PGBUS_ERR_CLOSED'
}

/** A statement ran longer than `readTimeout`. */
export class ReadTimeoutError extends PgbusError {
  override readonly code = 'PGBUS_ERR_READ_TIMEOUT'
}

/** No verdict on the health of the cluster came within `health.timeout`. */
export class HealthTimeoutError extends PgbusError {
  override readonly code = 'PGBUS_ERR_HEALTH_TIMEOUT'
}

/** The server is a standby where a primary is needed. */
export class ReplicaConnectionError extends PgbusError {
  override readonly code = 'PGBUS_ERR_REPLICA'
}

/** No pooled connection became free in time. */
export class PoolTimeoutError extends PgbusError {
  override readonly code = 'PGBUS_ERR_POOL_TIMEOUT'
}

/** The database was not reachable several times in a row, so it was not asked. */
export class ConnectionCircuitOpenError extends PgbusError {
  override readonly code = 'PGBUS_ERR_CONNECTION_CIRCUIT_OPEN'
  /** Milliseconds until it is asked again. */
  readonly retryInMs: number

  constructor(message: string, retryInMs: number) {
    super(message)
    this.retryInMs = retryInMs
  }
}

/** The embedded PostgreSQL could not be started. */
export class EmbeddedDatabaseError extends PgbusError {
  override readonly code = 'PGBUS_ERR_EMBEDDED_DATABASE'
}

export class PayloadTooLargeError extends PgbusError {
  override readonly code = 'PGBUS_ERR_PAYLOAD_TOO_LARGE'
}

/** A signed stream name is malformed, tampered with or expired. The text never says which. */
export class InvalidSignedNameError extends PgbusError {
  override readonly code = 'PGBUS_ERR_INVALID_SIGNED_NAME'
}

export class MissingSecretError extends PgbusError {
  override readonly code = 'PGBUS_ERR_MISSING_SECRET'
}

/** The streams hub cannot be reached, or its socket cannot be opened. */
export class HubUnavailableError extends PgbusError {
  override readonly code = 'PGBUS_ERR_HUB_UNAVAILABLE'
}

/** Bytes on the hub socket do not follow the protocol. */
export class HubProtocolError extends PgbusError {
  override readonly code = 'PGBUS_ERR_HUB_PROTOCOL'
}

/** A broadcast was to be rendered by a name that nobody registered. */
export class UnknownRendererError extends PgbusError {
  override readonly code = 'PGBUS_ERR_UNKNOWN_RENDERER'
}

/** A life-cycle change that the current state does not allow. */
export class InvalidTransitionError extends PgbusError {
  override readonly code = 'PGBUS_ERR_INVALID_TRANSITION'
}

/** A web application module cannot be served. */
export class AppModuleError extends PgbusError {
  override readonly code = 'PGBUS_ERR_APP_MODULE'
}

/** A host process could not start. The text is the one line a person needs. */
export class BootError extends PgbusError {
  override readonly code = 'PGBUS_ERR_BOOT'
}

/** Workers of the web cluster could not be replaced; those that served go on. */
export class RestartError extends PgbusError {
  override readonly code = 'PGBUS_ERR_RESTART'
}

/** A queue name is not allowed, or too long once prefix and suffix are added. */
export class InvalidQueueNameError extends TypeError {
  readonly code = 'PGBUS_ERR_INVALID_QUEUE_NAME'
  override readonly name = 'InvalidQueueNameError'
}

/** A stream name is empty, too long or holds U+0000. */
export class InvalidStreamNameError extends TypeError {
  readonly code = 'PGBUS_ERR_INVALID_STREAM_NAME'
  override readonly name = 'InvalidStreamNameError'
}

/** A cursor is not a message id. */
export class InvalidCursorError extends TypeError {
  readonly code = 'PGBUS_ERR_INVALID_CURSOR'
  override readonly name = 'InvalidCursorError'
}

/** The string form of `workers` does not follow its grammar. */
export class CapsuleParseError extends TypeError {
  readonly code = 'PGBUS_ERR_CAPSULE_PARSE'
  override readonly name = 'CapsuleParseError'
}
