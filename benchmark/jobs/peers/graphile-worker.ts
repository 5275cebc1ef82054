import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { makeWorkerUtils } from 'graphile-worker'
import pg from 'pg'
import { type Peer, queueName } from './peer.ts'
import { PostgresHome } from './postgres.ts'

const producerConnections = 10

/** graphile-worker as its page on performance runs it: a local queue of 500, completions in batches. */
export async function graphilePeer(serverUrl: string): Promise<Peer> {
  const home = await PostgresHome.create(serverUrl, 'bench_graphile')
  const pool = new pg.Pool({ connectionString: home.url, max: producerConnections })
  pool.on('error', () => undefined)
  const utils = await makeWorkerUtils({ pgPool: pool, logger: await quietLogger() })
  await utils.migrate()
  const { version } = createRequire(import.meta.url)('graphile-worker/package.json') as { version: string }
  return {
    name: 'graphile-worker',
    label: `${version}, local queue of 500, batched completion`,
    store: 'postgres',
    enqueue: payload => utils.addJob(queueName, payload),
    enqueueMany: payloads => utils.addJobs(payloads.map(payload => ({ identifier: queueName, payload }))),
    hasPending: () => home.exists('SELECT FROM graphile_worker._private_jobs'),
    clear: async () => {
      await home.query('TRUNCATE graphile_worker._private_jobs')
    },
    analyze: async () => {
      await home.query('ANALYZE graphile_worker._private_jobs')
    },
    workerConnections: () => home.workerConnections(),
    commandCount: () => home.transactions(),
    workerOptions: concurrency => ({
      file: fileURLToPath(new URL('./graphile-worker-process.js', import.meta.url)),
      args: [],
      env: { BENCH_DATABASE_URL: home.workerUrl, BENCH_CONCURRENCY: String(concurrency) },
    }),
    close: async () => {
      await utils.release()
      await pool.end()
      await home.close()
    },
  }
}

export async function quietLogger() {
  const { Logger } = await import('graphile-worker')
  return new Logger(() => (level, message) => {
    if (level === 'error') console.error(message)
  })
}
