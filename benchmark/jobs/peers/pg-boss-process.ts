import PgBoss from 'pg-boss'
import { handled, waitForStart } from '../report.ts'
import { type Payload, queueName } from './peer.ts'

const batchSize = 500
/** Two loops: one fetches while the other completes. */
const loops = 2

const boss = new PgBoss({
  connectionString: process.env.BENCH_DATABASE_URL ?? '',
  max: Number(process.env.BENCH_CONCURRENCY),
  schedule: false,
})
boss.on('error', error => console.error(error))
await boss.start()
await waitForStart()
for (let n = 0; n < loops; n += 1) {
  const id = await boss.work<Payload>(queueName, { batchSize, pollingIntervalSeconds: 0.5 }, async jobs => {
    for (const job of jobs) handled(job.data)
    boss.notifyWorker(id)
  })
}
