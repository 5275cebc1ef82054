import { Worker } from 'bullmq'
import { handled, waitForStart } from '../report.ts'
import { type Payload, queueName } from './peer.ts'

await waitForStart()
const worker = new Worker<Payload>(queueName, async job => handled(job.data), {
  connection: { host: '127.0.0.1', port: Number(process.env.BENCH_REDIS_PORT), maxRetriesPerRequest: null },
  concurrency: Number(process.env.BENCH_CONCURRENCY),
  removeOnComplete: { count: 0 },
  removeOnFail: { count: 0 },
})
worker.on('error', error => console.error(error))
