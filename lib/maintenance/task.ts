import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import { isConnectionError, type Transaction } from '../db/database.ts'

/** `more`: stopped before the end; the rest does not wait for the next regular run. */
export type TaskOutcome = 'done' | 'more'

/** Work that is done every now and then, by whichever process comes first. */
export interface MaintenanceTask {
  /** In logs and reports. */
  readonly name: string
  /** Second half of its advisory lock; one number per task, for ever. */
  readonly lock: number
  /** Time between two runs, ms. */
  readonly every: number
  /** An error is reported, and the task repeated later. */
  run(context: TaskContext): Promise<TaskOutcome>
}

/** What a running task has: a connection that is its own, without a statement timeout. */
export interface TaskContext {
  readonly config: ResolvedConfig
  readonly log: Logger
  /** Aborts when the process wants to end. Looked at between steps. */
  readonly signal: AbortSignal
  readonly query: Transaction['query']
  /** Runs `fn` in a transaction that holds the task's lock. Undefined: another process holds it. */
  locked<T>(fn: () => Promise<T>): Promise<T | undefined>
}

/** Something to be deleted from, a chunk at a time. */
export interface Source {
  readonly name: string
  /** Deletes up to `limit` rows and returns how many. */
  removeChunk(limit: number): Promise<number>
}

/** Rows of one statement: short enough to be in nobody's way. */
export const chunkSize = 1_000

/** Longest time of one run. */
const runMs = 30_000

/**
 * Deletes from all sources in turn, one chunk each, until nothing is left or time is up. A source that fails is
 * left out; only when all fail does the task fail.
 */
export async function removeInChunks(
  context: TaskContext,
  sources: readonly Source[],
  limits: { rows: number; ms: number } = { rows: chunkSize, ms: runMs },
): Promise<TaskOutcome> {
  const until = performance.now() + limits.ms
  const failures: unknown[] = []
  let total = 0
  let open = sources
  while (open.length > 0) {
    const unfinished: Source[] = []
    for (const source of open) {
      if (context.signal.aborted) return 'more'
      if (performance.now() >= until) return 'more'
      try {
        const removed = await context.locked(() => source.removeChunk(limits.rows))
        // Another process is at it.
        if (removed === undefined) return 'done'
        total += removed
        if (removed >= limits.rows) unfinished.push(source)
      } catch (error) {
        if (isConnectionError(error) || context.signal.aborted) throw error
        failures.push(error)
        context.log.warn({ err: error, source: source.name }, `nothing was deleted from ${source.name}`)
      }
    }
    open = unfinished
  }
  if (failures.length > 0 && failures.length === sources.length) throw failures[0]
  if (total > 0) context.log.debug({ rows: total }, `deleted ${total} rows`)
  return 'done'
}
