/** Compiled, never run: each line marked as an error must be one. */
import { defineConfig } from '../../lib/config/define.ts'
import type { PgbusConfig, ResolvedConfig } from '../../lib/config/options.ts'

declare const resolved: ResolvedConfig

defineConfig({})
defineConfig({ visibilityTimeout: '30s', pollingInterval: 50, readTimeout: null, shutdownTimeout: null })
defineConfig({ workers: 'critical: 5; default' })
defineConfig({ workers: [{ queues: ['mail'], concurrency: 2, processes: 3, name: null }] })
defineConfig({ workers: null, databaseUrl: undefined, connection: { password: async () => 'secret' } })
defineConfig({ connection: { ssl: { rejectUnauthorized: false }, variables: { 'app.tenant': 1 } } })
defineConfig({ streams: { secret: ['new', 'old'], durablePatterns: [/^order/, 'news'], maxAge: '12h' } })
defineConfig({ web: { workers: 'auto' }, errorReporters: [(error, context) => void [error, context.action]] })
defineConfig({ retry: { base: '1s', max: 60_000, jitter: 0 }, pool: { size: null, timeout: '5s' } })

// @ts-expect-error a key that does not exist
defineConfig({ maxRetrys: 3 })
// @ts-expect-error a key that does not exist in its group
defineConfig({ pool: { max: 3 } })
// @ts-expect-error not a boolean
defineConfig({ requirePrimary: 'yes' })
// @ts-expect-error cannot be switched off
defineConfig({ visibilityTimeout: null })
// @ts-expect-error not one of the modes
defineConfig({ streams: { defaultMode: 'both' } })
// @ts-expect-error an entry without queues
defineConfig({ workers: [{ concurrency: 3 }] })
// @ts-expect-error an entry with a key that does not exist
defineConfig({ workers: [{ queues: ['a'], threads: 3 }] })
// @ts-expect-error not a number of workers
defineConfig({ web: { workers: 'many' } })

// @ts-expect-error the result is read-only
resolved.maxRetries = 1
// @ts-expect-error at every depth
resolved.streams.pool.size = 1
// @ts-expect-error lists too
resolved.workers.push({ name: null, queues: [], concurrency: 1, processes: 1 })

export const milliseconds: number = resolved.visibilityTimeout
export const derived: number = resolved.shutdownTimeout
export const secrets: readonly string[] = resolved.streams.secret
export const again: PgbusConfig = resolved
