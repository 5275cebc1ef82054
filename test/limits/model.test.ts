import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { admit, buryTracked, finishTracked, needsAdmission } from '../../lib/limits/statements.ts'
import { type ClaimManyRow, claimMany, makeVisible, release, retryMany } from '../../lib/pgmq/statements.ts'
import { type Bench, setup } from '../jobs/support.ts'

/**
 * Random lives of limited and unique jobs, checked after each step: what is held belongs to a job that has not
 * ended, no limit is passed, and in the end everything has run and nothing is held.
 */

interface Args {
  key: string
  lock: number
}

const limitOf = { a: 1, b: 2 } as const
const queues = ['default', 'other']
const physicals = queues.map(name => `pgbus_${name}`)

const jobs = Object.entries(limitOf).map(([key, limit]) =>
  defineJob<Args>(
    {
      name: `model_${key}`,
      unique: { key: ({ lock }) => String(lock), scope: 'global', onConflict: 'discard' },
      concurrency: { limit, key: args => args.key, scope: 'global' },
    },
    () => undefined,
  ),
)

/** One with the same lock runs at a time, and any number waits. */
jobs.push(
  defineJob<Args>(
    {
      name: 'model_running',
      unique: { key: ({ lock }) => `running ${lock % 3}`, scope: 'global', strategy: 'whileExecuting' },
    },
    () => undefined,
  ),
)

interface Running {
  physical: string
  msgId: number
  readCount: number
  key: string | undefined
  lock: string
  unlock: boolean
}

const step = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('enqueue' as const),
      job: fc.nat(2),
      lock: fc.nat(11),
      queue: fc.nat(1),
      later: fc.boolean(),
      priority: fc.nat(2),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('list' as const),
      locks: fc.array(fc.nat(11), { minLength: 1, maxLength: 5 }),
    }),
  },
  { weight: 4, arbitrary: fc.constant({ do: 'claim' as const }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constantFrom(
        'archive' as const,
        'delete' as const,
        'bury' as const,
        'bury' as const,
        'retry' as const,
        'crash' as const,
        'release' as const,
        'twice' as const,
      ),
      which: fc.nat(),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('cancel' as const), queue: fc.nat(1), which: fc.nat() }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constantFrom('purge' as const, 'drop' as const, 'steal' as const),
      queue: fc.nat(1),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.constantFrom({ do: 'due' as const }, { do: 'reap' as const }),
  },
  { weight: 1, arbitrary: fc.constant({ do: 'retryDead' as const }) },
)

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never

class World {
  readonly #bench: Bench
  readonly #running: Running[] = []

  constructor(bench: Bench) {
    this.#bench = bench
  }

  get running(): readonly Running[] {
    return this.#running
  }

  async take(step: Step): Promise<void> {
    const { pgbus, db } = this.#bench
    const query = pgbus.db.query.bind(pgbus.db)
    switch (step.do) {
      case 'enqueue': {
        const job = jobs[step.job]!
        const args = { key: 'abc'[step.job]!, lock: step.lock }
        await job.enqueue(args, {
          pgbus,
          queue: queues[step.queue],
          priority: step.priority,
          delay: step.later ? '1h' : 0,
        })
        return
      }
      case 'list':
        await pgbus.enqueueMany(
          step.locks.map((lock, index) => ({ job: jobs[index % 2]!, args: { key: 'ab'[index % 2]!, lock } })),
        )
        return
      case 'claim':
        return this.claim()
      case 'archive':
      case 'delete':
      case 'bury':
      case 'retry':
      case 'crash':
      case 'release':
      case 'twice': {
        const at = this.#running.length === 0 ? -1 : step.which % this.#running.length
        const [job] = at < 0 ? [] : this.#running.splice(at, 1)
        if (!job) return
        const failed = job.physical.slice('pgbus_'.length)
        if (step.do === 'archive' || step.do === 'delete')
          await query(finishTracked(job.physical, { kind: step.do }, [job], failed))
        if (step.do === 'twice')
          for (let n = 0; n < 2; n += 1)
            await query(finishTracked(job.physical, { kind: 'archive' }, [job], failed))
        if (step.do === 'bury') {
          await pgbus.queues.ensurePhysical(`${job.physical}_dlq`, 'dlq')
          const deadLetter = JSON.stringify({ queue: job.physical })
          await query(buryTracked(job.physical, `${job.physical}_dlq`, [{ ...job, deadLetter }], failed))
        }
        if (step.do === 'retry') {
          const error = { errorClass: 'Error', errorMessage: 'no', backtrace: null }
          await query(retryMany(job.physical, [{ ...job, ...error, delayMs: 0 }], failed, job))
        }
        if (step.do === 'crash') await query(makeVisible(job.physical, [job]))
        if (step.do === 'release') await query(release(job.physical, [job], null, job))
        return
      }
      case 'cancel': {
        const rows = await this.#bench.rows(physicals[step.queue]).catch(() => [])
        const row = rows[step.which % Math.max(1, rows.length)]
        if (row) await pgbus.cancel(queues[step.queue]!, Number(row.msg_id))
        break
      }
      case 'purge':
      case 'drop':
        await pgbus.queues[step.do](queues[step.queue]!)
        break
      case 'steal':
        // By hand, so that what it held is held until it is looked for.
        await db
          .query(
            `DELETE FROM pgmq.q_${physicals[step.queue]} WHERE ctid IN (SELECT ctid FROM pgmq.q_${physicals[step.queue]} LIMIT 1)`,
          )
          .catch(() => undefined)
        await this.reap()
        break
      case 'retryDead':
        await pgbus.deadLetters.retryAll()
        return
      case 'due':
        for (const physical of physicals)
          await db
            .query(`UPDATE pgmq.q_${physical} SET vt = clock_timestamp() WHERE read_ct = 0`)
            .catch(() => undefined)
        return
      case 'reap':
        return this.reap()
    }
    await this.#forgetEnded()
  }

  async claim(): Promise<void> {
    const { pgbus } = this.#bench
    const { rows } = await pgbus.db.query<ClaimManyRow>(claimMany(physicals, 1, 3_600_000))
    for (const { physical, msg_id, read_ct, message } of rows) {
      if (physical === null || msg_id === null) continue
      const stored = JSON.parse(message!)
      const job = {
        physical,
        msgId: msg_id,
        readCount: read_ct!,
        key: stored.pgbus_concurrency_key,
        lock: stored.pgbus_uniqueness_key,
        unlock: stored.pgbus_uniqueness_strategy === 'while_executing',
      }
      if (needsAdmission(message)) {
        const { rows: answers } = await pgbus.db.query<{ answer: string }>(
          admit(physical, job, {}, 1, physical),
        )
        if (answers[0]?.answer === 'wait') await pgbus.db.query(release(physical, [job], 0, job))
        if (answers[0]?.answer !== 'run') continue
      }
      this.#running.push(job)
    }
  }

  async reap(): Promise<void> {
    const { db } = this.#bench
    await db.query('SELECT pgbus_reap_locks(0), pgbus_reap_slots()')
    await db.query('SELECT pgbus_promote(key) FROM pgbus_waited_keys() AS key')
  }

  /** Those whose messages others took away. */
  async #forgetEnded(): Promise<void> {
    const there = new Set<string>()
    for (const physical of physicals)
      for (const row of await this.#bench.rows(physical).catch(() => []))
        there.add(`${physical} ${row.msg_id} ${row.read_ct}`)
    for (let at = this.#running.length - 1; at >= 0; at -= 1) {
      const { physical, msgId, readCount } = this.#running[at]!
      if (!there.has(`${physical} ${msgId} ${readCount}`)) this.#running.splice(at, 1)
    }
  }

  /** What is wrong with what is held; empty: nothing. */
  async flaws(): Promise<string[]> {
    const { db } = this.#bench
    const flaws: string[] = []
    for (const [key, limit] of Object.entries(limitOf)) {
      const now = this.#running.filter(job => job.key === key).length
      if (now > limit) flaws.push(`${now} of ${key} run`)
    }
    const runningLocks = this.#running.filter(job => job.unlock).map(job => job.lock)
    if (new Set(runningLocks).size < runningLocks.length) flaws.push('two with one lock run')
    const messages: { at: string; slot: boolean; message: Record<string, unknown> }[] = []
    for (const physical of physicals)
      for (const row of await this.#bench.rows(physical).catch(() => []))
        messages.push({
          at: `${physical} ${row.msg_id}`,
          slot: 'pgbus_concurrency_key' in row.message && !('pgbus_limit' in row.message),
          message: row.message,
        })
    const there = new Set(messages.map(({ at }) => at))
    const slots = await db.query<{ at: string; key: string }>(
      `SELECT queue_name || ' ' || msg_id AS at, key FROM pgbus_semaphore_slots`,
    )
    const slotted = new Set(slots.map(({ at }) => at))
    for (const { at } of slots) if (!there.has(at)) flaws.push(`the slot of ${at} has no message`)
    for (const { at, slot } of messages) if (slot && !slotted.has(at)) flaws.push(`${at} has no slot`)
    const counts = await db.query<{ key: string; value: number; max_value: number }>(
      'SELECT * FROM pgbus_semaphores',
    )
    for (const { key, value, max_value } of counts) {
      const own = slots.filter(slot => slot.key === key).length
      if (value !== own) flaws.push(`${key} counts ${value} instead of ${own}`)
      if (value > max_value) flaws.push(`${key} has ${value} of ${max_value}`)
    }
    const blocked = await db.query<{ key: string; lock: string | null }>(
      `SELECT concurrency_key AS key, payload ->> 'pgbus_uniqueness_key' AS lock FROM pgbus_blocked_executions`,
    )
    for (const { key } of blocked) {
      const count = counts.find(row => row.key === key)
      if (!count || count.value < count.max_value) flaws.push(`a job of ${key} waits although there is room`)
    }
    const locks = await db.query<{ lock: string; at: string | null }>(
      `SELECT lock_key AS lock, CASE WHEN msg_id > 0 THEN queue_name || ' ' || msg_id END AS at FROM pgbus_uniqueness_keys`,
    )
    for (const { physical, msgId, lock } of this.#running.filter(job => job.unlock))
      if (!locks.some(row => row.lock === lock && row.at === `${physical} ${msgId}`))
        flaws.push(`${physical} ${msgId} runs without its lock`)
    for (const { lock, at } of locks) {
      const alive =
        at === null
          ? blocked.some(row => row.lock === lock)
          : messages.some(row => row.at === at && row.message.pgbus_uniqueness_key === lock)
      if (!alive) flaws.push(`the lock ${lock} of ${at ?? 'a waiting job'} has no job`)
    }
    for (const { lock } of blocked)
      if (lock !== null && !locks.some(row => row.lock === lock && row.at === null))
        flaws.push(`a waiting job has no lock ${lock}`)
    return flaws
  }

  /** What a run that failed left behind. */
  async clear(): Promise<void> {
    const { pgbus, db } = this.#bench
    for (const { physical } of await pgbus.queues.list()) await db.query(`TRUNCATE pgmq.q_${physical}`)
    await db.query(
      'TRUNCATE pgbus_semaphores, pgbus_semaphore_slots, pgbus_blocked_executions, pgbus_uniqueness_keys',
    )
  }

  /** Lets everything end. */
  async finish(): Promise<void> {
    const { pgbus } = this.#bench
    await this.take({ do: 'due' })
    for (let turn = 0; turn < 1_000; turn += 1) {
      const before = this.#running.length
      await this.claim()
      if (this.#running.length === before && this.#running.length === 0) {
        const [left] = await this.#bench.db.query<{ n: number }>(
          'SELECT count(*)::int AS n FROM pgbus_blocked_executions',
        )
        const waiting = (await pgbus.queues.metrics()).filter(({ kind }) => kind === 'job')
        if (left!.n === 0 && waiting.every(({ length }) => length === 0)) return
      }
      await this.take({ do: 'archive', which: turn })
    }
    throw new Error('it did not come to an end')
  }
}

t.test('given random enqueues, ends, crashes, purges and repairs', async t => {
  const bench = await setup(t)
  const { db } = bench

  t.test('when they follow each other, then nothing is held that should not be, and all ends', async t => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 40, size: 'max' }), async steps => {
        const world = new World(bench)
        await world.clear()
        for (const [index, one] of steps.entries()) {
          await world.take(one)
          assert.deepEqual(await world.flaws(), [], `after ${index}: ${JSON.stringify(one)}`)
        }
        await world.finish()
        assert.deepEqual(
          await db.query(
            `SELECT key FROM pgbus_semaphores UNION ALL SELECT key FROM pgbus_semaphore_slots
             UNION ALL SELECT lock_key FROM pgbus_uniqueness_keys UNION ALL SELECT concurrency_key FROM pgbus_blocked_executions`,
          ),
          [],
        )
      }),
      { numRuns: 12 },
    )
    t.pass()
  })
})
