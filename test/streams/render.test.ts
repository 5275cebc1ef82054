import t from 'tap'
import { turboStream } from '../../lib/streams/render.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { waitFor } from '../support/wait-for.ts'

t.test('given what a turbo-stream element is to do', async t => {
  t.test('when it is rendered, then attributes are escaped and the HTML is not', async t => {
    t.equal(
      await turboStream({ target: 'a"b', render: '<b>x</b>' }),
      '<turbo-stream action="replace" target="a&quot;b"><template><b>x</b></template></turbo-stream>',
    )
    t.equal(
      await turboStream({ target: 'a', action: 'append', render: async () => '<i></i>' }),
      '<turbo-stream action="append" target="a"><template><i></i></template></turbo-stream>',
    )
    const never = () => t.fail('there is nothing to render')
    t.equal(
      await turboStream({ target: 'a', action: 'remove', render: never as never }),
      '<turbo-stream action="remove" target="a"></turbo-stream>',
    )
  })

  t.test('when it cannot be meant, then it is refused', async t => {
    await t.rejects(turboStream({ target: '' }), { name: 'TypeError', message: 'target should be' })
    await t.rejects(turboStream({ target: 'a', action: '' }), { message: 'action should be' })
    await t.rejects(turboStream({ target: 'a', render: (() => 7) as never }), {
      message: 'render should give',
    })
  })
})

t.test('given an instance with a worker', async t => {
  const db = await createDatabase(t)
  const reports: string[] = []
  const pgbus = createTestPgbus(t, db, {
    streams: { broadcastQueue: 'broadcasts' },
    pollingInterval: '20ms',
    errorReporters: [error => void reports.push(error.message)],
  })
  const stream = pgbus.stream('page')
  const stored = async () => {
    const rows = await db.query<{ message: object }>('SELECT message FROM pgbus_stream_messages ORDER BY id')
    return rows.map(({ message }) => message)
  }

  t.test('when it broadcasts rendered HTML, then every option goes with it', async t => {
    await stream.broadcastRender({
      target: 'a',
      render: 'x',
      visibleTo: 'admins',
      exclude: 'c1',
      event: 'refresh',
    })
    t.strictSame((await stored()).at(-1), {
      html: '<turbo-stream action="replace" target="a"><template>x</template></turbo-stream>',
      event: 'refresh',
      stream: 'page',
      exclude: 'c1',
      visible_to: 'admins',
    })
    t.equal(await stream.broadcastRender({ target: 'a', render: 'x', durable: false }), null)
  })

  t.test('when it broadcasts later, then a job renders and sends it, with every option', async t => {
    pgbus.renderers.register('greeting', async args => `<p>${JSON.stringify(args)}</p>`)
    const worker = pgbus.createWorker({ name: null, queues: ['broadcasts'], concurrency: 1, processes: 1 })
    t.teardown(() => worker.stop({ immediate: true }))
    await worker.start()
    const before = (await stored()).length
    await stream.broadcastLater({
      renderer: 'greeting',
      args: { to: 'you' },
      target: 'b',
      visibleTo: 'x',
      exclude: 'c',
    })
    await waitFor(async () => (await stored()).length === before + 1)
    t.match((await stored()).at(-1), {
      html: '<turbo-stream action="replace" target="b"><template><p>{"to":"you"}</p></template></turbo-stream>',
      visible_to: 'x',
      exclude: 'c',
    })
    await stream.broadcastLater({ renderer: 'greeting' })
    await waitFor(async () => (await stored()).length === before + 2)
    t.match((await stored()).at(-1), { html: '<p>null</p>' })

    await stream.broadcastLater({ renderer: 'nobody' })
    await waitFor(() => reports.length > 0)
    t.match(reports[0], 'there is no renderer "nobody" in this process')
  })

  t.test('when a request for later cannot be meant, then nothing is enqueued', async t => {
    const count = () => db.query('SELECT FROM pgmq.q_pgbus_broadcasts')
    const before = (await count()).length
    for (const [options, message] of [
      [{ renderer: '' }, 'renderer should be'],
      [{ renderer: 'x', action: 'append' }, 'action needs target'],
      [{ renderer: 'x', durable: 'yes' }, 'durable should be'],
      [{ renderer: 'x', coalesce: true }, 'broadcast has no option "coalesce"'],
    ] as const) {
      await t.rejects(stream.broadcastLater(options as never), { name: 'TypeError', message })
    }
    t.equal((await count()).length, before)
  })
})
