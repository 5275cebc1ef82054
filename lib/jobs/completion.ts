import type { ResolvedConfig } from '../config/options.ts'
import { InvalidTransitionError, LeaseLostError } from '../core/errors.ts'
import { checkTx } from '../db/caller-client.ts'
import type { Queryable } from '../db/database.ts'
import { finishTracked, isTracked } from '../limits/statements.ts'
import { failedName } from '../pgmq/names.ts'
import { archiveMany, deleteMany, type MessageIdRow } from '../pgmq/statements.ts'
import type { Lease } from './lease.ts'

/** The end of one job as a part of the handler's own transaction. */
export class Completion {
  readonly #lease: Lease
  readonly #archive: boolean
  readonly #config: ResolvedConfig
  #used = false

  constructor(options: { lease: Lease; archive: boolean; config: ResolvedConfig }) {
    this.#lease = options.lease
    this.#archive = options.archive
    this.#config = options.config
  }

  /** Whether the caller's transaction has the end of the job in it. */
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
    const { physical, msgId, readCount, message } = this.#lease.delivery
    const tokens = [{ msgId, readCount }]
    const failed = failedName(this.#config, physical)
    const plain = this.#archive ? archiveMany : deleteMany
    const { text, values } = isTracked(message)
      ? finishTracked(physical, this.#archive ? 'archive' : 'delete', tokens, failed)
      : plain(physical, tokens, failed)
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
