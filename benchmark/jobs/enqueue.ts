import pg from 'pg'
import type { Pgbus } from '../../lib/pgbus.ts'
import { type Figure, perSecond } from '../support/bench.ts'

const producers = 10
const roundMs = 3_000
const batch = 1_000

/** Jobs stored per second. Floor: one prepared INSERT per job, each producer on a connection of its own. */
export async function enqueue(pgbus: Pgbus, databaseUrl: string): Promise<Figure[]> {
  await pgbus.queues.ensure('bench_enqueue')
  await pgbus.queues.ensure('bench_floor')
  const clients = await Promise.all(
    Array.from({ length: producers }, async () => {
      const client = new pg.Client({ connectionString: databaseUrl })
      await client.connect()
      return client
    }),
  )
  const text = `INSERT INTO pgmq.q_pgbus_bench_floor (vt, message) VALUES (clock_timestamp(), $1::jsonb) RETURNING msg_id`
  const insert = { name: 'floor', text, values: ['{"job_class":"bench","arguments":[{"n":1}]}'] }
  try {
    const floor = await perSecond(producers, roundMs, producer =>
      (clients[producer] as pg.Client).query(insert),
    )
    const ours = await perSecond(producers, roundMs, () =>
      pgbus.enqueue('bench', { n: 1 }, { queue: 'bench_enqueue' }),
    )
    const many = Array.from({ length: batch }, (_, n) => ({
      job: 'bench',
      args: { n },
      queue: 'bench_enqueue',
    }))
    const bulk = (await perSecond(1, roundMs, () => pgbus.enqueueMany(many))) * batch
    return [
      { what: `enqueue one by one, ${producers} producers`, ours, floor, unit: 'jobs/s' },
      { what: `enqueueMany, ${batch} at a time, 1 producer`, ours: bulk, floor, unit: 'jobs/s' },
    ]
  } finally {
    await Promise.all(clients.map(client => client.end()))
    await pgbus.queues.drop('bench_enqueue')
    await pgbus.queues.drop('bench_floor')
  }
}
