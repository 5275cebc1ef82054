import { setTimeout as wait } from 'node:timers/promises'
import { defineJob, type JobContext } from 'pgbus'
import { OrderTable, type Status } from './orders.ts'

/** One in this many orders has its payment declined the first time. */
const declinedEvery = 6

let table: OrderTable | undefined

/** Takes one order from payment to the door, telling the stream `orders` about each step. */
export const fulfilOrder = defineJob<{ orderId: number }>(
  { name: 'fulfil-order', queue: 'orders', retry: () => '1s' },
  async ({ orderId }, ctx) => {
    const { attempt } = ctx.job
    for (const status of ['payment', 'packing', 'shipping', 'done'] as const) {
      await report(ctx, orderId, status, attempt)
      if (status === 'done') return
      await wait(150 + Math.random() * 350, undefined, { signal: ctx.signal })
      if (status === 'payment' && attempt === 1 && orderId % declinedEvery === 0) {
        await report(ctx, orderId, 'retrying', attempt)
        throw new Error(`the payment of order ${orderId} was declined`)
      }
    }
  },
)

/** The order's row and the frame that shows it commit in one transaction. */
async function report(ctx: JobContext, orderId: number, status: Status, attempt: number): Promise<void> {
  table ??= new OrderTable(ctx.pgbus.config.databaseUrl ?? '')
  const orders = table
  await orders.transaction(async tx => {
    const order = await orders.advance(tx, orderId, status, attempt)
    if (order) await ctx.pgbus.stream('orders').broadcast(order, { event: 'order', tx })
  })
}
