import type { Database } from '../db/database.ts'
import { type ClaimManyRow, claimMany } from '../pgmq/statements.ts'

/** One delivery of a message. Table, id and read count identify it. */
export interface Delivery {
  readonly physical: string
  readonly msgId: number
  readonly readCount: number
  readonly enqueuedAt: Date
  /** JSON text; null: SQL NULL. */
  readonly message: string | null
  readonly headers: string | null
  /** Monotonic time before the claim was sent: the lease lasts at least `visibilityTimeout` from here. */
  readonly claimedAt: number
}

/** The fencing token of a delivery as it travels between processes. */
export type HeldToken = readonly [physical: string, msgId: number, readCount: number]

export interface Claim {
  /** In the order in which they are to start. */
  readonly deliveries: Delivery[]
  /** Tables that do not exist. */
  readonly missing: string[]
  /** Time until the next message comes due; null: none known. Only meaningful when fewer came than were asked for. */
  readonly dueInMs: number | null
}

/** Claims up to `quantity` messages. What is claimed is hidden from others and charged one read. */
export async function claimMessages(
  db: Database,
  tables: readonly string[],
  quantity: number,
  visibilityTimeout: number,
): Promise<Claim> {
  const claimedAt = performance.now()
  const { rows } = await db.query<ClaimManyRow>(claimMany(tables, quantity, Math.round(visibilityTimeout)))
  const claim: Claim & { dueInMs: number | null } = { deliveries: [], missing: [], dueInMs: null }
  for (const row of rows) {
    if (row.msg_id !== null && row.physical !== null) {
      claim.deliveries.push({
        physical: row.physical,
        msgId: row.msg_id,
        readCount: row.read_ct ?? 1,
        enqueuedAt: row.enqueued_at ?? new Date(0),
        message: row.message,
        headers: row.headers,
        claimedAt,
      })
    } else if (row.state === 'missing' && row.physical !== null) {
      claim.missing.push(row.physical)
    } else {
      claim.dueInMs = row.due_in_ms
    }
  }
  return claim
}
