import type pg from 'pg'
import { sleep } from '../core/sleep.ts'

/** Keys of PostgreSQL advisory locks. The two-part keys of queues and streams live in the SQL that takes them. */

/** Installing and upgrading: `pgmqinst` in ASCII, shared with the other clients that install PGMQ. */
export const migrationLock = '8099562788716704628'

/** First part of the lock of a queue that one worker reads alone: `Pgbu` in ASCII, shared with other clients. */
export const exclusiveQueueLock = 1_348_952_693
/** First half of the keys of maintenance tasks; the second half is the task's own number. */
export const maintenanceLocks = 1_885_823_602
/** Held while tasks of the configuration are written into the table of recurring tasks. */
export const recurringSyncLock: [number, number] = [maintenanceLocks, 1]

const pollMs = 20

/**
 * Takes a session lock, trying again until `timeout` ms have passed; false when it was not free. Waiting inside
 * the server would hold a snapshot, and the holder's CREATE INDEX CONCURRENTLY waits for every snapshot: both
 * would wait for each other.
 */
export function takeSessionLock(client: pg.ClientBase, key: string, timeout: number): Promise<boolean> {
  return until(timeout, () => succeeds(client, 'SELECT pg_try_advisory_lock($1::bigint) AS taken', key))
}

export async function releaseSessionLock(client: pg.ClientBase, key: string): Promise<void> {
  await client.query('SELECT pg_advisory_unlock($1::bigint)', [key])
}

/**
 * Begins a transaction that holds the lock until it ends, so it works through a transaction pooler too. False
 * when the lock was not free within `timeout` ms: then no transaction is open.
 */
export function beginLocked(client: pg.ClientBase, key: string, timeout: number): Promise<boolean> {
  return until(timeout, async () => {
    await client.query('BEGIN')
    if (await succeeds(client, 'SELECT pg_try_advisory_xact_lock($1::bigint) AS taken', key)) return true
    await client.query('ROLLBACK')
    return false
  })
}

async function succeeds(client: pg.ClientBase, text: string, key: string): Promise<boolean> {
  const { rows } = await client.query<{ taken: boolean }>(text, [key])
  return rows[0]?.taken === true
}

async function until(timeout: number, attempt: () => Promise<boolean>): Promise<boolean> {
  const deadline = performance.now() + timeout
  for (;;) {
    if (await attempt()) return true
    if (performance.now() >= deadline) return false
    await sleep(pollMs * (0.5 + Math.random()))
  }
}
