import { fileURLToPath } from 'node:url'
import { createPgbus } from '../../../lib/pgbus.ts'
import { type Peer, queueName } from './peer.ts'
import { PostgresHome } from './postgres.ts'

/** pgbus with its defaults: `pgbus start` and one worker child. */
export async function pgbusPeer(serverUrl: string): Promise<Peer> {
  const home = await PostgresHome.create(serverUrl, 'bench_pgbus')
  const pgbus = createPgbus({ databaseUrl: home.url, log: { level: 'error' } })
  await pgbus.schema.migrate()
  await pgbus.queues.ensure(queueName)
  return {
    name: 'pgbus',
    label: 'defaults',
    store: 'postgres',
    enqueue: payload => pgbus.enqueue('bench', payload, { queue: queueName }),
    enqueueMany: payloads =>
      pgbus.enqueueMany(payloads.map(args => ({ job: 'bench', args, queue: queueName }))),
    hasPending: () => home.exists('SELECT FROM pgmq.q_pgbus_bench'),
    clear: async () => {
      await home.query('TRUNCATE pgmq.q_pgbus_bench, pgmq.a_pgbus_bench')
    },
    analyze: async () => {
      await home.query('ANALYZE pgmq.q_pgbus_bench')
    },
    workerConnections: () => home.workerConnections(),
    commandCount: () => home.transactions(),
    workerOptions: concurrency => ({
      file: fileURLToPath(new URL('../../../bin/pgbus.js', import.meta.url)),
      args: ['start', '--config', fileURLToPath(new URL('./pgbus-config.js', import.meta.url))],
      env: { BENCH_DATABASE_URL: home.workerUrl, BENCH_CONCURRENCY: String(concurrency) },
    }),
    close: async () => {
      await pgbus.close()
      await home.close()
    },
  }
}
