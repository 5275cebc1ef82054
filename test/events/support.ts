import type { ConsumerEntry } from '../../lib/config/consumers.ts'
import type { PgbusConfig } from '../../lib/config/options.ts'
import type { Event, EventContext } from '../../lib/events/define.ts'
import type { Worker } from '../../lib/jobs/worker.ts'
import { type Bench, setup as setupJobs } from '../jobs/support.ts'
import type { TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'

export interface EventBench extends Bench {
  /** A started consumer, stopped at teardown. */
  consume(entry?: Partial<ConsumerEntry>): Promise<Worker>
  /** Rows of `pgbus_processed_events`, by event and handler. */
  claims(): Promise<{ event_id: string; handler_class: string; completed: boolean }[]>
  /** Whether a handler's queue is empty. */
  isEmpty(queue: string): Promise<boolean>
}

/** A database, an instance on it and what tests look at. Handlers are the business of each file. */
export async function setup(t: TestContext, config: PgbusConfig = {}): Promise<EventBench> {
  const bench = await setupJobs(t, config)
  return {
    ...bench,
    consume: async entry => {
      const consumer = bench.pgbus.createConsumer({ topics: ['#'], ...entry })
      t.teardown(() => consumer.stop({ timeout: 0, immediate: true }))
      await consumer.start()
      await consumer.onFirstPass
      return consumer
    },
    claims: () =>
      bench.db.query(
        'SELECT event_id, handler_class, completed_at IS NOT NULL AS completed FROM pgbus_processed_events ORDER BY event_id, handler_class',
      ),
    isEmpty: async queue => (await bench.rows(`pgbus_${queue}`)).length === 0,
  }
}

/** Waits until the queues of these handlers are empty. */
export async function handled(bench: EventBench, ...queues: string[]): Promise<void> {
  await waitFor(async () => (await Promise.all(queues.map(bench.isEmpty))).every(Boolean), {
    message: `handled events of ${queues.join(', ')}`,
  })
}

/** A handler that notes what it is given; `act` may do more. */
export function recorder<P = unknown>(
  act: (event: Event<P>, context: EventContext) => unknown = () => {},
): {
  events: Event<P>[]
  contexts: EventContext[]
  handle: (event: Event<P>, context: EventContext) => Promise<void>
} {
  const events: Event<P>[] = []
  const contexts: EventContext[] = []
  return {
    events,
    contexts,
    handle: async (event, context) => {
      events.push(event)
      contexts.push(context)
      await act(event, context)
    },
  }
}
