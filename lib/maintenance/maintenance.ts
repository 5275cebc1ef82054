import type { ResolvedConfig } from '../config/options.ts'
import { withDeadline } from '../core/sleep.ts'
import { Heartbeat } from '../jobs/heartbeat.ts'
import type { HubMessage } from '../jobs/notify-hub.ts'
import { outboxChannel } from '../outbox/outbox.ts'
import { Poller } from '../outbox/poller.ts'
import type { Pgbus } from '../pgbus.ts'
import { Scheduler } from '../recurring/scheduler.ts'
import { oldArchives } from './archives.ts'
import { overduePauses } from './breakers.ts'
import { Dispatcher, type DispatcherOptions } from './dispatcher.ts'
import { oldFailures } from './failed-events.ts'
import { limits } from './limits.ts'
import { oldOutboxEntries } from './outbox-entries.ts'
import { oldProcessedEvents } from './processed-events.ts'
import { deadProcesses } from './processes.ts'
import { oldExecutions } from './recurring-executions.ts'
import { oldStreamMessages } from './stream-messages.ts'
import { tables } from './tables.ts'
import type { MaintenanceTask } from './task.ts'
import { orphanedLocks } from './uniqueness-locks.ts'

/** What the maintenance process does. */
export type MaintenanceRole = 'dispatcher' | 'scheduler' | 'outbox'

export interface Maintenance {
  /** Channels whose notifications it wants, see {@link Maintenance.receive}. */
  readonly channels: readonly string[]
  /** The hub tells something. */
  receive(message: HubMessage): void
  /** Resolves when its row is written, or could not be. */
  start(): Promise<void>
  /**
   * Starts nothing more and resolves when everything has ended. A long statement is cancelled after
   * `drainTimeout`, or at once with `immediate`. Never rejects. Calling it again with `immediate` makes it quicker.
   */
  stop(options?: { immediate?: boolean | undefined }): Promise<void>
}

/** The tasks of a configuration. A feature with something to clean up adds its task here. */
export function maintenanceTasks(config: ResolvedConfig): MaintenanceTask[] {
  const { archiveRetention, idempotencyTtl, outbox, recurring, streams } = config
  return [
    deadProcesses,
    overduePauses,
    orphanedLocks,
    limits,
    archiveRetention === null ? null : oldArchives(archiveRetention),
    archiveRetention === null ? null : oldFailures(archiveRetention),
    oldStreamMessages(streams.retention),
    recurring.executionRetention === null ? null : oldExecutions(recurring.executionRetention),
    idempotencyTtl === null ? null : oldProcessedEvents(idempotencyTtl),
    outbox.retention === null ? null : oldOutboxEntries(outbox.retention),
    tables(),
  ].filter(task => task !== null)
}

/** Makes, but does not start, what the maintenance process of a host runs. */
export function createMaintenance(
  pgbus: Pgbus,
  roles: readonly MaintenanceRole[],
  overrides: Partial<Pick<DispatcherOptions, 'tasks' | 'firstRun' | 'retryDelay'>> = {},
): Maintenance {
  const parts = roles.map(role => makePart(role, pgbus, overrides))
  return {
    channels: parts.flatMap(part => part.channels ?? []),
    receive: message => {
      for (const part of parts) part.receive?.(message)
    },
    start: async () => void (await Promise.all(parts.map(part => part.start()))),
    stop: async options => void (await Promise.all(parts.map(part => part.stop(options)))),
  }
}

type Part = Pick<Maintenance, 'start' | 'stop'> & Partial<Maintenance>

function makePart(role: MaintenanceRole, pgbus: Pgbus, overrides: Partial<DispatcherOptions>): Part {
  switch (role) {
    case 'dispatcher':
      return new DispatcherPart(pgbus, overrides)
    case 'scheduler':
      return new SchedulerPart(pgbus)
    case 'outbox':
      return new OutboxPart(pgbus)
  }
}

/** A cancelled statement ends within this time, or its connection is cut. */
const cancelMs = 2_000

class DispatcherPart implements Part {
  readonly #pgbus: Pgbus
  readonly #dispatcher: Dispatcher
  readonly #heartbeat: Heartbeat
  #stopped: Promise<void> | undefined

  constructor(pgbus: Pgbus, overrides: Partial<DispatcherOptions>) {
    const { config, connector, report } = pgbus
    const log = pgbus.log.child({ component: 'dispatcher' })
    this.#pgbus = pgbus
    this.#dispatcher = new Dispatcher({
      tasks: maintenanceTasks(config),
      config,
      log,
      report,
      connect: () =>
        connector.connect({
          // VACUUM and session locks need a connection that no pooler shares out.
          target: 'notify',
          applicationName: 'pgbus-admin',
          statementTimeout: 0,
          mustBePrimary: true,
        }),
      ...overrides,
    })
    this.#heartbeat = new Heartbeat({ db: pgbus.db, log, loopAge: () => this.#dispatcher.loopAge })
  }

  async start(): Promise<void> {
    this.#dispatcher.start()
    await this.#heartbeat.start('dispatcher', {})
  }

  async stop({ immediate = false }: { immediate?: boolean | undefined } = {}): Promise<void> {
    const ended = this.#dispatcher.stop()
    if (!immediate) await withDeadline(ended, this.#pgbus.config.drainTimeout)
    await this.#cancel()
    await withDeadline(ended, cancelMs)
    await this.#dispatcher.abandon()
    await ended
    this.#stopped ??= this.#heartbeat.stop()
    await this.#stopped
  }

  /** A server goes on with a VACUUM whose client has left. */
  async #cancel(): Promise<void> {
    const { backend } = this.#dispatcher
    if (backend === undefined) return
    await this.#pgbus.db.query('SELECT pg_cancel_backend($1)', [backend]).catch(() => undefined)
  }
}

class SchedulerPart implements Part {
  readonly #scheduler: Scheduler
  readonly #heartbeat: Heartbeat
  #stopped: Promise<void> | undefined

  constructor(pgbus: Pgbus) {
    const { config, db, recurring, report } = pgbus
    const log = pgbus.log.child({ component: 'scheduler' })
    this.#scheduler = new Scheduler({ recurring, interval: config.recurring.interval, log, report })
    this.#heartbeat = new Heartbeat({ db, log, loopAge: () => this.#scheduler.loopAge })
  }

  async start(): Promise<void> {
    this.#scheduler.start()
    await this.#heartbeat.start('scheduler', () => ({ tasks: this.#scheduler.taskCount }))
  }

  /** What it does takes one transaction, which the read timeout limits. */
  async stop(): Promise<void> {
    await this.#scheduler.stop()
    this.#stopped ??= this.#heartbeat.stop()
    await this.#stopped
  }
}

class OutboxPart implements Part {
  readonly channels = [outboxChannel]
  readonly #poller: Poller
  readonly #heartbeat: Heartbeat
  #stopped: Promise<void> | undefined

  constructor(pgbus: Pgbus) {
    const { config, db, outbox, report } = pgbus
    const { pollInterval, batchSize } = config.outbox
    const log = pgbus.log.child({ component: 'outbox' })
    this.#poller = new Poller({ outbox, interval: pollInterval, batchSize, log, report })
    this.#heartbeat = new Heartbeat({ db, log, loopAge: () => this.#poller.loopAge })
  }

  async start(): Promise<void> {
    this.#poller.start()
    await this.#heartbeat.start('outbox_poller', () => ({ published: this.#poller.published }))
  }

  receive(message: HubMessage): void {
    if (message.t === 'wake') this.#poller.wake()
    if (message.t === 'healthy' || message.t === 'degraded')
      this.#poller.setDelivering(message.t === 'healthy')
  }

  /** What it does takes one transaction, which the read timeout limits. */
  async stop(): Promise<void> {
    await this.#poller.stop()
    this.#stopped ??= this.#heartbeat.stop()
    await this.#stopped
  }
}
