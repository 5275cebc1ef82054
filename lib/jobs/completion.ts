import type { ResolvedConfig } from '../config/options.ts'
import { InvalidTransitionError, LeaseLostError } from '../core/errors.ts'
import { checkTx } from '../db/caller-client.ts'
import type { Queryable, Statement } from '../db/database.ts'
import { failedName } from '../pgmq/names.ts'
import type { MessageIdRow, Token } from '../pgmq/statements.ts'
import type { Lease } from './lease.ts'

/** Fenced; rows `{ msg_id }` of the deliveries that it ended. */
export type EndStatement = (physical: string, tokens: readonly Token[], failedName: string) => Statement

/** The end of one delivery as a part of the handler's own transaction. */
export class Completion {
  readonly #lease: Lease
  readonly #statement: EndStatement
  readonly #config: ResolvedConfig
  #used = false

  constructor(options: { lease: Lease; statement: EndStatement; config: ResolvedConfig }) {
    this.#lease = options.lease
    this.#statement = options.statement
    this.#config = options.config
  }

  /** Whether the caller's transaction has the end in it. */
  get used(): boolean {
    return this.#used
  }

  /**
   * Writes the end into the caller's transaction.
   * @throws LeaseLostError when the message belongs to somebody else; InvalidTransitionError the second time.
   */
  async writeIn(client: Queryable): Promise<void> {
    const tx = checkTx(client)
    if (!tx) throw new TypeError('completeIn needs the client of a transaction')
    if (this.#used) throw new InvalidTransitionError('completeIn was called already; a job ends once')
    const { physical, msgId, readCount } = this.#lease.delivery
    const failed = failedName(this.#config, physical)
    const { text, values } = this.#statement(physical, [{ msgId, readCount }], failed)
    // Until here: a renewal would wait for the caller's transaction, and count the row that is gone as lost.
    this.#used = true
    this.#lease.renew = false
    this.#lease.writing = true
    await this.#lease.pauseRenewal()
    // Without a name: it could collide with one of the caller's.
    const { rows } = await tx.query(text, values)
    if ((rows as MessageIdRow[]).length > 0) return
    const lost = new LeaseLostError(
      `message ${msgId} of queue "${physical}" is no longer held here; roll back, somebody else runs it`,
    )
    this.#lease.abort(lost)
    throw lost
  }
}
