/** A worker process that writes down each start and end of its jobs over a connection of its own. */
import { setTimeout as wait } from 'node:timers/promises'
import pg from 'pg'
import { defineJob } from '../../lib/jobs/define.ts'
import { createPgbus } from '../../lib/pgbus.ts'

const [url, ms] = process.argv.slice(2) as [string, string]
const ledger = new pg.Pool({ connectionString: url, max: 20 })

defineJob<number>({ name: 'ledger' }, async (id, { job }) => {
  await ledger.query('INSERT INTO ledger (job, attempt, event) VALUES ($1, $2, $3)', [
    id,
    job.attempt,
    'start',
  ])
  await wait(Number(ms))
  await ledger.query('INSERT INTO ledger (job, attempt, event) VALUES ($1, $2, $3)', [id, job.attempt, 'end'])
})

const pgbus = createPgbus({
  databaseUrl: url,
  visibilityTimeout: '5s',
  pollingInterval: '50ms',
  log: { level: 'silent' },
})
const worker = pgbus.createWorker({ name: null, queues: ['default'], concurrency: 20, processes: 1 })
process.once('SIGTERM', async () => {
  await worker.stop()
  await pgbus.close()
  await ledger.end()
})
await worker.start()
await worker.onFirstPass
console.log('working')
