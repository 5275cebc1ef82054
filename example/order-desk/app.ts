import { randomUUID } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import Fastify, { type FastifyInstance } from 'fastify'
import type { Pgbus } from 'pgbus'
import { pgbusStreams } from 'pgbus/fastify'
import { fulfilOrder } from './jobs.ts'
import { OrderTable } from './orders.ts'
import { renderPage } from './page.ts'

const maxCount = 500

/** What `pgbus-web` calls in each of its workers. */
export async function createApp({
  pgbus,
  worker,
}: {
  pgbus: Pgbus
  worker: { index: number }
}): Promise<FastifyInstance> {
  const orders = new OrderTable(pgbus.config.databaseUrl ?? '')
  const app = Fastify({ forceCloseConnections: 'idle', return503OnClosing: false })
  app.addHook('onClose', () => orders.close())
  await app.register(pgbusStreams, { pgbus })

  app.addContentTypeParser(
    'application/x-www-form-urlencoded',
    { parseAs: 'string' },
    (_request, body, done) => {
      done(null, Object.fromEntries(new URLSearchParams(String(body))))
    },
  )

  app.get('/', async (request, reply) => {
    // The watermark comes before the data: whatever is broadcast after this line reaches the page, either
    // in the rows below or as a frame.
    const [since] = await request.streamMark('orders')
    const [board, totals] = [await orders.board(), await orders.totals()]
    const source = await reply.streamSourceTag('orders', { since: since ?? 0, script: true })
    return reply
      .type('text/html; charset=utf-8')
      .send(renderPage({ source, board, totals, worker: worker.index }))
  })

  app.post('/orders', async (request, reply) => {
    const count = readCount(request.body)
    if (count === undefined) {
      return reply.code(400).send({ error: `count must be a whole number from 1 to ${maxCount}` })
    }
    const batch = randomUUID()
    await orders.transaction(async tx => {
      const placed = await orders.insert(tx, batch, count)
      await pgbus.enqueueMany(
        placed.map(order => ({ job: fulfilOrder, args: { orderId: order.id } })),
        { tx },
      )
      for (const order of placed) await pgbus.stream('orders').broadcast(order, { event: 'order', tx })
    })
    return reply.code(202).send({ enqueued: count, batch })
  })

  app.get('/healthz', async (_request, reply) => {
    const workers = await orders.liveWorkers().catch(() => 0)
    return reply.code(workers > 0 ? 200 : 503).send({ status: workers > 0 ? 'ok' : 'starting', workers })
  })

  for (const [file, type] of [
    ['board.css', 'text/css; charset=utf-8'],
    ['board.js', 'text/javascript; charset=utf-8'],
  ] as const) {
    const body = await readFile(new URL(`../../../example/order-desk/public/${file}`, import.meta.url))
    app.get(`/assets/${file}`, (_request, reply) =>
      reply.type(type).header('cache-control', 'no-cache').send(body),
    )
  }
  return app
}

function readCount(body: unknown): number | undefined {
  const given = (body as { count?: unknown } | null)?.count
  const count = typeof given === 'string' && /^\d+$/.test(given) ? Number(given) : given
  return typeof count === 'number' && Number.isInteger(count) && count >= 1 && count <= maxCount
    ? count
    : undefined
}
