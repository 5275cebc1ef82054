import type pg from 'pg'
import type { ResolvedConfig } from '../config/options.ts'
import { Backoff } from '../core/backoff.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep } from '../core/sleep.ts'
import { maintenanceLocks } from '../db/advisory-locks.ts'
import { destroyClient } from '../db/connector.ts'
import { isConnectionError, type Result } from '../db/database.ts'
import type { MaintenanceTask, TaskContext } from './task.ts'

export interface DispatcherOptions {
  tasks: readonly MaintenanceTask[]
  config: ResolvedConfig
  log: Logger
  report: Report
  /** Opens a connection without a statement timeout. */
  connect: () => Promise<pg.Client>
  /** Delay of a task's first run, ms. Default: 30 to 90 s, so that processes that live for minutes clean up too. */
  firstRun?: (() => number) | undefined
  /** First pause after a failure, ms; doubles to 10 minutes or the task's interval. Default 30 s. */
  retryDelay?: number | undefined
}

interface Entry {
  readonly task: MaintenanceTask
  readonly backoff: Backoff
  dueAt: number
}

const firstRetryMs = 30_000
const lastRetryMs = 600_000
/** The rest of a task that stopped before the end. */
const restDelayMs = 60_000

/**
 * Runs each task at its own interval, one after the other, on a connection that is open only meanwhile. A task
 * that fails waits longer and longer and holds up no other. While the database cannot be reached, nothing is
 * tried and one report tells of it.
 */
export class Dispatcher {
  readonly #options: DispatcherOptions
  readonly #entries: readonly Entry[]
  readonly #stopping = new AbortController()
  /** Failures to connect, in a row. */
  readonly #outage: Backoff
  #connectAt = 0
  #client: pg.Client | undefined
  #lastTick = performance.now()
  #running: Promise<void> | undefined

  constructor(options: DispatcherOptions) {
    const { firstRun = () => 30_000 + Math.random() * 60_000, retryDelay = firstRetryMs } = options
    this.#options = options
    this.#outage = new Backoff({ base: retryDelay, max: lastRetryMs })
    this.#entries = options.tasks.map(task => ({
      task,
      backoff: new Backoff({ base: retryDelay, max: Math.min(lastRetryMs, task.every) }),
      dueAt: performance.now() + firstRun(),
    }))
  }

  /** Ms since the loop last went round, or a statement of it ended. */
  get loopAge(): number {
    return performance.now() - this.#lastTick
  }

  /** Server process of the task that is running. */
  get backend(): number | undefined {
    return (this.#client as { processID?: number } | undefined)?.processID
  }

  start(): void {
    this.#running ??= this.#run()
  }

  /** Gives up the running step, whatever the server does. */
  async abandon(): Promise<void> {
    if (this.#client) await destroyClient(this.#client)
  }

  /** Starts nothing more; resolves when the running step has ended. Never rejects. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#running
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      this.#lastTick = performance.now()
      try {
        await this.#lookAround()
      } catch (error) {
        this.#options.report(error, { action: 'dispatcher_maintenance' })
      }
      await sleep(this.#options.config.dispatchInterval, signal)
    }
  }

  async #lookAround(): Promise<void> {
    const now = performance.now()
    const due = this.#entries.filter(({ dueAt }) => dueAt <= now)
    if (due.length === 0 || now < this.#connectAt) return
    const client = await this.#connect()
    if (!client) return
    this.#client = client
    try {
      for (const entry of due) {
        if (this.#stopping.signal.aborted) return
        // After a connection that broke, what is due is done on the next one.
        if (!(await this.#runTask(entry, client))) return
      }
    } finally {
      this.#client = undefined
      await destroyClient(client)
    }
  }

  async #connect(): Promise<pg.Client | undefined> {
    const { connect, log, report } = this.#options
    try {
      const client = await connect()
      if (this.#outage.attempt > 0) log.info('the database is reachable again; maintenance goes on')
      this.#outage.reset()
      return client
    } catch (error) {
      if (this.#outage.attempt === 0) report(error, { action: 'dispatcher_maintenance' })
      else log.debug({ err: error }, 'maintenance still has no database')
      this.#connectAt = performance.now() + this.#outage.next()
      return undefined
    }
  }

  /** False: the connection is gone. */
  async #runTask(entry: Entry, client: pg.Client): Promise<boolean> {
    const { task, backoff } = entry
    const { log, report } = this.#options
    try {
      const outcome = await task.run(this.#context(task, client))
      if (backoff.attempt > 0) log.info({ task: task.name }, `maintenance task ${task.name} works again`)
      backoff.reset()
      entry.dueAt = performance.now() + (outcome === 'done' ? task.every : Math.min(task.every, restDelayMs))
      return true
    } catch (error) {
      // Cut short because the process ends: nothing is wrong.
      if (this.#stopping.signal.aborted) return false
      const lost = isConnectionError(error)
      const fields = { err: error, task: task.name }
      if (lost) log.info(fields, `the connection was lost during ${task.name}; it is repeated`)
      else if (backoff.attempt === 0) report(error, { action: 'dispatcher_maintenance', task: task.name })
      else log.debug(fields, `maintenance task ${task.name} failed again`)
      entry.dueAt = performance.now() + backoff.next()
      return !lost
    }
  }

  #context(task: MaintenanceTask, client: pg.Client): TaskContext {
    const { config, log } = this.#options
    const query = async <R>(text: string, values?: unknown[]): Promise<Result<R>> => {
      const { rows, rowCount } = await client.query(text, values)
      this.#lastTick = performance.now()
      return { rows: rows as R[], rowCount: rowCount ?? 0 }
    }
    return {
      config,
      log: log.child({ task: task.name }),
      signal: this.#stopping.signal,
      query,
      locked: async fn => {
        await client.query('BEGIN')
        try {
          const { rows } = await query<{ taken: boolean }>(
            'SELECT pg_try_advisory_xact_lock($1, $2) AS taken',
            [maintenanceLocks, task.lock],
          )
          const result = rows[0]?.taken === true ? await fn() : undefined
          await client.query('COMMIT')
          return result
        } catch (error) {
          await client.query('ROLLBACK').catch(() => undefined)
          throw error
        }
      },
    }
  }
}
