/** Configuration of the pgbus under comparison; only what names the work is set. */
import { defineConfig } from '../../../lib/config/define.ts'
import { queueName } from './peer.ts'

export default defineConfig({
  databaseUrl: process.env.BENCH_DATABASE_URL ?? '',
  workers: [{ queues: [queueName], concurrency: Number(process.env.BENCH_CONCURRENCY) }],
  imports: ['./pgbus-jobs.js'],
  log: { level: 'error' },
})
