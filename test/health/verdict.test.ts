import t from 'tap'
import { resolveConfig } from '../../lib/config/resolve.ts'
import type { Facts, ProcessFacts, QueueFacts } from '../../lib/health/facts.ts'
import { judge, type SignalCode } from '../../lib/health/verdict.ts'

const rules = {
  ...resolveConfig({ workers: [{ queues: ['default', 'mail'] }] }, {}),
  unreadGrace: 90_000,
  handlerQueues: ['on_refund'],
}
const everything = { ...rules, ...resolveConfig({ workers: [{ queues: ['*'] }] }, {}) }

/** A queue of jobs with nothing in it. */
const queue = (name: string, own: Partial<QueueFacts> = {}): QueueFacts => ({
  name,
  physical: `pgbus_${name}`,
  kind: 'job',
  paused: false,
  unlisted: false,
  readable: true,
  depth: own.visible ?? 0,
  visible: 0,
  waiting: null,
  unclaimed: null,
  claimed: null,
  ...own,
})
/** Messages that have waited for an hour, and nobody claimed one of them. */
const neglected = { visible: 3, waiting: 3_600, unclaimed: 3_600, claimed: false }
const worked = { ...neglected, claimed: true }
const process = (own: Partial<ProcessFacts> = {}): ProcessFacts => ({
  kind: 'worker',
  pid: 1,
  silence: 10,
  loopAge: 0.1,
  queues: [],
  eventLoopLagMs: 0,
  ...own,
})
const frozen = { loopAge: 91 }
const gone = { silence: 301 }

interface Case {
  when: string
  queues?: QueueFacts[]
  processes?: ProcessFacts[]
  oldestTransaction?: Facts['oldestTransaction']
  rules?: typeof rules
  /** Codes of the signals, in order. */
  signals: SignalCode[]
  status: 'OK' | 'DEGRADED' | 'STALLED'
  reason?: RegExp
}

const cases: Case[] = [
  { when: 'there is nothing at all', signals: [], status: 'OK' },
  {
    when: 'jobs wait and are claimed',
    queues: [queue('default', worked)],
    processes: [process()],
    signals: [],
    status: 'OK',
  },
  {
    when: 'the loop of a worker is frozen and jobs wait, whoever should run them',
    queues: [queue('default', worked), queue('nobodys', worked)],
    processes: [process(frozen), process({ pid: 2 })],
    signals: ['WORKER_STALLED', 'UNDRAINED_BACKLOG'],
    status: 'STALLED',
    reason:
      /^1 worker is stalled while messages wait in 2 queues: pgbus_default, pgbus_nobodys; messages wait in 1 queue for/,
  },
  {
    when: 'the loop of a worker is frozen and nothing waits',
    queues: [queue('default', { depth: 5 })],
    processes: [process(frozen)],
    signals: [],
    status: 'OK',
  },
  {
    when: 'the loop of a worker is frozen and only a paused queue has jobs',
    queues: [queue('default', { ...neglected, paused: true })],
    processes: [process(frozen)],
    signals: ['PAUSED_BACKLOG'],
    status: 'DEGRADED',
  },
  {
    when: 'a frozen worker is also silent for long',
    queues: [queue('default', neglected)],
    processes: [process({ ...frozen, ...gone })],
    signals: ['PROCESS_STALE', 'NO_WORKER'],
    status: 'DEGRADED',
  },
  {
    when: 'jobs were never claimed although a worker lives',
    queues: [queue('default', neglected), queue('mail', neglected)],
    processes: [process()],
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
    reason:
      /^messages of 2 queues were never claimed although 1 process is there to do so: pgbus_default, pgbus_mail$/,
  },
  {
    when: 'only a consumer lives and the queue of a handler is not worked on',
    queues: [queue('on_order', { ...neglected, kind: 'event' })],
    processes: [process({ kind: 'consumer', queues: ['on_order'] })],
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'only consumers of other handlers live',
    queues: [queue('on_order', { ...neglected, kind: 'event' })],
    processes: [process({ kind: 'consumer', queues: ['on_refund'] })],
    signals: ['UNDRAINED_BACKLOG'],
    status: 'DEGRADED',
  },
  {
    when: 'a consumer does not tell what it reads',
    queues: [queue('on_order', { ...worked, kind: 'event' })],
    processes: [process({ kind: 'consumer' })],
    signals: [],
    status: 'OK',
  },
  {
    when: 'this process has the handler, and no pattern feeds its queue any more',
    queues: [queue('on_refund', neglected)],
    processes: [process()],
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'a worker that is frozen without a threshold leaves jobs unclaimed',
    queues: [queue('default', neglected)],
    processes: [process(frozen)],
    rules: { ...rules, stallThreshold: null },
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'a burst has just come',
    queues: [queue('default', { visible: 10_000, depth: 10_000, waiting: 89, unclaimed: 89, claimed: null })],
    processes: [process()],
    signals: [],
    status: 'OK',
  },
  {
    when: 'a burst has just come and there is no grace',
    queues: [queue('default', { visible: 5, waiting: 0, unclaimed: 0, claimed: false })],
    processes: [process()],
    rules: { ...rules, unreadGrace: 0 },
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'the wait is as long as the grace',
    queues: [queue('default', { visible: 1, waiting: 90, unclaimed: 90, claimed: false })],
    processes: [process()],
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'everything that waits was claimed before',
    queues: [queue('default', { visible: 4, waiting: 3_600 })],
    processes: [process()],
    signals: [],
    status: 'OK',
  },
  {
    when: 'jobs are scheduled or run, and none is due',
    queues: [queue('default', { depth: 500 })],
    processes: [process()],
    signals: [],
    status: 'OK',
  },
  {
    when: 'a queue is on nobody’s list',
    queues: [queue('other', neglected)],
    processes: [process()],
    signals: ['UNDRAINED_BACKLOG'],
    status: 'DEGRADED',
    reason: /^messages wait in 1 queue for which no worker and no handler is configured: pgbus_other$/,
  },
  {
    when: 'its messages were all claimed before, it is on nobody’s list all the same',
    queues: [queue('other', { visible: 1, waiting: 1 })],
    signals: ['UNDRAINED_BACKLOG'],
    status: 'DEGRADED',
  },
  {
    when: 'a worker takes everything',
    queues: [queue('other', neglected)],
    processes: [process()],
    rules: everything,
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
  },
  {
    when: 'a worker that runs with another configuration takes it',
    queues: [queue('other', worked), queue('sms_out', worked)],
    processes: [process({ queues: ['other', 'sms_*'] })],
    signals: [],
    status: 'OK',
  },
  {
    when: 'that worker is gone',
    queues: [queue('other', worked)],
    processes: [process(), process({ queues: ['other'], ...gone })],
    signals: ['PROCESS_STALE', 'UNDRAINED_BACKLOG'],
    status: 'DEGRADED',
  },
  {
    when: 'a worker takes everything, then not what a routing pattern feeds',
    queues: [queue('on_order', { ...neglected, kind: 'event' })],
    processes: [process()],
    rules: everything,
    signals: ['UNDRAINED_BACKLOG'],
    status: 'DEGRADED',
  },
  {
    when: 'a worker names what a routing pattern feeds',
    queues: [queue('mail', { ...worked, kind: 'event' })],
    processes: [process()],
    signals: [],
    status: 'OK',
  },
  {
    when: 'one level of a queue with priorities is not worked on',
    queues: [
      queue('mail', { physical: 'pgbus_mail_p0' }),
      queue('mail', { physical: 'pgbus_mail_p1', ...neglected }),
    ],
    processes: [process()],
    signals: ['NEVER_CLAIMED'],
    status: 'STALLED',
    reason: /pgbus_mail_p1$/,
  },
  {
    when: 'jobs have waited long and there is no worker',
    queues: [queue('default', neglected)],
    processes: [process({ kind: 'supervisor' }), process({ kind: 'dispatcher' })],
    signals: ['NO_WORKER'],
    status: 'DEGRADED',
    reason: /^messages wait in 1 queue and no worker is running: pgbus_default$/,
  },
  {
    when: 'jobs have just come and there is no worker yet',
    queues: [queue('default', { visible: 1, waiting: 2, unclaimed: 2 })],
    signals: [],
    status: 'OK',
  },
  {
    when: 'a stream has rows that nobody claims',
    queues: [queue('news', { ...neglected, kind: 'stream' })],
    processes: [process(frozen)],
    rules: everything,
    signals: [],
    status: 'OK',
  },
  {
    when: 'a stream is known only by its index',
    queues: [queue('news', { kind: 'stream', unlisted: true })],
    signals: ['UNREGISTERED_STREAMS'],
    status: 'DEGRADED',
    reason: /pgbus streams backfill.*: pgbus_news$/,
  },
  {
    when: 'there are dead letters',
    queues: [
      queue('default', { physical: 'pgbus_default_dlq', kind: 'dlq', depth: 2, ...neglected }),
      queue('mail', { physical: 'pgbus_mail_dlq', kind: 'dlq' }),
    ],
    processes: [process(frozen)],
    signals: ['DLQ_NOT_EMPTY'],
    status: 'DEGRADED',
    reason: /^1 dead-letter queue is not empty: pgbus_default_dlq$/,
  },
  {
    when: 'a table is locked',
    queues: [queue('default', { readable: false })],
    signals: ['QUEUE_LOCKED'],
    status: 'DEGRADED',
  },
  {
    when: 'any process is silent',
    processes: [process({ kind: 'scheduler', ...gone }), process(gone), process()],
    signals: ['PROCESS_STALE'],
    status: 'DEGRADED',
    reason: /^2 processes wrote no heartbeat/,
  },
  { when: 'a transaction is as old as is allowed', oldestTransaction: 300, signals: [], status: 'OK' },
  {
    when: 'a transaction is older',
    oldestTransaction: 300.6,
    signals: ['OLD_TRANSACTION'],
    status: 'DEGRADED',
    reason: /^a transaction has been open for 301 s; it holds back the vacuum/,
  },
  {
    when: 'the statistics cannot be read',
    oldestTransaction: new RangeError('no such view'),
    signals: ['STATS_UNAVAILABLE'],
    status: 'DEGRADED',
    reason: /: RangeError: no such view$/,
  },
  {
    when: 'event loops are blocked',
    processes: [
      process({ eventLoopLagMs: 1_000 }),
      process({ pid: 2, eventLoopLagMs: 1_001 }),
      process({ pid: 3, eventLoopLagMs: 5_000, ...gone }),
      process({ pid: 4, eventLoopLagMs: null }),
    ],
    signals: ['PROCESS_STALE', 'EVENT_LOOP_LAG'],
    status: 'DEGRADED',
    reason: /; the event loop of 1 process is blocked: worker 2 \(1001 ms\)$/,
  },
  {
    when: 'much is wrong, then what is worse comes first',
    queues: [
      queue('default', neglected),
      queue('mail', { ...neglected, paused: true }),
      queue('other', neglected),
      queue('x', { kind: 'dlq', depth: 1 }),
    ],
    processes: [process(), process(gone)],
    oldestTransaction: 400,
    signals: [
      'NEVER_CLAIMED',
      'PROCESS_STALE',
      'PAUSED_BACKLOG',
      'UNDRAINED_BACKLOG',
      'DLQ_NOT_EMPTY',
      'OLD_TRANSACTION',
    ],
    status: 'STALLED',
  },
]

t.test('given the facts', async t => {
  for (const { when, queues = [], processes = [], oldestTransaction = null, ...own } of cases) {
    t.test(`when ${when}`, async t => {
      const at = new Date()
      const verdict = judge({ at, queues, processes, oldestTransaction }, own.rules ?? rules)
      t.strictSame(
        verdict.signals.map(({ code }) => code),
        own.signals,
      )
      t.equal(verdict.status, own.status)
      t.equal(verdict.reasons.length, own.signals.length)
      if (own.reason) t.match(verdict.reasons.join('; '), own.reason)
      t.equal(verdict.checkedAt, at)
    })
  }

  t.test('when hundreds of queues are flagged, then ten are named and the rest counted', async t => {
    const queues = Array.from({ length: 234 }, (_, index) => queue(`q${index}`, neglected))
    const { reasons, signals } = judge(
      { at: new Date(), queues, processes: [process()], oldestTransaction: null },
      everything,
    )
    t.match(reasons[0], /^messages of 234 queues .*: pgbus_q0, .*pgbus_q9 \(\+224 more\)$/)
    t.strictSame(signals[0], {
      code: 'NEVER_CLAIMED',
      severity: 'stalled',
      count: 234,
      queues: queues.slice(0, 10).map(({ physical }) => physical),
    })
  })

  t.test('when they are summed up, then dead letters and streams hold no jobs', async t => {
    const { summary } = judge(
      {
        at: new Date(),
        queues: [
          queue('default', { visible: 2, depth: 5 }),
          queue('on_order', { kind: 'event', visible: 1, depth: 1 }),
          queue('news', { kind: 'stream', visible: 100, depth: 100 }),
          queue('default', { kind: 'dlq', visible: 9, depth: 9 }),
        ],
        processes: [process(), process(frozen), process(gone), process({ kind: 'supervisor', ...gone })],
        oldestTransaction: 12.5,
      },
      rules,
    )
    t.strictSame(summary, {
      queues: 4,
      totalVisible: 3,
      totalDepth: 6,
      workers: 3,
      stalledWorkers: 1,
      staleProcesses: 2,
      oldestTransactionAge: 12.5,
    })
  })
})
