import type { RestartKind } from './restarts.ts'

/** What runs until it is told to stop: a cluster, or the application in this process. */
export interface Runner {
  /** Resolves to the addresses once everything serves. */
  start(): Promise<readonly string[]>
  /** Lets everything finish, then ends it. */
  stop(reason: string): Promise<void>
  /** Ends everything now. */
  kill(): Promise<void>
  /** Replaces what serves; missing where nothing could serve meanwhile. */
  restart?(kind: RestartKind): void
}
