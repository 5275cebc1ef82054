import type { ResolvedWorkerEntry } from '../config/options.ts'
import type { HeldToken } from '../jobs/claim.ts'

/** Everything a job child needs to start. Functions of the configuration are re-read from `configFile`. */
export interface BootMessage {
  t: 'boot'
  slot: string
  entry: ResolvedWorkerEntry
  /** Structured-clonable part of the resolved configuration (`null` logger, no functions). */
  config: Record<string, unknown>
  configFile: string | null
}

export type SupervisorToChild =
  | BootMessage
  /** A message was inserted into a table that the child reads. */
  | { t: 'wake' }
  /** Notifications are delivered: idle waits may be long. */
  | { t: 'healthy' }
  /** Notifications are not delivered: poll fast. */
  | { t: 'degraded' }

export type ChildToSupervisor =
  /** The modules that define jobs are imported. */
  | { t: 'loaded' }
  /** The first look at the queues went through. */
  | { t: 'ready' }
  /** Physical tables this child reads; replaces the previous set. */
  | { t: 'listen'; tables: string[] }
  /**
   * Deliveries taken and finished since the last such message. `done` counts first: a delivery that was given
   * back and claimed again has the same token.
   */
  | { t: 'held'; taken: HeldToken[]; done: HeldToken[] }
  /** Why this child is about to end. */
  | { t: 'fatal'; message: string; stack: string | null }

/** A host process (`pgbus start`, `pgbus-web`) to whoever forked it. */
export interface HostReadyMessage {
  pgbus: 'host'
  t: 'ready'
  addresses: string[]
}

export type PrimaryToWebWorker = { pgbus: 'web'; t: 'stop'; reason: string; deadlineMs: number }

export type WebWorkerToPrimary =
  | { pgbus: 'web'; t: 'booting' }
  | { pgbus: 'web'; t: 'ready'; addresses: string[] }
  | { pgbus: 'web'; t: 'draining'; connections: number }
  | { pgbus: 'web'; t: 'fatal'; message: string }
