import t from 'tap'
import { compiled } from '../support/spawn.ts'
import { setup } from './run-command.ts'

t.test('given routes of events', async t => {
  const { db, run } = await setup(t)
  await db.query(`SELECT pgmq.create('pgbus_plain'), pgmq.create('others');
    SELECT pgmq.bind_topic('plain.*', 'pgbus_plain'), pgmq.bind_topic('old.#', 'pgbus_plain'), pgmq.bind_topic('x', 'others')`)
  const env = { PGBUS_IMPORTS: compiled('test/fixtures/events/handlers.ts') }

  t.test('when they are looked at, then it is told which are still wanted', async t => {
    const { code, stdout } = await run.with(env, 'events', 'list')
    t.equal(code, 0)
    t.match(stdout, /others +x +- /)
    t.match(stdout, /plain +old\.# +no /)
    t.match(stdout, /plain +plain\.\* +yes .*\n3 routes$/m)
    t.match((await run('events', 'test', 'plain.a')).stdout, /plain +plain\.\*/)
  })

  t.test('when old ones are removed, then only with --yes', async t => {
    const refused = await run.with(env, 'events', 'prune')
    t.equal(refused.code, 1)
    t.match(refused.output, /would remove 1 routes: "old\.#" of queue "plain"; nothing was changed/)
    t.same((await run.with(env, 'events', 'prune', '--yes', '--json')).json(), {
      removed: [{ pattern: 'old.#', queue: 'plain' }],
    })
  })
})

t.test('given an event that a handler has begun with', async t => {
  const { db, run } = await setup(t)
  await db.query("INSERT INTO pgbus_processed_events (event_id, handler_class) VALUES ('e1', 'Once')")
  const env = { PGBUS_IMPORTS: compiled('test/fixtures/events/handlers.ts') }

  t.test('when it is noted as handled, then it is pending no more', async t => {
    t.match((await run('events', 'pending')).stdout, /^e1 +Once +- +- .*\n1 events are not completed\n$/m)
    t.match((await run.with(env, 'events', 'handled', 'e1', 'Once')).output, /nothing was changed/)
    t.equal((await run.with(env, 'events', 'handled', 'e1', 'Once', '--yes')).code, 0)
    t.match((await run('events', 'pending', '--json')).json(), { pending: [] })
  })
})

t.test('given entries of the outbox', async t => {
  const { db, pgbus, run } = await setup(t)

  t.test('when one cannot be sent, then it is seen, tried again, and deleted on demand', async t => {
    await pgbus.outbox.publish('mail', 1)
    await db.query("INSERT INTO pgbus_outbox_entries (queue_name, payload) VALUES ('not allowed!', '1')")
    t.match((await run('outbox', 'flush')).stdout, 'published 1 entries, 1 failed')
    t.match(
      (await run('outbox', 'list', '--failing')).stdout,
      /2 +not allowed! +- +1 .*queue name .*\n1 entries/,
    )
    t.match((await run('outbox', 'retry', '--all')).stdout, '1 entries are tried at the next look')
    const refused = await run('outbox', 'discard', '2')
    t.equal(refused.code, 1)
    t.match(refused.output, /would delete entry 2 unpublished; nothing was changed/)
    t.match((await run('outbox', 'discard', '2', '--yes')).stdout, 'entry 2 is deleted')
  })
})
