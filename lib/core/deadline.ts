/**
 * Calls `fn` after `ms`, but first lets what already arrived on sockets be handled: a process that was too
 * busy to read an answer must not take it for missing. Returns the function that cancels.
 */
export function deadline(ms: number, fn: () => void): () => void {
  let immediate: NodeJS.Immediate | undefined
  const timer = setTimeout(() => {
    // Timers come before sockets in a turn of the event loop, immediates after them.
    immediate = setImmediate(fn)
  }, ms)
  return () => {
    clearTimeout(timer)
    clearImmediate(immediate)
  }
}
