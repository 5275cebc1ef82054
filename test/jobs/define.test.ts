import { spawnSync } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t from 'tap'
import { z } from 'zod'
import { openInstances, runningHandler } from '../../lib/core/context.ts'
import { ConfigurationError } from '../../lib/core/errors.ts'
import { DiscardJob, isDiscardJob, isRetryJob, RetryJob } from '../../lib/jobs/control.ts'
import { defineJob, findJob, type Job } from '../../lib/jobs/define.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import { compiled } from '../support/spawn.ts'

const handler = () => undefined

t.test('given options that are wrong', async t => {
  const cases: [name: string, options: object, text: RegExp][] = [
    ['no name', {}, /name must be a string of 1 to 255 characters, got undefined/],
    ['an empty name', { name: '' }, /name must be/],
    ['a long name', { name: 'x'.repeat(256) }, /name must be/],
    ['a misspelt option', { name: 'wrong', priorty: 1 }, /job "wrong": unknown option "priorty"/],
    ['a queue with a dash', { name: 'wrong', queue: 'my-queue' }, /job "wrong": queue must be .*"my-queue"/],
    ['a negative priority', { name: 'wrong', priority: -1 }, /job "wrong": priority/],
    ['a fractional priority', { name: 'wrong', priority: 1.5 }, /job "wrong": priority/],
    ['no attempts', { name: 'wrong', maxAttempts: 0 }, /job "wrong": maxAttempts/],
    ['a timeout of words', { name: 'wrong', timeout: 'soon' }, /job "wrong": timeout/],
    ['a timeout of nothing', { name: 'wrong', timeout: 0 }, /job "wrong": timeout/],
    ['a retry of words', { name: 'wrong', retry: '5s' }, /job "wrong": retry/],
    ['an unknown part of retry', { name: 'wrong', retry: { factor: 2 } }, /job "wrong": retry has only/],
    ['a bad jitter', { name: 'wrong', retry: { jitter: 2 } }, /job "wrong": retry\.jitter/],
    ['a bad base', { name: 'wrong', retry: { base: 'x' } }, /job "wrong": retry\.base/],
    ['a base above its max', { name: 'wrong', retry: { base: '2m', max: '1m' } }, /base must not be above/],
    [
      'an endless base',
      { name: 'wrong', retry: { base: `${'9'.repeat(400)}w` } },
      /job "wrong": retry\.base/,
    ],
    ['a renew of words', { name: 'wrong', renew: 'no' }, /job "wrong": renew must be true or false/],
    ['an archive of words', { name: 'wrong', archive: 0 }, /job "wrong": archive must be true or false/],
    ['a schema that is none', { name: 'wrong', schema: {} }, /job "wrong": schema/],
  ]
  for (const [name, options, message] of cases) {
    t.test(`when a job has ${name}, then a TypeError names it`, async t => {
      t.throws(() => defineJob(options as { name: string }, handler), { name: 'TypeError', message })
    })
  }

  t.test('when there is no handler, then a TypeError says so', async t => {
    t.throws(() => defineJob({ name: 'wrong' }, undefined as unknown as () => void), TypeError)
    t.equal(findJob('wrong'), undefined, 'nothing of all this was kept')
  })
})

t.test('given names', async t => {
  t.test('when a name is that of something in Object.prototype, then it is a name like others', async t => {
    t.equal(findJob('__proto__'), undefined)
    t.equal(findJob('constructor'), undefined)
    t.equal(defineJob({ name: '__proto__' }, handler).name, '__proto__')
    t.equal(findJob('__proto__')?.name, '__proto__')
  })

  t.test('when a name is taken by another handler, then the error names both places', async t => {
    defineJob({ name: 'taken' }, () => 1)
    t.throws(() => defineJob({ name: 'taken' }, () => 2), {
      name: 'TypeError',
      message:
        /job "taken" is defined twice: at .*define\.test\.[jt]s:\d+:\d+ and at .*define\.test\.[jt]s:\d+:\d+/,
    })
  })

  t.test('when a module is evaluated again, then its definition replaces the first', async t => {
    const file = join(mkdtempSync(join(tmpdir(), 'pgbus-define-')), 'job.mjs')
    const write = (result: number) =>
      writeFileSync(
        file,
        `import { defineJob } from ${JSON.stringify(pathToFileURL(compiled('lib/jobs/define.ts')).href)}
         defineJob({ name: 'reloaded' }, () => ${result})`,
      )
    write(1)
    await import(pathToFileURL(file).href)
    t.equal(findJob('reloaded')?.handler(undefined, undefined as never), 1)
    write(2)
    await import(`${pathToFileURL(file).href}?v=2`)
    t.equal(findJob('reloaded')?.handler(undefined, undefined as never), 2)
  })

  t.test('when two copies of the package define jobs, then they share the list', async t => {
    const url = pathToFileURL(compiled('lib/jobs/define.ts')).href
    const copy = (await import(`${url}?copy`)) as { findJob: typeof findJob }
    t.not(copy.findJob, findJob)
    t.equal(copy.findJob('taken')?.name, 'taken')
  })
})

t.test('given types', async t => {
  t.test('when the arguments are declared or have a schema, then handler and enqueue agree', async t => {
    const plain = defineJob<{ id: number }>({ name: 'typed-plain' }, async ({ id }) => id.toFixed())
    const checked = defineJob(
      { name: 'typed-schema', schema: z.object({ id: z.string().transform(Number) }) },
      async ({ id }) => id.toFixed(),
    )
    const jobs: [Job<{ id: number }>, Job<{ id: string }>] = [plain, checked]
    t.same(
      jobs.map(job => job.name),
      ['typed-plain', 'typed-schema'],
    )
  })
})

t.test('given a job and several instances', async t => {
  const calls: unknown[][] = []
  const instance = (name: string) =>
    ({
      enqueue: async (...call: unknown[]) => calls.push([name, ...call]),
      enqueueMany: async (...call: unknown[]) => calls.push([name, ...call]),
    }) as unknown as Pgbus
  const job = defineJob<number>({ name: 'which-instance' }, handler)
  const one = instance('one')
  const two = instance('two')
  t.teardown(() => {
    openInstances.delete(one)
    openInstances.delete(two)
  })

  t.test('when none is open, then the error says what to do', async t => {
    await t.rejects(job.enqueue(1), ConfigurationError)
    await t.rejects(job.enqueue(1), { message: /no pgbus instance is open.*pass \{ pgbus \}/ })
  })

  t.test('when one is open, then it is used', async t => {
    openInstances.add(one)
    await job.enqueue(1, { delay: '5s' })
    t.same(calls.pop(), ['one', 'which-instance', 1, { delay: '5s' }])
  })

  t.test('when two are open, then one must be given', async t => {
    openInstances.add(two)
    await t.rejects(job.enqueue(1), { message: /2 pgbus instances are open/ })
    await job.enqueue(2, { pgbus: two })
    t.same(calls.pop(), ['two', 'which-instance', 2, {}])
  })

  t.test('when a handler runs, then its instance is used', async t => {
    await runningHandler.run({ pgbus: two, log: undefined as never }, () => job.enqueue(3))
    t.same(calls.pop(), ['two', 'which-instance', 3, {}])
  })

  t.test('when many are enqueued, then shared options apply where an item says nothing', async t => {
    await job.enqueueMany([{ args: 1 }, { args: 2, priority: 9 }], { pgbus: one, priority: 3, queue: 'q' })
    t.same(calls.pop(), [
      'one',
      [
        { args: 1, priority: 3, queue: 'q', job: 'which-instance' },
        { args: 2, priority: 9, queue: 'q', job: 'which-instance' },
      ],
      { tx: undefined },
    ])
  })
})

t.test('given the words of a handler', async t => {
  t.test('when RetryJob is made, then its delay is checked', async t => {
    t.equal(new RetryJob({ delay: '2s' }).delay, 2_000)
    t.throws(() => new RetryJob({ delay: 'soon' }), TypeError)
  })

  t.test('when they are of another copy of the package, then they are known all the same', async t => {
    const url = pathToFileURL(compiled('lib/jobs/control.ts')).href
    const copy = (await import(`${url}?copy`)) as { RetryJob: typeof RetryJob; DiscardJob: typeof DiscardJob }
    t.ok(isRetryJob(new copy.RetryJob({ delay: 1 })))
    t.ok(isDiscardJob(new copy.DiscardJob('no')))
    t.notOk(isRetryJob(new DiscardJob('no')))
    t.notOk(isDiscardJob(new Error('no')))
  })
})

t.test('given a process that only defines jobs', async t => {
  t.test('when its module ends, then so does the process', async t => {
    const url = pathToFileURL(compiled('lib/jobs/define.ts')).href
    const script = `const { defineJob } = await import(${JSON.stringify(url)}); defineJob({ name: 'x' }, () => 1)`
    const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
      encoding: 'utf8',
      timeout: 20_000,
    })
    t.equal(status, 0, stderr)
  })
})
