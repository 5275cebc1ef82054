import t from 'tap'
import { createDatabase } from '../support/database.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { waitFor } from '../support/wait-for.ts'

t.test('given an application that only enqueues and handles no uncaught errors', async t => {
  const db = await createDatabase(t)
  const app = spawnNode(t, compiled('test/fixtures/jobs/enqueue-only.ts'), [], {
    ipc: true,
    env: { DATABASE_URL: db.url },
  })
  const answer = async (n: number, not?: string) =>
    (await waitFor(() =>
      app.messages.find(
        m => (m as { n?: number; status?: string }).n === n && (m as { status?: string }).status !== not,
      ),
    )) as {
      status: string
      message?: string
    }
  await waitFor(() => app.messages.length > 0)
  const killAll = async (name: string) => {
    await db.query(
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1',
      [name],
    )
    await waitFor(async () => (await db.census()).every(row => row.application_name !== name))
  }

  t.test(
    'when all its idle backends are terminated, then it lives and the next enqueue works at the first call, once',
    async t => {
      for (let n = 0; n < 10; n += 1) {
        app.child.send({ n })
        t.equal((await answer(n)).status, 'enqueued')
        await killAll('pgbus')
      }
      const rows = await db.query<{ n: number }>(
        `SELECT (message->'arguments'->0->>'n')::int AS n FROM pgmq.q_pgbus_default ORDER BY msg_id`,
      )
      t.strictSame(
        rows.map(({ n }) => n),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
      )
      t.equal(app.child.exitCode, null, 'the process lives')
    },
  )

  t.test(
    'when the client of its own transaction is terminated, then the error reaches the caller only',
    async t => {
      app.child.send({ n: 100, tx: true })
      t.equal((await answer(100)).status, 'open')
      await killAll('pgbus-borrowed')
      const { status, message } = await answer(100, 'open')
      t.equal(status, 'failed')
      t.ok(message, 'it says why')
      t.equal(app.child.exitCode, null, 'the process lives')
      app.child.send({ n: 101 })
      t.equal((await answer(101)).status, 'enqueued')
    },
  )
})
