import t from 'tap'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { deferred } from '../../lib/core/deferred.ts'
import { ClosedError } from '../../lib/core/errors.ts'
import { HealthProbe } from '../../lib/health/probe.ts'
import type { HealthStatus, HealthVerdict } from '../../lib/health/verdict.ts'
import { quiet } from '../support/quiet-log.ts'
import { waitFor } from '../support/wait-for.ts'

const verdict = (status: HealthStatus): HealthVerdict => ({
  status,
  reasons: [],
  signals: [{ code: 'DLQ_NOT_EMPTY', severity: 'degraded', count: 1, queues: ['pgbus_x_dlq'] }],
  checkedAt: new Date(0),
  summary: {
    queues: 1,
    totalVisible: 2,
    totalDepth: 3,
    workers: 4,
    stalledWorkers: 5,
    staleProcesses: 6,
    oldestTransactionAge: null,
  },
})

/** A probe of a cluster whose state the test tells. */
function setup(cacheTtl: number | string = 0) {
  const rig = { checks: 0, reports: 0, check: async () => verdict('OK') }
  const config = resolveConfig(
    {
      databaseUrl: 'postgres://app:p%40ss@db/shop',
      streams: { secret: 'the secret of streams' },
      health: { cacheTtl },
    },
    {},
  )
  const probe = new HealthProbe({
    check: () => {
      rig.checks += 1
      return rig.check()
    },
    config,
    log: quiet,
    report: () => {
      rig.reports += 1
    },
  })
  return Object.assign(rig, { probe, ready: async () => probe.answer('GET', '/readyz') })
}

t.test('given the probes of a cluster', async t => {
  t.test('when it is well, degraded, or stands still, then only the last is not ready', async t => {
    const rig = setup()
    for (const [status, code] of [
      ['OK', 200],
      ['DEGRADED', 200],
      ['STALLED', 503],
    ] as const) {
      rig.check = async () => verdict(status)
      const reply = await rig.ready()
      t.equal(reply.code, code, status)
      t.strictSame(reply.headers, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' })
      t.strictSame(JSON.parse(reply.body), {
        status,
        reasons: [],
        signals: [{ code: 'DLQ_NOT_EMPTY', severity: 'degraded', count: 1, queues: ['pgbus_x_dlq'] }],
        checked_at: '1970-01-01T00:00:00.000Z',
        summary: {
          queues: 1,
          total_visible: 2,
          total_depth: 3,
          workers: 4,
          stalled_workers: 5,
          stale_processes: 6,
          oldest_transaction_age_sec: null,
        },
      })
    }
    t.equal(rig.reports, 0)
  })

  t.test('when many ask at once, then the cluster is looked at once', async t => {
    const rig = setup()
    const looked = deferred()
    rig.check = () => looked.promise.then(() => verdict('OK'))
    const replies = Array.from({ length: 100 }, () => rig.ready())
    looked.resolve()
    t.equal(new Set(await Promise.all(replies)).size, 1)
    t.equal(rig.checks, 1)
    await rig.ready()
    t.equal(rig.checks, 2, 'an answer without a life time is for those that asked meanwhile')
  })

  t.test('when an answer is young, then it serves again, whether good or bad', async t => {
    const rig = setup('1h')
    rig.check = async () => {
      throw new TypeError('away')
    }
    const first = await rig.ready()
    t.equal(await rig.ready(), first)
    t.equal(rig.checks, 1)
  })

  t.test('when its time is over, then the cluster is looked at again', async t => {
    const rig = setup('20ms')
    await rig.ready()
    rig.check = async () => verdict('STALLED')
    t.ok(await waitFor(async () => (await rig.ready()).code === 503))
  })

  t.test('when it cannot be told, then it is not ready, and one report is made until it can', async t => {
    const rig = setup()
    rig.check = async () => {
      throw new AggregateError([new Error('::1 refuses'), new Error('127.0.0.1 refuses')])
    }
    for (let probes = 0; probes < 3; probes += 1) {
      const { code, body } = await rig.ready()
      t.equal(code, 503)
      t.strictSame(JSON.parse(body), { status: 'ERROR', error: '::1 refuses, 127.0.0.1 refuses' })
    }
    t.equal(rig.reports, 1)
    rig.check = async () => verdict('OK')
    t.equal((await rig.ready()).code, 200)
    rig.check = async () => {
      throw new Error('again')
    }
    await rig.ready()
    t.equal(rig.reports, 2)
  })

  t.test('when the application ends, then it is not ready, and nothing is reported', async t => {
    const rig = setup()
    rig.check = async () => {
      throw new ClosedError('closed')
    }
    t.equal((await rig.ready()).code, 503)
    t.equal(rig.reports, 0)
  })

  t.test('when an error quotes secrets, then the answer does not', async t => {
    const rig = setup()
    rig.check = async () => {
      throw new Error(
        'cannot parse postgres://app:p%40ss@db/shop, p@ss is wrong, so is p%40ss and the secret of streams',
      )
    }
    const { body } = await rig.ready()
    t.equal(
      JSON.parse(body).error,
      'cannot parse postgres://app:[REDACTED]@db/shop, [REDACTED] is wrong, so is [REDACTED] and [REDACTED]',
    )
  })

  t.test('when it is asked whether it lives, then nothing is looked at', async t => {
    const rig = setup()
    rig.check = () => new Promise(() => undefined)
    void rig.ready()
    const reply = rig.probe.answer('GET', '/livez')
    t.match(reply, { code: 200, body: 'ok' })
    t.match(rig.probe.answer('HEAD', '/readyz'), { code: 405, headers: { Allow: 'GET' } })
    t.match(rig.probe.answer('GET', '/readyz/'), { code: 404, body: 'pgbus: not found' })
    t.equal(rig.checks, 1)
  })
})
