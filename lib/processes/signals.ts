/** What a host does when it is told to stop. */
export interface StopHandlers {
  /** The first request: finish what runs, then end. */
  graceful(reason: string): void
  /** A second INT or TERM, or QUIT: end now. */
  immediate(reason: string): void
  /** USR2: replace what runs. Without it the signal is ignored. */
  recycle?(): void
  /** An error that nobody caught. The process is in an unknown state: it should end soon. */
  crashed(error: unknown): void
}

const graceful = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/**
 * `npx` and `npm start` pass a Ctrl-C on to a process that has received it from the terminal already. Within
 * this time a second INT is the same key press.
 */
const echoMs = 250

/**
 * Listens to everything that may tell this process to stop: signals, the end of the parent that forked it,
 * uncaught errors. Returns the function that stops listening.
 */
export function listenForStop(
  handlers: StopHandlers,
  now: () => number = () => performance.now(),
): () => void {
  let requested: { signal: string; at: number } | undefined
  const undo: (() => void)[] = []
  const on = (event: string, listener: (value: unknown) => void) => {
    process.on(event, listener)
    undo.push(() => process.removeListener(event, listener))
  }
  for (const signal of graceful) {
    on(signal, () => {
      if (requested === undefined) {
        requested = { signal, at: now() }
        handlers.graceful(signal)
        return
      }
      // A closing terminal says so more than once.
      if (signal === 'SIGHUP') return
      if (signal === 'SIGINT' && requested.signal === 'SIGINT' && now() - requested.at < echoMs) return
      handlers.immediate(signal)
    })
  }
  on('SIGQUIT', () => {
    requested ??= { signal: 'SIGQUIT', at: now() }
    handlers.immediate('SIGQUIT')
  })
  on('SIGUSR2', () => {
    if (requested === undefined) handlers.recycle?.()
  })
  if (process.connected) {
    // A parent that told us to stop may leave while we drain: that is no second request.
    on('disconnect', () => {
      if (requested !== undefined) return
      requested = { signal: 'disconnect', at: now() }
      handlers.graceful('the parent process is gone')
    })
  }
  on('uncaughtException', error => handlers.crashed(error))
  return () => {
    for (const remove of undo) remove()
  }
}
