import { once } from 'node:events'
import { setTimeout as wait } from 'node:timers/promises'
import t from 'tap'
import { z } from 'zod'
import { deferred } from '../../lib/core/deferred.ts'
import { DiscardJob, RetryJob } from '../../lib/jobs/control.ts'
import { defineJob } from '../../lib/jobs/define.ts'
import { waitFor } from '../support/wait-for.ts'
import { drained, setup } from './support.ts'

t.test('given handlers that fail', async t => {
  const bench = await setup(t)
  const { pgbus, rows, failures, lines } = bench
  await bench.work()
  const settled = async (name: string, args: unknown = null) => {
    await pgbus.enqueue(name, args)
    await drained(bench)
  }

  t.test('when one fails at first, then it runs again, and its record goes when it succeeds', async t => {
    const attempts: number[] = []
    const gate = deferred()
    defineJob({ name: 'fails-once', retry: () => 0 }, async (_args, { job }) => {
      attempts.push(job.attempt)
      if (job.attempt === 1) throw new TypeError('not yet')
      await gate.promise
    })
    await pgbus.enqueue('fails-once', { secret: 'arg' })
    await waitFor(() => attempts.length === 2)
    const [failure] = await failures()
    t.match(failure, {
      queue_name: 'default',
      error_class: 'TypeError',
      error_message: 'not yet',
      retry_count: 0,
    })
    t.match(failure?.backtrace, /executor\.test/)
    gate.resolve()
    await drained(bench)
    t.same(await failures(), [])
    t.same(attempts, [1, 2])
    t.ok(lines.some(line => line.level === 'error' && line.fields.action === 'execute_job'))
    t.notMatch(JSON.stringify(lines), 'secret')
  })

  t.test('when a job keeps no archive, then it is deleted, with the record of its failure', async t => {
    defineJob({ name: 'unarchived', archive: false, retry: () => 0 }, (_args, { job }) => {
      if (job.attempt === 1) throw new Error('not yet')
    })
    const before = await bench.archived()
    await settled('unarchived')
    t.equal(await bench.archived(), before)
    t.same(await failures(), [])
  })

  t.test('when one always fails, then it is buried after its attempts, with its error', async t => {
    const attempts: number[] = []
    defineJob({ name: 'fails-always', maxAttempts: 3, retry: () => 0 }, (_args, { job }) => {
      attempts.push(job.attempt)
      throw new Error(`attempt ${job.attempt}`)
    })
    await settled('fails-always')
    t.same(attempts, [1, 2, 3])
    const [dead] = await rows('pgbus_default_dlq')
    t.match(dead, {
      read_ct: 0,
      message: { job_class: 'fails-always' },
      headers: {
        pgbus_dead_letter: {
          queue: 'pgbus_default',
          read_ct: 3,
          error_class: 'Error',
          error_message: 'attempt 3',
          failed_at: /^\d{4}-/,
        },
      },
    })
    t.same(await failures(), [])
    t.same(await bench.archived(), 1, 'only the one that succeeded')
  })

  t.test('when its policy says so, then it is discarded or buried at once', async t => {
    defineJob({ name: 'fails-dead', retry: () => 'dead' }, () => {
      throw new Error('hopeless')
    })
    defineJob({ name: 'fails-discard', retry: () => 'discard' }, () => {
      throw new Error('pointless')
    })
    const before = await bench.archived()
    await settled('fails-dead')
    await settled('fails-discard')
    t.equal((await rows('pgbus_default_dlq')).length, 2)
    t.equal(await bench.archived(), before + 1)
  })

  t.test('when it throws DiscardJob, then it is archived without a record', async t => {
    defineJob({ name: 'throws-discard' }, () => {
      throw new DiscardJob('the order is gone')
    })
    const before = await bench.archived()
    await settled('throws-discard')
    t.equal(await bench.archived(), before + 1)
    t.ok(lines.some(line => line.level === 'info' && line.fields.reason === 'the order is gone'))
  })

  t.test('when it throws RetryJob, then it waits as asked, counts, and is not reported', async t => {
    const attempts: number[] = []
    defineJob({ name: 'throws-retry', maxAttempts: 2 }, (_args, { job }) => {
      attempts.push(job.attempt)
      t.throws(() => new RetryJob({ delay: 'soon' }), TypeError)
      t.throws(() => new RetryJob({ delay: '6000w' }), RangeError)
      throw new RetryJob({ delay: '50ms', reason: 'busy' })
    })
    lines.length = 0
    await settled('throws-retry')
    t.same(attempts, [1, 2])
    t.notOk(lines.some(line => line.fields.action === 'execute_job'))
    t.match((await rows('pgbus_default_dlq')).at(-1)?.headers, {
      pgbus_dead_letter: { error_class: 'RetryJob', error_message: 'busy' },
    })
  })

  t.test('when the job is unknown, then the record says what to do', async t => {
    await pgbus.enqueue('constructor', 1)
    const failure = await waitFor(async () => (await failures())[0])
    t.match(failure, {
      error_class: 'UnknownJobError',
      error_message: /no handler for job "constructor" in queue "default".*imports/,
    })
    await pgbus.queues.purge('default')
    await bench.db.query('DELETE FROM pgbus_failed_events')
  })

  t.test('when the stored arguments no longer fit the schema, then the handler does not run', async t => {
    let ran = false
    await pgbus.enqueue('fails-schema', { id: 1 }, { delay: '100ms' })
    defineJob({ name: 'fails-schema', schema: z.object({ id: z.string() }), retry: () => 'dead' }, () => {
      ran = true
    })
    await drained(bench)
    t.notOk(ran)
    t.match((await rows('pgbus_default_dlq')).at(-1)?.headers, {
      pgbus_dead_letter: { error_class: 'SerializationError' },
    })
  })

  t.test('when a __proto__ written by SQL arrives, then it harms nobody', async t => {
    const got = deferred<Record<string, unknown>>()
    defineJob<Record<string, unknown>>({ name: 'gets-proto' }, args => got.resolve(args))
    await bench.db.query('SELECT pgmq.send($1, $2::jsonb)', [
      'pgbus_default',
      '{"job_class":"gets-proto","arguments":[{"__proto__":{"admin":true},"a":1}]}',
    ])
    const args = await got.promise
    t.same(Object.keys(args), ['a'])
    t.equal(args.admin, undefined)
    t.equal(({} as { admin?: boolean }).admin, undefined)
  })
})

t.test('given bodies that are no jobs', async t => {
  // More failures in a row than the queue's breaker lets pass.
  const bench = await setup(t, {
    maxRetries: 2,
    retry: { base: '1s', max: '1s', jitter: 0 },
    circuitBreaker: { enabled: false },
  })

  t.test('when they have been read often enough, then they are buried, and jobs go on', async t => {
    await bench.pgbus.queues.ensure('default')
    const bodies = ['1', '"text"', '[]', 'null', '{"job_class":5}', '{"job_class":"x","arguments":{}}']
    for (const body of bodies)
      await bench.db.query('SELECT pgmq.send($1, $2::jsonb)', ['pgbus_default', body])
    await bench.db.query('INSERT INTO pgmq.q_pgbus_default (vt, message) VALUES (now(), NULL)')
    await bench.work()
    await drained(bench)
    t.equal((await bench.rows('pgbus_default_dlq')).length, bodies.length + 1)
    t.same(await bench.failures(), [])
  })
})

t.test('given a limit of attempts', async t => {
  const bench = await setup(t, { maxRetries: 0 })

  t.test('when it is zero, then a job runs once', async t => {
    let runs = 0
    defineJob({ name: 'limit-zero' }, () => {
      runs += 1
      throw new Error('once')
    })
    await bench.pgbus.enqueue('limit-zero', null)
    await bench.work()
    await drained(bench)
    t.equal(runs, 1)
    t.equal((await bench.rows('pgbus_default_dlq')).length, 1)
  })

  t.test(
    'when a message was read too often already, then it is buried unrun, with what is known',
    async t => {
      let runs = 0
      defineJob({ name: 'limit-passed', maxAttempts: 3 }, () => {
        runs += 1
      })
      const { msgId } = await bench.pgbus.enqueue('limit-passed', null, { delay: '300ms' })
      await bench.db.query('UPDATE pgmq.q_pgbus_default SET read_ct = 3')
      await bench.db.query(
        "INSERT INTO pgbus_failed_events (queue_name, msg_id, error_class, error_message) VALUES ('default', $1, 'Error', 'last words')",
        [msgId],
      )
      await drained(bench)
      t.equal(runs, 0)
      t.match((await bench.rows('pgbus_default_dlq')).at(-1)?.headers, {
        pgbus_dead_letter: { read_ct: 4, error_message: 'last words' },
      })
      t.same(await bench.failures(), [])
    },
  )
})

t.test('given handlers that throw anything', async t => {
  // More failures in a row than the queue's breaker lets pass.
  const bench = await setup(t, {
    retry: { base: 3_600_000, max: 3_600_000, jitter: 0 },
    circuitBreaker: { enabled: false },
  })
  const cyclic = new Error('cyclic')
  cyclic.cause = cyclic
  const things: unknown[] = [
    undefined,
    null,
    0,
    '',
    'x'.repeat(5_000_000),
    Object.freeze({ frozen: true }),
    {
      get message() {
        throw new Error('no')
      },
    },
    cyclic,
    new AggregateError(Array.from({ length: 1_000 }, (_, i) => new Error(`part ${i}`))),
    Object.freeze(new Error('frozen error')),
    'with \0 inside',
  ]
  defineJob<number>({ name: 'throws-anything' }, index => {
    throw things[index]
  })

  t.test('when they do, then each is recorded readably and bounded, and the worker goes on', async t => {
    const worker = await bench.work({ concurrency: 2 })
    await bench.pgbus.enqueueMany(things.map((_, args) => ({ job: 'throws-anything', args })))
    await waitFor(async () => (await bench.failures()).length === things.length)
    for (const failure of await bench.failures()) {
      t.ok(failure.error_message.length > 0 || failure.error_class === 'AggregateError')
      t.ok(failure.error_message.length <= 10_000)
      t.ok((failure.backtrace ?? '').length < 60_000)
    }
    await waitFor(() => worker.stats().inFlight === 0)
    t.match(worker.stats(), { state: 'running', failed: things.length })
  })

  t.test('when a thenable never settles, then its timeout ends it and the slot is free', async t => {
    // biome-ignore lint/suspicious/noThenProperty: a thenable is the case
    defineJob({ name: 'throws-never', timeout: '50ms', retry: () => 'dead' }, () => ({ then() {} }))
    defineJob({ name: 'throws-thenable', retry: () => 'dead' }, () => ({
      // biome-ignore lint/suspicious/noThenProperty: a thenable is the case
      get then() {
        throw new Error('bad thenable')
      },
    }))
    await bench.pgbus.queues.ensure('thenables')
    const worker = await bench.work({ queues: ['thenables'], concurrency: 1 })
    await bench.pgbus.enqueueMany(
      ['throws-never', 'throws-thenable'].map(job => ({ job, args: null, queue: 'thenables' })),
    )
    await drained(bench, 'pgbus_thenables')
    const dead = await bench.rows('pgbus_thenables_dlq')
    t.match(
      dead.map(row => row.headers?.pgbus_dead_letter),
      [
        { error_class: 'JobTimeoutError', error_message: 'job "throws-never" ran longer than 50 ms' },
        { error_class: 'Error', error_message: 'bad thenable' },
      ],
    )
    await waitFor(() => worker.stats().inFlight === 0)
  })
})

t.test('given a timeout', async t => {
  const bench = await setup(t, { jobTimeout: '50ms', maxRetries: 1 })
  await bench.work()

  t.test(
    'when it passes, then the signal aborts and the attempt failed, whatever the handler makes of it',
    async t => {
      const reasons: string[] = []
      for (const ending of ['returns', 'throws']) {
        defineJob({ name: `timeout-${ending}` }, async (_args, { signal }) => {
          await once(signal, 'abort')
          reasons.push((signal.reason as Error).name)
          if (ending === 'throws') throw new Error('something else')
        })
        await bench.pgbus.enqueue(`timeout-${ending}`, null)
      }
      await drained(bench)
      t.same(reasons, ['JobTimeoutError', 'JobTimeoutError'])
      const dead = await bench.rows('pgbus_default_dlq')
      for (const { headers } of dead)
        t.match(headers, { pgbus_dead_letter: { error_class: 'JobTimeoutError' } })
      t.equal(dead.length, 2)
    },
  )

  t.test('when a job has none of its own, then it may take its time', async t => {
    defineJob({ name: 'timeout-none', timeout: null }, () => wait(120))
    await bench.pgbus.enqueue('timeout-none', null)
    await drained(bench)
    t.equal(await bench.archived(), 1)
  })
})
