import pg from 'pg'
import { defineJob } from '../../lib/jobs/define.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import type { Figure } from '../support/bench.ts'

const jobs = 20_000

/**
 * No-op jobs per second in one process, from a full queue. Floor: hand-written claim and archive of as many
 * rows at a time as jobs run at once, one statement after the other.
 */
export async function throughput(pgbus: Pgbus, databaseUrl: string): Promise<Figure[]> {
  const figures: Figure[] = []
  for (const concurrency of [10, 100]) {
    figures.push({
      what: `no-op jobs, 1 process, concurrency ${concurrency}`,
      ours: await drain(pgbus, concurrency),
      floor: await drainByHand(pgbus, databaseUrl, concurrency),
      unit: 'jobs/s',
    })
  }
  return figures
}

async function fill(pgbus: Pgbus, job: string): Promise<void> {
  const list = Array.from({ length: jobs }, (_, n) => ({ job, args: { n }, queue: 'bench_run' }))
  await pgbus.enqueueMany(list)
}

async function drain(pgbus: Pgbus, concurrency: number): Promise<number> {
  let done = 0
  let finish: (() => void) | undefined
  const finished = new Promise<void>(resolve => {
    finish = resolve
  })
  const name = `bench-noop-${concurrency}`
  defineJob({ name }, () => {
    done += 1
    if (done === jobs) finish?.()
  })
  await fill(pgbus, name)
  const worker = pgbus.createWorker({ name: null, queues: ['bench_run'], concurrency, processes: 1 })
  const start = performance.now()
  await worker.start()
  await finished
  await worker.stop()
  const seconds = (performance.now() - start) / 1_000
  await pgbus.queues.drop('bench_run')
  return jobs / seconds
}

async function drainByHand(pgbus: Pgbus, databaseUrl: string, size: number): Promise<number> {
  await fill(pgbus, 'bench-by-hand')
  const client = new pg.Client({ connectionString: databaseUrl })
  await client.connect()
  const claim = {
    name: 'claim',
    text: `WITH due AS (SELECT msg_id FROM pgmq.q_pgbus_bench_run WHERE vt <= clock_timestamp() ORDER BY vt, msg_id LIMIT $1 FOR UPDATE SKIP LOCKED)
      UPDATE pgmq.q_pgbus_bench_run AS q SET vt = clock_timestamp() + interval '30 s', read_ct = read_ct + 1 FROM due WHERE q.msg_id = due.msg_id RETURNING q.msg_id, q.message`,
    values: [size],
  }
  const archive = `WITH gone AS (DELETE FROM pgmq.q_pgbus_bench_run WHERE msg_id = ANY ($1) RETURNING msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers)
    INSERT INTO pgmq.a_pgbus_bench_run (msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers) SELECT * FROM gone`
  const start = performance.now()
  for (;;) {
    const { rows } = await client.query<{ msg_id: string }>(claim)
    if (rows.length === 0) break
    await client.query({ name: 'archive', text: archive, values: [rows.map(row => row.msg_id)] })
  }
  const seconds = (performance.now() - start) / 1_000
  await client.end()
  await pgbus.queues.drop('bench_run')
  return jobs / seconds
}
