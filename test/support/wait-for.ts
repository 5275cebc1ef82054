/** Polls until `check` gives something truthy, and returns it. A throw counts as "not yet". */
export async function waitFor<T>(
  check: () => T | Promise<T>,
  options: { timeout?: number; interval?: number; message?: string } = {},
): Promise<NonNullable<T>> {
  const { timeout = 30_000, interval = 20, message = 'condition' } = options
  const until = Date.now() + timeout
  let last: unknown
  for (;;) {
    try {
      last = await check()
      if (last) return last as NonNullable<T>
    } catch (error) {
      last = error
    }
    if (Date.now() > until) throw new Error(`waited ${timeout} ms for ${message}; last: ${String(last)}`)
    await new Promise(resolve => setTimeout(resolve, interval))
  }
}
