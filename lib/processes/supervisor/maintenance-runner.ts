import { createMaintenance, type Maintenance, type MaintenanceRole } from '../../maintenance/maintenance.ts'
import type { ChildBeat } from '../messages.ts'
import type { Runner, RunnerContext } from './runner.ts'

/** Runs what only looks at the clock: the tasks that clean up. It reads no queue. */
export class MaintenanceRunner implements Runner {
  readonly #maintenance: Maintenance

  constructor(parts: readonly MaintenanceRole[], { pgbus }: RunnerContext) {
    this.#maintenance = createMaintenance(pgbus, parts)
  }

  start(): Promise<void> {
    return this.#maintenance.start()
  }

  /** A task may take hours; each of its statements is watched by nobody but the server. */
  beat(): ChildBeat {
    return { loop: null, oldest: null }
  }

  stop(options: { immediate: boolean }): Promise<void> {
    return this.#maintenance.stop(options)
  }
}
