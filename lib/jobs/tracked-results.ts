import type { ResolvedConfig } from '../config/options.ts'
import { ConcurrencyLimitExceededError, EnqueueError, JobNotUniqueError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { TrackedRow } from '../limits/statements.ts'
import { logicalOf } from '../pgmq/names.ts'
import type { EnqueueResult, Prepared } from './enqueue.ts'

/**
 * What became of jobs that were not simply stored.
 * @throws JobNotUniqueError, ConcurrencyLimitExceededError for the one that was refused; then nothing of the call is stored.
 */
export function trackedResults(options: {
  prepared: readonly Prepared[]
  rows: readonly TrackedRow[]
  config: ResolvedConfig
  log: Logger
}): EnqueueResult[] {
  const { prepared, rows, config, log } = options
  const [first] = rows
  const refused = first && prepared[Number(first.ord) - 1]
  if (refused && (first.status === 'taken' || first.status === 'undecided'))
    throw notUnique(refused, first, config)
  if (refused && first.status === 'limited') {
    const { key, max } = refused.slot!
    throw new ConcurrencyLimitExceededError(
      `job "${refused.name}" was not enqueued: ${max} with its key ${JSON.stringify(key)} have not ended yet`,
      { key, limit: max },
    )
  }
  if (rows.length !== prepared.length)
    throw new EnqueueError(`the database decided about ${rows.length} jobs instead of ${prepared.length}`)
  return prepared.map((job, index) => {
    const { status, msg_id } = rows[index]!
    const { jobId, queue } = job
    if (status === 'duplicate') {
      const line = `job "${job.name}" was not enqueued: one with its key has not ended yet`
      log[job.unique?.onConflict === 'log' ? 'warn' : 'info']({ job: job.name, key: job.unique?.key }, line)
      return { status, jobId, msgId: null, queue }
    }
    if (status === 'discarded') {
      const line = `job "${job.name}" was not enqueued: ${job.slot?.max} with its key have not ended yet`
      log.info({ job: job.name, key: job.slot?.key }, line)
      return { status, jobId, msgId: null, queue }
    }
    // A caller's client may parse bigint as text.
    const msgId = msg_id === null ? null : Number(msg_id)
    return {
      status: status === 'replaced' || status === 'blocked' ? status : 'enqueued',
      jobId,
      msgId,
      queue,
    }
  })
}

function notUnique(job: Prepared, row: TrackedRow, config: ResolvedConfig): JobNotUniqueError {
  const key = job.unique?.key ?? ''
  if (row.status === 'undecided') {
    return new JobNotUniqueError(
      `job "${job.name}" was not enqueued: a transaction that has not ended holds its key ${JSON.stringify(key)}`,
      { key, pending: true },
    )
  }
  const sent = Number(row.holder_id) > 0
  const queue = sent && row.holder_queue !== null ? logicalOf(config, row.holder_queue) : null
  const holder = sent ? `message ${row.holder_id} of queue "${queue}"` : 'a job that waits'
  return new JobNotUniqueError(
    `job "${job.name}" was not enqueued: ${holder} has its key ${JSON.stringify(key)} and has not ended yet`,
    { key, queue, msgId: sent ? Number(row.holder_id) : null },
  )
}
