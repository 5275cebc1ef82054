import pg from 'pg'
import type { Pgbus } from '../../lib/pgbus.ts'
import { type Figure, median } from '../support/bench.ts'

const samples = 200

/**
 * Time from a broadcast to its frame in a client over HTTP, in one process with a listener of its own.
 * Floor: a bare NOTIFY to a bare LISTEN connection.
 */
export async function roundTrip(pgbus: Pgbus, databaseUrl: string): Promise<Figure[]> {
  const floor = await bareNotify(databaseUrl)
  const { default: Fastify } = await import('fastify')
  const { pgbusStreams } = await import('../../plugins/fastify/index.ts')
  const app = Fastify()
  await app.register(pgbusStreams, { pgbus })
  const address = await app.listen({ port: 0, host: '127.0.0.1' })
  const stream = pgbus.stream('bench')
  const abort = new AbortController()
  try {
    const response = await fetch(`${address}${stream.url()}`, { signal: abort.signal })
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
    if (!reader) throw new Error('the stream has no body')
    const waitFor = async (text: string) => {
      for (;;) {
        const { value = '', done } = await reader.read()
        if (done || value.includes(text)) return
      }
    }
    await waitFor('pgbus:replay-end')
    const figures: Figure[] = []
    for (const durable of [true, false]) {
      const times: number[] = []
      for (let n = 0; n < samples; n += 1) {
        const mark = `mark-${durable}-${n}.`
        const start = performance.now()
        const arrived = waitFor(mark)
        await stream.broadcast(mark, { durable })
        await arrived
        times.push(performance.now() - start)
      }
      figures.push({
        what: `broadcast to frame, ${durable ? 'durable' : 'ephemeral'}, median`,
        ours: median(times),
        floor,
        unit: 'ms',
      })
    }
    return figures
  } finally {
    abort.abort()
    await app.close()
  }
}

async function bareNotify(databaseUrl: string): Promise<number> {
  const [listener, sender] = [
    new pg.Client({ connectionString: databaseUrl }),
    new pg.Client({ connectionString: databaseUrl }),
  ]
  await Promise.all([listener.connect(), sender.connect()])
  await listener.query('LISTEN bench')
  const times: number[] = []
  for (let n = 0; n < samples; n += 1) {
    const start = performance.now()
    const arrived = new Promise(resolve => listener.once('notification', resolve))
    await sender.query({ name: 'notify', text: 'SELECT pg_notify($1, $2)', values: ['bench', String(n)] })
    await arrived
    times.push(performance.now() - start)
  }
  await Promise.all([listener.end(), sender.end()])
  return median(times)
}
