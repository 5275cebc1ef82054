import type { ResolvedConfig } from '../config/options.ts'
import { isWildcard, queueMatcher } from '../config/queue-names.ts'
import { counted, listed, namesShown } from '../core/wording.ts'
import type { Facts, ProcessFacts, QueueFacts } from './facts.ts'
import { type ProcessStatus, processStatus, type StatusRules } from './process-status.ts'

/**
 * `STALLED`: jobs wait, and what should run them is there and does not. `DEGRADED`: a person should look, but jobs
 * are run.
 */
export type HealthStatus = 'OK' | 'DEGRADED' | 'STALLED'

export type SignalCode =
  | 'WORKER_STALLED'
  | 'NEVER_CLAIMED'
  | 'STATS_UNAVAILABLE'
  | 'QUEUE_LOCKED'
  | 'PROCESS_STALE'
  | 'NO_WORKER'
  | 'PAUSED_BACKLOG'
  | 'UNDRAINED_BACKLOG'
  | 'DLQ_NOT_EMPTY'
  | 'OLD_TRANSACTION'
  | 'UNREGISTERED_STREAMS'
  | 'EVENT_LOOP_LAG'

/** One thing that was found, for programs. */
export interface HealthSignal {
  code: SignalCode
  severity: 'stalled' | 'degraded'
  /** Queues or processes that it is about. */
  count: number
  /** Physical names of the first ten, where it is about queues. */
  queues?: string[]
}

export interface HealthVerdict {
  status: HealthStatus
  /** One sentence for each signal, what is worse first. Empty: all is well. */
  reasons: string[]
  signals: HealthSignal[]
  checkedAt: Date
  summary: {
    /** All queues with our prefix, those of dead letters included. */
    queues: number
    /** Messages that could be claimed, and all messages; without dead letters and streams, 10 000 per queue at most. */
    totalVisible: number
    totalDepth: number
    workers: number
    stalledWorkers: number
    staleProcesses: number
    /** Seconds; null: none is open, or that is not known. */
    oldestTransactionAge: number | null
  }
}

export type VerdictRules = StatusRules &
  Pick<ResolvedConfig, 'workers'> & {
    unreadGrace: number
    /** Logical names of queues of event handlers. */
    handlerQueues: Iterable<string>
  }

type Process = ProcessFacts & { status: ProcessStatus }
type Finding = HealthSignal & { reason: string }

const oldTransactionSeconds = 300
const longLagMs = 1_000

/** What the facts mean. A pure function. */
export function judge(facts: Facts, rules: VerdictRules): HealthVerdict {
  const processes = facts.processes.map(own => ({ ...own, status: processStatus(own, rules) }))
  const operational = facts.queues.filter(({ kind }) => kind === 'job' || kind === 'event')
  const findings = [
    ...standstill(operational, processes, rules),
    ...statistics(facts),
    ...locked(facts.queues),
    ...stale(processes),
    ...backlogs(operational, processes, rules),
    ...deadLetters(facts.queues),
    ...oldTransaction(facts),
    ...unregisteredStreams(facts.queues),
    ...eventLoopLag(processes),
  ]
  const workers = processes.filter(({ kind }) => kind === 'worker')
  const sum = (of: 'visible' | 'depth') => operational.reduce((total, queue) => total + queue[of], 0)
  return {
    status: statusOf(findings),
    reasons: findings.map(({ reason }) => reason),
    signals: findings.map(({ reason: _, ...signal }) => signal),
    checkedAt: facts.at,
    summary: {
      queues: facts.queues.length,
      totalVisible: sum('visible'),
      totalDepth: sum('depth'),
      workers: workers.length,
      stalledWorkers: workers.filter(({ status }) => status === 'stalled').length,
      staleProcesses: processes.filter(({ status }) => status === 'stale').length,
      oldestTransactionAge: facts.oldestTransaction instanceof Error ? null : facts.oldestTransaction,
    },
  }
}

function statusOf(findings: readonly Finding[]): HealthStatus {
  if (findings.some(({ severity }) => severity === 'stalled')) return 'STALLED'
  return findings.length > 0 ? 'DEGRADED' : 'OK'
}

/** Jobs wait and nobody takes them, although there is somebody. */
function standstill(
  operational: readonly QueueFacts[],
  processes: readonly Process[],
  rules: VerdictRules,
): Finding[] {
  const active = operational.filter(({ visible, paused }) => visible > 0 && !paused)
  const stalled = processes.filter(({ kind, status }) => kind === 'worker' && status === 'stalled')
  if (stalled.length > 0 && active.length > 0) {
    const what = `${counted(stalled.length, 'worker')} ${is(stalled.length)} stalled while messages wait in ${counted(active.length, 'queue')}`
    return [{ ...about('WORKER_STALLED', 'stalled', active, what), count: stalled.length }]
  }
  const live = processes.filter(drains)
  if (live.length === 0) return []
  const isDrained = drainedBy(rules, processes)
  const neglected = active.filter(
    queue =>
      isDrained(queue) &&
      queue.unclaimed !== null &&
      queue.unclaimed * 1_000 >= rules.unreadGrace &&
      queue.claimed !== true,
  )
  if (neglected.length === 0) return []
  const what = `messages of ${counted(neglected.length, 'queue')} were never claimed although ${counted(live.length, 'process', 'processes')} ${is(live.length)} there to do so`
  return [about('NEVER_CLAIMED', 'stalled', neglected, what)]
}

/** Jobs wait where there is nobody, or where somebody wanted it so. */
function backlogs(
  operational: readonly QueueFacts[],
  processes: readonly Process[],
  rules: VerdictRules,
): Finding[] {
  const backlog = operational.filter(({ visible }) => visible > 0)
  const isDrained = drainedBy(rules, processes)
  const active = backlog.filter(({ paused }) => !paused)
  const nobody = processes.some(drains)
    ? []
    : active.filter(
        queue => isDrained(queue) && queue.waiting !== null && queue.waiting * 1_000 >= rules.unreadGrace,
      )
  const paused = backlog.filter(queue => queue.paused)
  const undrained = active.filter(queue => !isDrained(queue))
  return [
    ...flag(
      nobody,
      'NO_WORKER',
      count => `messages wait in ${counted(count, 'queue')} and no worker is running`,
    ),
    ...flag(
      paused,
      'PAUSED_BACKLOG',
      count => `${counted(count, 'paused queue')} ${count === 1 ? 'holds' : 'hold'} messages`,
    ),
    ...flag(
      undrained,
      'UNDRAINED_BACKLOG',
      count => `messages wait in ${counted(count, 'queue')} for which no worker and no handler is configured`,
    ),
  ]
}

function statistics({ oldestTransaction: found }: Facts): Finding[] {
  if (!(found instanceof Error)) return []
  const reason = `statistics of the database could not be read: ${found.name}: ${found.message}`
  return [{ code: 'STATS_UNAVAILABLE', severity: 'degraded', count: 1, reason }]
}

function locked(queues: readonly QueueFacts[]): Finding[] {
  return flag(
    queues.filter(({ readable }) => !readable),
    'QUEUE_LOCKED',
    count =>
      `${counted(count, 'queue')} could not be looked at, because a transaction holds a lock on the table`,
  )
}

function stale(processes: readonly Process[]): Finding[] {
  const gone = processes.filter(({ status }) => status === 'stale').length
  if (gone === 0) return []
  const reason = `${counted(gone, 'process', 'processes')} wrote no heartbeat for more than 5 minutes`
  return [{ code: 'PROCESS_STALE', severity: 'degraded', count: gone, reason }]
}

function deadLetters(queues: readonly QueueFacts[]): Finding[] {
  return flag(
    queues.filter(({ kind, depth }) => kind === 'dlq' && depth > 0),
    'DLQ_NOT_EMPTY',
    count => `${counted(count, 'dead-letter queue')} ${is(count)} not empty`,
  )
}

function oldTransaction({ oldestTransaction: age }: Facts): Finding[] {
  if (age === null || age instanceof Error || age <= oldTransactionSeconds) return []
  const reason = `a transaction has been open for ${Math.round(age)} s; it holds back the vacuum of the queues`
  return [{ code: 'OLD_TRANSACTION', severity: 'degraded', count: 1, reason }]
}

function unregisteredStreams(queues: readonly QueueFacts[]): Finding[] {
  return flag(
    queues.filter(({ unlisted }) => unlisted),
    'UNREGISTERED_STREAMS',
    count =>
      `${counted(count, 'stream queue')} ${is(count)} missing in pgbus_stream_queues; run "pgbus streams backfill" of the client that made them`,
  )
}

function eventLoopLag(processes: readonly Process[]): Finding[] {
  const late = processes.filter(
    ({ status, eventLoopLagMs }) => status !== 'stale' && (eventLoopLagMs ?? 0) > longLagMs,
  )
  if (late.length === 0) return []
  const list = late.map(({ kind, pid, eventLoopLagMs }) => `${kind} ${pid} (${eventLoopLagMs} ms)`)
  const reason = `the event loop of ${counted(late.length, 'process', 'processes')} is blocked: ${listed(list)}`
  return [{ code: 'EVENT_LOOP_LAG', severity: 'degraded', count: late.length, reason }]
}

/** It takes messages from queues, if it works. */
function drains({ kind, status }: Process): boolean {
  return (kind === 'worker' || kind === 'consumer') && status !== 'stale'
}

/**
 * Whether somebody is meant to take the messages of a queue: a worker of this configuration, a handler of this process,
 * or a worker or consumer that runs somewhere with others. Patterns find queues of jobs only.
 */
function drainedBy(
  { workers, handlerQueues }: VerdictRules,
  processes: readonly Process[],
): (queue: QueueFacts) => boolean {
  const live = processes.filter(drains)
  const entries = [...workers, ...live].flatMap(({ queues }) => queues)
  const isRead = queueMatcher(entries)
  const isNamed = queueMatcher([...entries.filter(entry => !isWildcard(entry)), ...handlerQueues])
  // Those of other clients tell their topics only.
  const isAnybodys = live.some(({ kind, queues }) => kind === 'consumer' && queues.length === 0)
  return ({ name, kind }) => isNamed(name) || (kind === 'event' ? isAnybodys : isRead(name))
}

function flag(queues: readonly QueueFacts[], code: SignalCode, reason: (count: number) => string): Finding[] {
  return queues.length === 0 ? [] : [about(code, 'degraded', queues, reason(queues.length))]
}

function about(
  code: SignalCode,
  severity: HealthSignal['severity'],
  queues: readonly QueueFacts[],
  what: string,
): Finding {
  const names = queues.map(({ physical }) => physical)
  return {
    code,
    severity,
    count: queues.length,
    queues: names.slice(0, namesShown),
    reason: `${what}: ${listed(names)}`,
  }
}

function is(count: number): string {
  return count === 1 ? 'is' : 'are'
}
