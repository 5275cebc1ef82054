/**
 * The program of a job child. A terminal sends its signals to the whole group; what they mean is decided by the
 * supervisor, so they must not end this process. Hence they are caught before anything else is loaded.
 */
for (const signal of ['SIGINT', 'SIGHUP', 'SIGUSR2'] as const) process.on(signal, () => undefined)

const { runChild } = await import('./child.ts')
runChild()

export {}
