import type { HubMessage } from '../../jobs/notify-hub.ts'
import { createMaintenance, type Maintenance, type MaintenanceRole } from '../../maintenance/maintenance.ts'
import type { ChildBeat } from '../messages.ts'
import type { Runner, RunnerContext } from './runner.ts'

/** Runs what only looks at the clock: the tasks that clean up, recurring tasks, the outbox. It reads no queue. */
export class MaintenanceRunner implements Runner {
  readonly #maintenance: Maintenance
  readonly #context: RunnerContext

  constructor(parts: readonly MaintenanceRole[], context: RunnerContext) {
    this.#context = context
    this.#maintenance = createMaintenance(context.pgbus, parts)
  }

  start(): Promise<void> {
    const { channels } = this.#maintenance
    if (channels.length > 0) this.#context.tell({ t: 'listen', tables: [], channels: [...channels] })
    return this.#maintenance.start()
  }

  /** A task may take hours; each of its statements is watched by nobody but the server. */
  beat(): ChildBeat {
    return { loop: null, oldest: null }
  }

  receive(message: HubMessage): void {
    this.#maintenance.receive(message)
  }

  stop(options: { immediate: boolean }): Promise<void> {
    return this.#maintenance.stop(options)
  }
}
