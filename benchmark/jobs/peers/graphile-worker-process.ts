import { run } from 'graphile-worker'
import { handled, waitForStart } from '../report.ts'
import { quietLogger } from './graphile-worker.ts'
import { type Payload, queueName } from './peer.ts'

const concurrentJobs = Number(process.env.BENCH_CONCURRENCY)
const logger = await quietLogger()
await waitForStart()
await run({
  logger,
  taskList: { [queueName]: payload => handled(payload as Payload) },
  preset: {
    worker: {
      connectionString: process.env.BENCH_DATABASE_URL ?? '',
      concurrentJobs,
      maxPoolSize: concurrentJobs + 1,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
})
