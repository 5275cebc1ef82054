import type { ConnectionOptions as TlsOptions } from 'node:tls'
import type { Duration } from '../core/duration.ts'
import type { Logger, LogLevel } from '../core/log.ts'
import type { ErrorReporter } from '../core/report.ts'
import type { ConsumerEntry, ResolvedConsumerEntry } from './consumers.ts'
import type { RecurringTask, ResolvedRecurringTask } from './recurring-tasks.ts'
import type { Role } from './roles.ts'

/** One entry of `workers`: a set of queues and how many of their jobs run at once. One process each. */
export interface WorkerEntry {
  /** Name in logs and `pgbus_processes`. */
  name?: string | null | undefined
  /**
   * Logical queue names, most urgent first. `*` stands for every job queue, `mail_*` for those that begin so; both
   * come after the named ones, and find queues that are made later.
   */
  queues: readonly string[]
  /** Jobs in progress at once. Default 5. */
  concurrency?: number | undefined
  /** Identical child processes of this entry. Default 1. */
  processes?: number | undefined
  /**
   * `strict` (default): an earlier queue is emptied before a later one is touched; queues found by pattern take
   * turns. `fair`: all queues take turns, and none gets more than its share while others wait.
   */
  order?: 'strict' | 'fair' | undefined
  /** Messages claimed and not finished, at most; null: the concurrency. Default: `prefetchLimit`. */
  prefetchLimit?: number | null | undefined
  /** One job in progress per group, in order. Default: `groupMode`. */
  groupMode?: 'fifo' | 'roundRobin' | null | undefined
  /** Of all workers with this option only one works on a queue, the others stand by. Default false. */
  singleActiveConsumer?: boolean | undefined
  /** While a worker of a higher number shares a queue, this one looks later. Default 0. */
  consumerPriority?: number | undefined
}

export interface ResolvedWorkerEntry {
  readonly name: string | null
  readonly queues: readonly string[]
  readonly concurrency: number
  readonly processes: number
  readonly order: 'strict' | 'fair'
  readonly prefetchLimit: number | null
  readonly groupMode: 'fifo' | 'roundRobin' | null
  readonly singleActiveConsumer: boolean
  readonly consumerPriority: number
}

/** Where a connection goes: `databaseUrl` replaces everything, `host` and `port` replace those of the base. */
export interface ResolvedTarget {
  readonly databaseUrl: string | null
  readonly host: string | null
  readonly port: number | null
}

/** Pages of which other origins may follow streams. */
export interface Cors {
  origin: string | RegExp | readonly (string | RegExp)[] | ((origin: string) => boolean)
  /** Whether they may send cookies. Default false. */
  credentials?: boolean | undefined
}

/** Who stands behind a connection, told by what `authorize` answered; null: nobody in particular. */
export type PresenceMemberOf = (
  context: unknown,
) =>
  | { id: string | number; metadata?: Record<string, unknown> | undefined }
  | string
  | number
  | null
  | undefined

export type Password = string | (() => string | Promise<string>)

/** The configuration of one instance, complete: every key present, every duration in milliseconds, frozen. */
export interface ResolvedConfig {
  readonly databaseUrl: string | null
  readonly connection: {
    readonly host: string | null
    readonly port: number | null
    readonly database: string | null
    readonly user: string | null
    readonly password: Password | null
    readonly ssl: boolean | TlsOptions | null
    readonly variables: Readonly<Record<string, string | number | boolean>>
    readonly gucMode: 'options' | 'session'
    readonly applicationName: string
  }
  readonly pool: { readonly size: number | null; readonly timeout: number }
  readonly requirePrimary: boolean
  readonly readTimeout: number | null
  readonly databaseWait: number

  readonly queuePrefix: string
  readonly defaultQueue: string
  readonly priority: { readonly levels: number | null; readonly default: number }
  readonly visibilityTimeout: number
  readonly renewVisibility: boolean
  readonly maxRetries: number
  readonly retry: { readonly base: number; readonly max: number; readonly jitter: number }
  readonly jobTimeout: number | null
  readonly groupMode: 'fifo' | 'roundRobin' | null
  readonly zombieDetection: boolean
  readonly circuitBreaker: {
    readonly enabled: boolean
    readonly threshold: number
    readonly baseBackoff: number
    readonly maxBackoff: number
  }

  /** What `pgbus start` does; null: everything. */
  readonly roles: readonly Role[] | null
  readonly workers: readonly ResolvedWorkerEntry[]
  readonly consumers: readonly ResolvedConsumerEntry[]
  readonly idempotencyTtl: number | null
  readonly outbox: {
    readonly enabled: boolean
    readonly pollInterval: number
    readonly batchSize: number
    readonly retention: number | null
  }
  readonly imports: readonly string[]
  readonly pollingInterval: number
  readonly prefetchLimit: number | null
  readonly recycle: {
    readonly maxJobs: number | null
    readonly maxMemoryMb: number | null
    readonly maxLifetime: number | null
    readonly overlap: boolean
  }
  readonly stallThreshold: number | null
  readonly drainTimeout: number
  /** Already derived: `drainTimeout + 5 s` unless set. */
  readonly shutdownTimeout: number
  readonly notify: ResolvedTarget & { readonly enabled: boolean; readonly scope: 'supervisor' | 'fork' }

  readonly streams: ResolvedTarget & {
    readonly enabled: boolean
    readonly path: string | null
    /** The first signs, all verify. Empty: no secret. */
    readonly secret: readonly string[]
    readonly listenScope: 'master' | 'process'
    readonly pool: ResolvedTarget & { readonly size: number; readonly timeout: number }
    readonly applicationName: string
    readonly defaultMode: 'durable' | 'ephemeral'
    readonly durablePatterns: readonly (string | RegExp)[]
    readonly ephemeralPatterns: readonly (string | RegExp)[]
    readonly retention: {
      readonly default: number
      readonly perStream: readonly (readonly [pattern: string | RegExp, ms: number])[]
    }
    readonly heartbeatInterval: number
    readonly maxConnections: number
    readonly idleTimeout: number
    readonly maxAge: number | null
    readonly listenHealthCheck: number
    readonly ackTimeout: number
    readonly degradedPoll: number
    readonly writeDeadline: number
    readonly maxBufferedBytes: number
    readonly maxPayloadBytes: number
    readonly broadcastQueue: string | null
    readonly cors: false | Cors
    readonly testMode: boolean
    readonly presence: {
      readonly patterns: readonly (string | RegExp)[]
      readonly member: PresenceMemberOf | null
      readonly timeout: number
      readonly sweepInterval: number
      readonly broadcast: boolean
    }
  }

  readonly archiveRetention: number | null
  readonly dispatchInterval: number

  readonly recurring: {
    /** By key; null: the configuration says nothing about tasks. */
    readonly tasks: Readonly<Record<string, ResolvedRecurringTask>> | null
    readonly interval: number
    readonly executionRetention: number | null
  }

  readonly pgmq: { readonly schemaMode: 'auto' | 'extension' | 'embedded' }
  readonly migrations: { readonly onBoot: 'off' | 'check' | 'apply'; readonly lockTimeout: number }
  readonly web: {
    readonly app: string | null
    readonly host: string
    readonly port: number
    /** Replaces host and port when it is not empty. */
    readonly bind: readonly string[]
    readonly tls: {
      readonly key: string
      readonly cert: string
      readonly ca?: string
      readonly passphrase?: string
      readonly http2?: boolean
    } | null
    readonly workers: number
    readonly shutdownTimeout: number
    readonly bootTimeout: number
    readonly checkInterval: number
    readonly workerTimeout: number
    readonly recycle: {
      readonly maxMemoryMb: number | null
      readonly maxLifetime: number | null
      readonly maxRequests: number | null
    }
    readonly restart: { readonly surge: number | 'all' }
    readonly directory: string | null
    readonly hubSocket: string | null
  }

  readonly health: {
    readonly port: number | null
    readonly bind: string
    readonly timeout: number
    readonly cacheTtl: number
    /** Already derived: `stallThreshold`, or 90 s without one, unless set. */
    readonly unreadGrace: number
  }

  readonly log: {
    readonly logger: Logger | null
    readonly format: 'auto' | 'text' | 'json'
    readonly level: LogLevel
  }
  readonly errorReporters: readonly ErrorReporter[]
}

type DurationKey =
  | 'timeout'
  | 'readTimeout'
  | 'databaseWait'
  | 'visibilityTimeout'
  | 'base'
  | 'max'
  | 'jobTimeout'
  | 'pollingInterval'
  | 'baseBackoff'
  | 'maxBackoff'
  | 'maxLifetime'
  | 'stallThreshold'
  | 'drainTimeout'
  | 'shutdownTimeout'
  | 'heartbeatInterval'
  | 'idleTimeout'
  | 'maxAge'
  | 'listenHealthCheck'
  | 'ackTimeout'
  | 'degradedPoll'
  | 'writeDeadline'
  | 'lockTimeout'
  | 'sweepInterval'
  | 'bootTimeout'
  | 'archiveRetention'
  | 'dispatchInterval'
  | 'interval'
  | 'executionRetention'
  | 'cacheTtl'
  | 'idempotencyTtl'
  | 'pollInterval'
  | 'retention'

/** Keys that hold an object of somebody else: taken as a whole. */
type OpaqueKey = 'ssl' | 'variables' | 'password' | 'logger' | 'cors' | 'member'

type Input<T> = {
  [K in keyof T]?: K extends DurationKey
    ? Duration | Extract<T[K], null> | undefined
    : K extends OpaqueKey
      ? T[K] | undefined
      : T[K] extends readonly (infer E)[]
        ? readonly E[] | undefined
        : T[K] extends object
          ? Input<T[K]> | undefined
          : T[K] | undefined
}

/** What a user writes. Every key is optional; `undefined` means "use the default", `null` means "off" where allowed. */
export interface PgbusConfig
  extends Omit<
    Input<ResolvedConfig>,
    'recurring' | 'roles' | 'workers' | 'consumers' | 'streams' | 'web' | 'health' | 'shutdownTimeout'
  > {
  recurring?:
    | (Omit<Input<ResolvedConfig['recurring']>, 'tasks'> & {
        tasks?: Readonly<Record<string, RecurringTask>> | null | undefined
      })
    | undefined
  roles?: Role | readonly Role[] | null | undefined
  workers?: string | readonly WorkerEntry[] | null | undefined
  consumers?: readonly ConsumerEntry[] | null | undefined
  /** Longest time the supervisor waits for its children; default `drainTimeout + 5s`. */
  shutdownTimeout?: Duration | null | undefined
  streams?:
    | (Omit<Input<ResolvedConfig['streams']>, 'secret' | 'retention'> & {
        secret?: string | readonly string[] | null | undefined
        retention?:
          | {
              /** 0: for ever. */
              default?: Duration | undefined
              /** By name or pattern; the first that matches counts. */
              perStream?:
                | Readonly<Record<string, Duration>>
                | readonly (readonly [pattern: string | RegExp, retention: Duration])[]
                | undefined
            }
          | undefined
      })
    | undefined
  health?:
    | (Omit<Input<ResolvedConfig['health']>, 'unreadGrace'> & {
        /** Null: `stallThreshold`, or 90 s without one. 0: at once. */
        unreadGrace?: Duration | null | undefined
      })
    | undefined
  web?:
    | (Omit<Input<ResolvedConfig['web']>, 'workers'> & { workers?: number | 'auto' | undefined })
    | undefined
}
