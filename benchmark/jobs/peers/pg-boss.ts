import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import PgBoss from 'pg-boss'
import { type Peer, queueName } from './peer.ts'
import { PostgresHome } from './postgres.ts'

const producerConnections = 10

/** pg-boss with large batches; a worker that found work looks again at once. */
export async function pgBossPeer(serverUrl: string): Promise<Peer> {
  const home = await PostgresHome.create(serverUrl, 'bench_pgboss')
  const boss = new PgBoss({
    connectionString: home.url,
    max: producerConnections,
    supervise: false,
    schedule: false,
  })
  boss.on('error', error => console.error(error))
  await boss.start()
  await boss.createQueue(queueName)
  const { version } = createRequire(import.meta.url)('pg-boss/package.json') as { version: string }
  return {
    name: 'pg-boss',
    label: `${version}, batches of 500`,
    store: 'postgres',
    enqueue: payload => boss.send(queueName, payload),
    enqueueMany: payloads => boss.insert(payloads.map(data => ({ name: queueName, data }))),
    hasPending: () => home.exists(`SELECT FROM pgboss.job WHERE state < 'completed'`),
    clear: async () => {
      await home.query('TRUNCATE pgboss.job')
    },
    analyze: async () => {
      await home.query('ANALYZE pgboss.job')
    },
    workerConnections: () => home.workerConnections(),
    commandCount: () => home.transactions(),
    workerOptions: concurrency => ({
      file: fileURLToPath(new URL('./pg-boss-process.js', import.meta.url)),
      args: [],
      env: { BENCH_DATABASE_URL: home.workerUrl, BENCH_CONCURRENCY: String(concurrency) },
    }),
    close: async () => {
      await boss.stop({ graceful: false, wait: true })
      await home.close()
    },
  }
}
