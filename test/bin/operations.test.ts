import { tmpdir } from 'node:os'
import t from 'tap'
import { defineJob } from '../../lib/jobs/define.ts'
import { compiled, spawnNode } from '../support/spawn.ts'
import { setup } from './run-command.ts'

t.test('given an operator at a terminal', async t => {
  const { db, pgbus, run } = await setup(t)

  t.test('when nothing is there, then each command says so and succeeds', async t => {
    for (const [args, pattern] of [
      [['status'], /no process is registered/],
      [['queues', 'list'], /there is no queue yet/],
      [['dlq', 'list'], /^0 dead letters/],
    ] as const) {
      const { code, stdout } = await run(...args)
      t.equal(code, 0)
      t.match(stdout, pattern)
    }
  })

  t.test('when there are processes, then it is told how they are', async t => {
    await db.query(`INSERT INTO pgbus_processes (kind, hostname, pid, metadata, last_heartbeat_at, created_at, updated_at)
SELECT kind, 'there', pid, metadata::jsonb || jsonb_build_object('loop_tick_at', extract(epoch FROM clock_timestamp()) - tick),
       now AT TIME ZONE 'UTC' - silence * interval '1 s', now, now
  FROM clock_timestamp() AS now, (VALUES ('worker', 1, 0, 1, '{"queues":["mail"],"busy":1,"capacity":5}'),
    ('worker', 2, 0, 95, '{}'), ('supervisor', 3, 400, 0, '{}')) AS v (kind, pid, silence, tick, metadata)`)
    const { code, stdout } = await run('status')
    t.equal(code, 0)
    t.match(stdout, /^supervisor +there +3 +40\d +stale/m)
    t.match(stdout, /^worker +there +1 +\d +healthy +mail +1\/5$/m)
    t.match(stdout, /^worker +there +2 +\d +stalled/m)
    t.match((await run('status', '--json')).json(), {
      processes: [
        { kind: 'supervisor', host: 'there', pid: 3, heartbeatAge: Number, status: 'stale' },
        { kind: 'worker', pid: 1, status: 'healthy', metadata: { queues: ['mail'] } },
        { kind: 'worker', pid: 2, status: 'stalled' },
      ],
    })
    await db.query('DELETE FROM pgbus_processes')
  })

  t.test('when there are queues, then they are counted, paused and resumed', async t => {
    await pgbus.enqueueMany([1, 2, 3].map(args => ({ job: 'send', args, queue: 'mail' })))
    t.match((await run('queues', 'list')).stdout, /QUEUE +DEPTH.*\npgbus_mail +3 +3 +\d+ +3$/m)
    t.match(
      (await run('queues', 'pause', 'mail', '--reason', 'provider down')).stdout,
      'queue "mail" is paused',
    )
    t.match((await run('queues', 'list', '--json')).json(), {
      queues: [{ name: 'mail', physical: 'pgbus_mail', length: 3, paused: true }],
    })
    t.match((await run('queues', 'resume', 'mail', '--json')).json(), { queue: 'mail', paused: false })
    const wrong = await run('queues', 'pause', 'mial')
    t.equal(wrong.code, 1)
    t.match(wrong.output, /^pgbus: there is no queue "mial"; did you mean "mail"\?\n$/)
  })

  t.test('when there are unique jobs, then their locks are listed and discarded', async t => {
    const sole = defineJob({ name: 'sole', unique: {} }, () => undefined)
    t.match((await run('locks', 'list')).stdout, /^no unique job waits or runs/)
    await sole.enqueue(null, { pgbus, queue: 'sole' })
    t.match((await run('locks', 'list')).stdout, /^KEY +QUEUE +JOB +SINCE\nsole +sole +1 +20/)
    t.match(await run('locks', 'discard', 'sole'), {
      code: 1,
      output: /nothing was changed, repeat with --yes/,
    })
    t.match((await run('locks', 'discard', 'sole', '--yes', '--json')).json(), {
      key: 'sole',
      discarded: true,
    })
    t.match(await run('locks', 'discard', 'sole', '--yes'), { code: 1, stdout: /there is no lock "sole"/ })
    await pgbus.queues.drop('sole')
  })

  t.test('when there are jobs, then they are listed, shown and cancelled', async t => {
    t.match(
      (await run('jobs', 'list', 'mail')).stdout,
      /^ID +JOB +STATE.*\n 1 +send +ready +0 .*\n(.*\n)*3 jobs\n$/,
    )
    t.match((await run('jobs', 'list', 'mail', '--state', 'running', '--json')).json(), {
      total: 0,
      jobs: [],
    })
    t.match((await run('jobs', 'show', 'mail', '2', '--json')).json(), {
      msgId: 2,
      message: { arguments: [2] },
    })
    t.match((await run('jobs', 'cancel', 'mail', '2', '--reason', 'twice', '--json')).json(), {
      status: 'cancelled',
    })
    t.match((await run('jobs', 'show', 'mail', '2')).stdout, /"state": "cancelled"/)
    const again = await run('jobs', 'cancel', 'mail', '2')
    t.equal(again.code, 1)
    t.match(again.stdout, /has no job 2 \(any more\); nothing was changed/)
    t.match(await run('jobs', 'cancel', 'mail', 'x'), {
      code: 1,
      output: /the id of a job is a number, got "x"/,
    })
    await pgbus.enqueue('send', 2, { queue: 'mail' })
  })

  t.test('when there are recurring tasks, then they are listed, switched off and on, and run', async t => {
    t.match((await run('recurring', 'list')).stdout, /there is no recurring task/)
    await pgbus.recurring.upsert('nightly', { job: 'send', schedule: '30 2 * * *', queue: 'nights', args: 7 })
    t.match(
      (await run('recurring', 'list')).stdout,
      /^KEY +JOB +SCHEDULE.*\nnightly +send +30 2 \* \* \* +UTC +- +\d{4}-/,
    )
    t.match((await run('recurring', 'disable', 'nightly')).stdout, 'task "nightly" is disabled')
    t.match((await run('recurring', 'list', '--json')).json(), {
      tasks: [{ key: 'nightly', enabled: false, nextRun: null }],
    })
    t.match((await run('recurring', 'enable', 'nightly', '--json')).json(), { key: 'nightly', enabled: true })
    t.match((await run('recurring', 'run', 'nightly', '--json')).json(), { queue: 'nights', msgId: 1 })
    t.match(await pgbus.jobs.get('nights', 1), {
      message: { arguments: [7] },
      headers: { 'pgbus.recurring_key': 'nightly', 'pgbus.recurring_manual': true },
    })
    const wrong = await run('recurring', 'run', 'daily')
    t.equal(wrong.code, 1)
    t.match(wrong.output, /daily/)
    await pgbus.recurring.remove('nightly')
    await pgbus.queues.drop('nights')
  })

  t.test('when something is to be deleted, then only with --yes', async t => {
    const refused = await run('queues', 'purge', 'mail')
    t.equal(refused.code, 1)
    t.match(refused.output, /would delete 3 jobs of queue "mail"; nothing was changed/)
    t.equal((await pgbus.queues.metrics('mail'))[0]?.length, 3)
    t.match((await run('queues', 'purge', 'mail', '--yes', '--json')).json(), { deleted: 3 })
    t.match((await run('queues', 'drop', 'mail', '--yes')).stdout, 'queue "mail" is dropped')
    t.same(await pgbus.queues.list(), [])
  })

  t.test('when there are dead letters, then they are shown, retried and discarded', async t => {
    await pgbus.queues.ensure('mail')
    await pgbus.queues.ensurePhysical('pgbus_mail_dlq', 'dlq')
    for (const n of [1, 2, 3]) {
      await db.query('SELECT pgmq.send($1, $2::jsonb, $3::jsonb)', [
        'pgbus_mail_dlq',
        { job_class: 'send', arguments: [n] },
        {
          pgbus_dead_letter: {
            queue: 'pgbus_mail',
            read_ct: 5,
            error_class: 'Error',
            error_message: `no ${n}`,
          },
        },
      ])
    }
    const listed = (await run('dlq', 'list')).stdout
    t.match(listed, /^ *3 +mail +send +5 +\S+ +Error: no 3$/m)
    t.match(listed, /^3 dead letters$/m)
    t.match((await run('dlq', 'show', '2', '--json')).json(), { msgId: 2, message: { arguments: [2] } })
    t.match((await run('dlq', 'retry', '1')).stdout, /^message \d+ of queue "mail"/)
    t.match((await run('dlq', 'retry', '--all', '--json')).json(), { retried: 2 })
    t.equal((await pgbus.queues.metrics('mail'))[0]?.length, 3)
    const missing = await run('dlq', 'discard', '1', '--yes')
    t.equal(missing.code, 1)
    t.match(missing.output, 'there is no dead letter 1')
    t.match((await run('dlq', 'discard')).output, 'give the id of one dead letter, or --all')
    t.match((await run('dlq', 'discard', 'x', '--yes')).output, 'is a number, got "x"')
    const refused = await run('dlq', 'discard', '--all')
    t.equal(refused.code, 1)
    t.match(refused.output, 'would delete 0 dead letters for ever')
  })
})

t.test('given no database', async t => {
  t.test('when a command needs it, then it is named without its password', async t => {
    const { exited, output } = spawnNode(t, compiled('bin/pgbus.ts'), ['queues', 'list'], {
      cwd: tmpdir(),
      env: { PGBUS_DATABASE_URL: 'postgres://app:very-secret@127.0.0.1:1/orders' },
    })
    t.match(await exited, { code: 1 })
    t.match(output(), /127\.0\.0\.1.*orders/)
    t.notMatch(output(), 'very-secret')
  })
})
