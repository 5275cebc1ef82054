import type { WorkerEntry } from '../config/options.ts'
import { deferred } from '../core/deferred.ts'
import type { Worker, WorkerOptions } from './worker.ts'

export interface RunUntilEmptyOptions extends Omit<WorkerEntry, 'processes'> {
  /** Most messages to claim, at least 1. Default: no limit. */
  limit?: number | undefined
  /** Ends it early. */
  signal?: AbortSignal | undefined
}

export interface RunResult {
  /** Done: they returned, or were discarded by their own code. */
  succeeded: number
  /** Attempts that failed. */
  failed: number
  /** Of these, jobs that were given up. */
  dead: number
}

type Create = (entry: WorkerEntry, hooks: Pick<WorkerOptions, 'limit' | 'onIdle'>) => Worker

/** See {@link Pgbus.runUntilEmpty}. */
export async function runUntilEmpty(
  create: Create,
  { limit, signal, ...entry }: RunUntilEmptyOptions,
): Promise<RunResult> {
  if (limit !== undefined && (!Number.isSafeInteger(limit) || limit < 1))
    throw new TypeError(`runUntilEmpty: limit must be an integer from 1, got ${String(limit)}`)
  signal?.throwIfAborted()
  const ended = deferred()
  const worker = create(entry, { limit, onIdle: ended.resolve })
  const end = () => ended.resolve()
  signal?.addEventListener('abort', end)
  try {
    await worker.start()
    await ended.promise
  } finally {
    signal?.removeEventListener('abort', end)
    await worker.stop()
  }
  signal?.throwIfAborted()
  const { succeeded, failed, buried } = worker.stats()
  return { succeeded, failed, dead: buried }
}
