import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { Queue } from 'bullmq'
import { type Peer, queueName } from './peer.ts'
import { type Fsync, startRedis } from './redis.ts'

/** BullMQ on a Redis of its own, with its log written every second, or before each answer. */
export async function bullmqPeer(fsync: Fsync): Promise<Peer> {
  const redis = await startRedis(fsync)
  const connection = { host: '127.0.0.1', port: redis.port }
  // Done jobs are not kept: the faster of its two ways.
  const defaultJobOptions = { removeOnComplete: true, removeOnFail: true }
  const queue = new Queue(queueName, { connection, defaultJobOptions })
  queue.on('error', error => console.error(error))
  await queue.waitUntilReady()
  const before = await redis.connections()
  const { version } = createRequire(import.meta.url)('bullmq/package.json') as { version: string }
  return {
    name: fsync === 'always' ? 'bullmq-durable' : 'bullmq',
    label: `${version}, Redis ${redis.version}, appendfsync ${fsync}`,
    store: 'redis',
    enqueue: payload => queue.add(queueName, payload),
    enqueueMany: payloads => queue.addBulk(payloads.map(data => ({ name: queueName, data }))),
    hasPending: async () => {
      const counts = await queue.getJobCounts('wait', 'active')
      return Object.values(counts).some(n => n > 0)
    },
    clear: () => queue.obliterate({ force: true }),
    analyze: async () => undefined,
    workerConnections: async () => (await redis.connections()) - before,
    commandCount: () => redis.commands(),
    workerOptions: concurrency => ({
      file: fileURLToPath(new URL('./bullmq-process.js', import.meta.url)),
      args: [],
      env: { BENCH_REDIS_PORT: String(redis.port), BENCH_CONCURRENCY: String(concurrency) },
    }),
    close: async () => {
      await queue.close()
      await redis.stop()
    },
  }
}
