import t from 'tap'
import { ConsumerPriority } from '../../lib/jobs/consumer-priority.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { quiet } from '../support/quiet-log.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

interface Mine {
  priority?: number
  queues?: string[]
  id?: number
}

interface Theirs {
  kind?: string
  metadata: unknown
  ageSeconds?: number
}

t.test('given other workers in the table of processes', async t => {
  const { pgbus, db } = await setup(t)
  const yields = async (mine: Mine, theirs: Theirs) => {
    await db.query('DELETE FROM pgbus_processes')
    const [row] = await db.query<{ id: string }>(
      `INSERT INTO pgbus_processes (kind, hostname, pid, metadata, last_heartbeat_at, created_at, updated_at)
       SELECT $1, 'elsewhere', $2, $3, (now() - $4 * interval '1 s') AT TIME ZONE 'UTC', now(), now() RETURNING id`,
      [theirs.kind ?? 'worker', process.pid, JSON.stringify(theirs.metadata), theirs.ageSeconds ?? 0],
    )
    const { priority = 0, queues = ['mail'], id = 0 } = mine
    const own = new ConsumerPriority({ db: pgbus.db, log: quiet, priority, queues })
    await own.check(id === -1 ? Number(row?.id) : id)
    own.close()
    return own.yielding
  }
  const preferred = { queues: ['mail'], consumer_priority: 10 }

  const cases: [what: string, mine: Mine, theirs: Theirs, expected: boolean][] = [
    ['a higher number on the same queue', {}, { metadata: preferred }, true],
    ['the same number', { priority: 10 }, { metadata: preferred }, false],
    ['a lower number', { priority: 11 }, { metadata: preferred }, false],
    ['another queue', { queues: ['sms'] }, { metadata: preferred }, false],
    ['a pattern of mine that has it', { queues: ['*'] }, { metadata: preferred }, true],
    ['a pattern of theirs that has mine', {}, { metadata: { ...preferred, queues: ['ma*'] } }, true],
    ['patterns that overlap', { queues: ['mail_*'] }, { metadata: { ...preferred, queues: ['*'] } }, true],
    [
      'patterns that do not',
      { queues: ['mail_*'] },
      { metadata: { ...preferred, queues: ['sms_*'] } },
      false,
    ],
    ['a process that is silent for long', {}, { metadata: preferred, ageSeconds: 301 }, false],
    ['a process of another kind', {}, { metadata: preferred, kind: 'supervisor' }, false],
    ['my own row', { id: -1 }, { metadata: preferred }, false],
    ['a row without a number', {}, { metadata: { queues: ['mail'], consumer_priority: 'high' } }, false],
    ['a row of somebody else', {}, { metadata: { consumer_priority: 10 } }, false],
  ]
  for (const [what, mine, theirs, expected] of cases) {
    t.test(`when there is ${what}, then it ${expected ? 'yields' : 'does not yield'}`, async t => {
      t.equal(await yields(mine, theirs), expected)
    })
  }

  t.test('when the table cannot be read, then it does not yield', async t => {
    await db.query('ALTER TABLE pgbus_processes RENAME TO moved')
    const own = new ConsumerPriority({ db: pgbus.db, log: quiet, priority: 0, queues: ['mail'] })
    await own.check(1)
    t.equal(own.yielding, false)
    await db.query('ALTER TABLE moved RENAME TO pgbus_processes')
  })
})

t.test('given a worker that is preferred, and one that is not', async t => {
  const bench = await setup(t)
  defineJob({ name: 'any' }, () => undefined)
  const preferred = await bench.work({ consumerPriority: 5 })
  await waitFor(
    async () => (await bench.db.query("SELECT FROM pgbus_processes WHERE kind = 'worker'")).length === 1,
  )
  const spare = await bench.work({ consumerPriority: 1 })
  await waitFor(() => spare.stats().yielding)
  t.equal(preferred.stats().yielding, false)

  t.test('when the preferred one is gone, then the other takes over', async t => {
    await preferred.stop()
    await bench.pgbus.enqueue('any', null)
    await drained(bench)
    t.equal(spare.stats().processed, 1)
    await waitFor(() => !spare.stats().yielding, { timeout: 20_000 })
  })
})
