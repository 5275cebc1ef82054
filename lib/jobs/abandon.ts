import { groupBy } from '../core/group-by.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import type { Database } from '../db/database.ts'
import { makeVisible } from '../pgmq/statements.ts'
import type { Lease } from './lease.ts'

/** Lets others have messages whose jobs do not end. They stay charged: what hangs must end as a dead letter. */
export async function abandon(
  leases: readonly Lease[],
  options: { db: Database; log: Logger; report: Report },
): Promise<void> {
  const { db, log, report } = options
  for (const { delivery } of leases) {
    log.warn(
      { queue: delivery.physical, msg_id: delivery.msgId, attempt: delivery.readCount },
      'a job ignored its abort; its message is given to others while it may still run',
    )
  }
  const tables = groupBy(
    leases.map(lease => lease.delivery),
    delivery => delivery.physical,
  )
  await Promise.all(
    [...tables].map(([physical, tokens]) =>
      db.query(makeVisible(physical, tokens)).catch(error => {
        report(error, { action: 'abandon_jobs', queue: physical })
      }),
    ),
  )
}
