/**
 * The program of a web worker. A terminal sends its signals to the whole group; what they mean is decided by
 * the primary, so they must not end this process, and SIGUSR1 must not open Node's inspector. Hence they are
 * caught before anything else is loaded.
 */
for (const signal of ['SIGINT', 'SIGHUP', 'SIGUSR1', 'SIGUSR2'] as const) process.on(signal, () => undefined)

const { runWorker } = await import('./worker.ts')
await runWorker(process.env)
