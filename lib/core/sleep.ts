/** Longest delay that one `setTimeout` can take; Node fires a longer one at once. */
export const maxTimerMs = 2 ** 31 - 1

/**
 * Waits `ms` milliseconds or until `signal` aborts, whichever comes first. Never rejects: callers re-read
 * their state after waking anyway.
 */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve()
  return new Promise(resolve => {
    const done = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, Math.min(ms, maxTimerMs))
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Resolves to the promise's value, or to `undefined` when `ms` pass first. The promise keeps running. */
export async function withDeadline<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined
  const deadline = new Promise<undefined>(resolve => {
    timer = setTimeout(() => resolve(undefined), Math.min(ms, maxTimerMs))
  })
  try {
    return await Promise.race([promise, deadline])
  } finally {
    clearTimeout(timer)
  }
}

/** Whether `promise` resolves within `ms`, and before `signal` aborts. */
export async function within(promise: Promise<void>, ms: number, signal?: AbortSignal): Promise<boolean> {
  const cancel = new AbortController()
  const timer = sleep(ms, signal ? AbortSignal.any([signal, cancel.signal]) : cancel.signal)
  const done = await Promise.race([promise.then(() => true), timer.then(() => false)])
  cancel.abort()
  return done
}
