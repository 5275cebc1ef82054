import type { Delivery } from './claim.ts'
import type { RetryRule } from './define.ts'
import type { ProcessKind } from './heartbeat.ts'
import type { Lease } from './lease.ts'
import type { Outcome } from './outcome.ts'

/**
 * What a worker works on. It claims, leases, drains and reports the same way whatever its messages are; this says
 * where they lie and what they mean.
 */
export interface Work {
  /** Of the worker's row in `pgbus_processes`. */
  readonly kind: ProcessKind
  /** Tables of a queue, most urgent first. */
  tablesOf(queue: string): readonly string[]
  /** Whether a pattern of queue names may find this one. */
  isForPatterns(queue: string): boolean
  /** Makes sure that these queues exist. May be asked again. */
  prepare(queues: readonly string[]): Promise<void>
  /** Makes a task of a delivery. Never throws: what cannot be read is a task whose run fails. */
  read(delivery: Delivery): Task
}

/** One delivery, understood as far as possible. */
export interface Task {
  /** What it is called in log lines and errors. */
  readonly noun: 'job' | 'event'
  /** In reports of its failures. */
  readonly action: string
  /** Name of the job, routing key of the event; null: it cannot be read. */
  readonly name: string | null
  /** What identifies it in a log line; never its content. */
  readonly fields: Readonly<Record<string, unknown>>
  /** Executions until it is given up; undefined: as configured. */
  readonly maxAttempts: number | undefined
  /** Keep its lease renewed; undefined: as configured. */
  readonly renew: boolean | undefined
  /** Longest run, ms; null: none; undefined: as configured. */
  readonly timeout: number | null | undefined
  /** What follows a failure; asked after it. */
  readonly retry: RetryRule
  /** Where it goes when there is nothing more to do about it. */
  readonly done: Outcome
  /** Runs the code of the application. Whatever that throws is a failure of this attempt. */
  run(attempt: Attempt): Promise<TaskEnd>
}

/** What a running task may know and do about its delivery. */
export interface Attempt {
  readonly lease: Lease
  /** Executions until it is given up. */
  readonly limit: number
  /** The worker is draining. */
  readonly isStopping: () => boolean
  /** Keeps the message for at least `ms` from now. @throws LeaseLostError */
  extend(ms: number): Promise<void>
}

/** How a task ended that did not throw. */
export type TaskEnd =
  /** The end is in a transaction of the handler: there is nothing to write. */
  | 'recorded'
  /** It has left its queue for a while, unrun. */
  | 'parked'
  | {
      readonly outcome: Outcome
      /** Called once the outcome is in the database. */
      readonly written?: (() => void) | undefined
    }
