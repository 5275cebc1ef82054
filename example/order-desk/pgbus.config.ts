import { fileURLToPath } from 'node:url'
import { defineConfig } from 'pgbus'

/** Database, secret and port come from the environment (`PGBUS_DATABASE_URL`, `PGBUS_STREAMS_SECRET`, …). */
export default defineConfig({
  workers: [{ queues: ['orders'], concurrency: 5, processes: 2 }],
  imports: [fileURLToPath(new URL('./jobs.js', import.meta.url))],
  web: { app: fileURLToPath(new URL('./app.js', import.meta.url)), workers: 2 },
})
