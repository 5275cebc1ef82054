/** Compiled, never run: each line marked as an error must be one. */
import { defineConfig } from '../../lib/config/define.ts'
import { defineHandler } from '../../lib/events/define.ts'
import type { Pgbus } from '../../lib/pgbus.ts'

declare const pgbus: Pgbus

defineConfig({ consumers: [{ topics: ['orders.#'], concurrency: 3 }], idempotencyTtl: null })
defineConfig({
  outbox: { enabled: true, pollInterval: '2s', retention: null },
  roles: ['outbox', 'consumers'],
})
// @ts-expect-error an entry without topics
defineConfig({ consumers: [{ concurrency: 3 }] })
// @ts-expect-error no string form
defineConfig({ consumers: 'orders.#' })

defineHandler<{ id: number }>({ name: 'A', on: 'a' }, async ({ payload, routingKey }, { signal }) => {
  const id: number = payload.id
  void [id, routingKey.length, signal.aborted]
})
defineHandler<{ id: number }>({ name: 'B', on: ['a', 'b.*'], idempotent: 'transaction' }, (_event, { tx }) =>
  tx.query('SELECT 1'),
)
// @ts-expect-error only a handler that is idempotent by transaction has one
defineHandler({ name: 'C', on: 'a', idempotent: true }, (_event, { tx }) => tx)
// @ts-expect-error the payload is typed
defineHandler<{ id: number }>({ name: 'D', on: 'a' }, ({ payload }) => payload.name)
// @ts-expect-error an event does not change
defineHandler({ name: 'E', on: 'a' }, event => (event.id = 'other'))
// @ts-expect-error no pattern
defineHandler({ name: 'F' }, () => undefined)

void pgbus.publish('a', { id: 1 }, { delay: '5m', group: 'g', mandatory: true })
void pgbus.publishLater('a', { id: 1 }, { delay: new Date() })
// @ts-expect-error without a delay it is not later
void pgbus.publishLater('a', { id: 1 }, {})
void pgbus.outbox.publish('mail', { id: 1 }, { priority: 0, delay: 500 })
void pgbus.outbox.publishEvent('a', new Date(), { delay: new Date() })
// @ts-expect-error a message is plain JSON
void pgbus.outbox.publish('mail', new Date())
