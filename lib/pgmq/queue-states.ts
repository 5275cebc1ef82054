import type { Statement } from '../db/database.ts'

/**
 * Pauses in `pgbus_queue_states`, by logical queue. Claims read them. One without `resume_at` was made by a person
 * and lasts until a person ends it; one with it is the breaker's.
 */

const now = "(clock_timestamp() AT TIME ZONE 'UTC')"
const goOn = `UPDATE pgbus_queue_states SET paused = false, paused_reason = NULL, paused_at = NULL,
  circuit_breaker_trip_count = 0, circuit_breaker_resume_at = NULL, updated_at = ${now}`

/** Pauses until {@link resume}. */
export function pause(queue: string, reason: string | null): Statement {
  return {
    idempotent: true,
    text: `INSERT INTO pgbus_queue_states (queue_name, paused, paused_reason, paused_at, created_at, updated_at)
VALUES ($1, true, $2, ${now}, ${now}, ${now})
ON CONFLICT (queue_name) DO UPDATE SET paused = true, paused_reason = excluded.paused_reason,
  paused_at = excluded.paused_at, circuit_breaker_resume_at = NULL, updated_at = excluded.updated_at`,
    values: [queue, reason],
  }
}

/** Ends any pause and forgets how often the breaker had to pause. */
export function resume(queue: string): Statement {
  return { idempotent: true, text: `${goOn} WHERE queue_name = $1`, values: [queue] }
}

/** Ends a pause of the breaker whose time is over. */
export function endPause(queue: string): Statement {
  return {
    text: `${goOn} WHERE queue_name = $1 AND paused AND circuit_breaker_resume_at <= ${now}`,
    values: [queue],
  }
}

/**
 * Pauses for `baseMs`, twice as long each time, at most `maxMs`. Changes nothing while the queue is paused, by
 * whomever. Row `{ trips, ms }` if it did.
 */
export function pauseForAWhile(
  queue: string,
  reason: string,
  { baseMs, maxMs }: { baseMs: number; maxMs: number },
): Statement {
  const until = (trips: string) =>
    `${now} + least($4::float8, $3::float8 * 2 ^ least(${trips}, 30)) * interval '1 millisecond'`
  return {
    text: `INSERT INTO pgbus_queue_states AS s
  (queue_name, paused, paused_reason, paused_at, circuit_breaker_trip_count, circuit_breaker_resume_at, created_at, updated_at)
VALUES ($1, true, $2, ${now}, 1, ${until('0')}, ${now}, ${now})
ON CONFLICT (queue_name) DO UPDATE SET paused = true, paused_reason = excluded.paused_reason,
  paused_at = excluded.paused_at, circuit_breaker_trip_count = coalesce(s.circuit_breaker_trip_count, 0) + 1,
  circuit_breaker_resume_at = ${until('coalesce(s.circuit_breaker_trip_count, 0)')}, updated_at = excluded.updated_at
 WHERE NOT s.paused OR s.circuit_breaker_resume_at <= ${now}
RETURNING circuit_breaker_trip_count AS trips,
  round(extract(epoch FROM circuit_breaker_resume_at - paused_at) * 1000)::int AS ms`,
    values: [queue, reason, baseMs, maxMs],
  }
}

/** Rows `{ name }` of the queues that are paused now. */
export const pausedQueues: Statement = {
  idempotent: true,
  text: `SELECT queue_name AS name FROM pgbus_queue_states
 WHERE paused AND (circuit_breaker_resume_at IS NULL OR circuit_breaker_resume_at > ${now}) ORDER BY 1`,
  values: [],
}
