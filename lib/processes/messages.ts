import type { ResolvedConsumerEntry } from '../config/consumers.ts'
import type { ResolvedWorkerEntry } from '../config/options.ts'
import type { HeldToken } from '../jobs/held-tokens.ts'
import type { HubMessage } from '../jobs/notify-hub.ts'
import type { MaintenanceRole } from '../maintenance/maintenance.ts'

/** What a child is for: its role, and what that role needs to know. `supervisor/roles.ts` knows the rest. */
export type ChildSpec =
  | { readonly role: 'worker'; readonly entry: ResolvedWorkerEntry }
  | { readonly role: 'consumer'; readonly entry: ResolvedConsumerEntry }
  | { readonly role: 'maintenance'; readonly parts: readonly MaintenanceRole[] }

/** Everything a child needs to start. Functions of the configuration are re-read from `configFile`. */
export interface BootMessage {
  t: 'boot'
  slot: string
  spec: ChildSpec
  /** Structured-clonable part of the resolved configuration (`null` logger, no functions). */
  config: Record<string, unknown>
  configFile: string | null
}

/** Physical tables that a child reads; replaces the previous set. */
export interface ListenMessage {
  t: 'listen'
  tables: string[]
  /** It reads queues by pattern, so it wants to know of new ones. */
  wildcard?: boolean | undefined
  /** Channels of other things than queues that wake it. */
  channels?: string[] | undefined
}

export type SupervisorToChild = BootMessage | HubMessage

/** A sign of life, every second. */
export interface ChildBeat {
  /** Ms since the claim loop last went round; null: it has none. */
  readonly loop: number | null
  /** The job that runs longest. */
  readonly oldest: { readonly queue: string; readonly msgId: number; readonly ms: number } | null
}

export type ChildToSupervisor =
  /** The modules that define jobs are imported. */
  | { t: 'loaded' }
  /** The first look at the queues went through. */
  | { t: 'ready' }
  | ListenMessage
  /** Deliveries whose state changed since the last such message, each in one list. */
  | { t: 'held'; claimed: HeldToken[]; running: HeldToken[]; done: HeldToken[] }
  | ({ t: 'beat' } & ChildBeat)
  /** It has done enough: another process should do its work. */
  | { t: 'recycle'; reason: string }
  /** Why this child is about to end. */
  | { t: 'fatal'; message: string; stack: string | null }

/** A host process (`pgbus start`, `pgbus-web`) to whoever forked it. */
export interface HostReadyMessage {
  pgbus: 'host'
  t: 'ready'
  addresses: string[]
}

export interface StopWebWorkerMessage {
  pgbus: 'web'
  t: 'stop'
  reason: string
  deadlineMs: number
  /** Another worker serves already: connections may stay until they are used for the last time. */
  handover: boolean
}

export type PrimaryToWebWorker = StopWebWorkerMessage

/** What a web worker says about itself at each check-in. */
export interface WebWorkerStats {
  /** Bytes. */
  rss: number
  heapUsed: number
  external: number
  /** Share of time in which the event loop was busy since the last check-in, 0 to 1. */
  elu: number
  /** 99th percentile of the delay of the event loop since the last check-in, ms. */
  eventLoopP99: number
  /** Requests so far. */
  requests: number
  /** Requests that are not answered yet, event streams included. */
  inFlight: number
  /** Open client connections. */
  connections: number
  /** Open event streams. */
  sse: number
  /** Where wakes of streams come from; null: no page has asked for a stream yet. */
  source: 'hub' | 'local' | null
}

export type WebWorkerToPrimary =
  | { pgbus: 'web'; t: 'booting' }
  | { pgbus: 'web'; t: 'ready'; addresses: string[] }
  | { pgbus: 'web'; t: 'checkin'; stats: WebWorkerStats }
  | { pgbus: 'web'; t: 'draining'; connections: number }
  | { pgbus: 'web'; t: 'fatal'; message: string }
