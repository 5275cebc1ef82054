import type { HubMessage } from '../../jobs/notify-hub.ts'
import type { Pgbus } from '../../pgbus.ts'
import type { ChildBeat, ChildToSupervisor } from '../messages.ts'

/** What a runner needs of the child around it. */
export interface RunnerContext {
  readonly pgbus: Pgbus
  /** Sends a message to the supervisor; `sent` is called when it has left this process, or never will. */
  readonly tell: (message: ChildToSupervisor, sent?: () => void) => void
  /** Notifications arrive, as far as is known. */
  readonly delivering: boolean
}

/**
 * The work of one child. The child owns the process: signals, the channel, the database, the end. The runner
 * owns what runs in it.
 */
export interface Runner {
  /** Resolves when the first look at the work went through: the child is ready. */
  start(): Promise<void>
  /** Ends it. Called again with `immediate` to end sooner. */
  stop(options: { immediate: boolean }): Promise<void>
  /** How it is, asked every second. */
  beat(): ChildBeat
  /** The hub tells something. Only of runners that read queues. */
  receive?(message: HubMessage): void
}
