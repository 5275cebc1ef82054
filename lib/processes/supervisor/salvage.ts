import type { Logger } from '../../core/log.ts'
import { deadLetterText } from '../../jobs/dead-letter.ts'
import { forgetProcess, type ProcessKind } from '../../jobs/heartbeat.ts'
import { buryTracked } from '../../limits/statements.ts'
import type { Pgbus } from '../../pgbus.ts'
import { type DeathsRow, readDeaths, recordDeath } from '../../pgmq/deaths.ts'
import { deadLetterName, failedName, logicalOf } from '../../pgmq/names.ts'
import { type MessageIdRow, release, type Token } from '../../pgmq/statements.ts'
import type { ChildExit } from './child-handle.ts'
import type { HeldSet } from './held.ts'

/** A child that is gone. */
export interface DeadChild {
  readonly slot: string
  /** -1: it never was a process. */
  readonly pid: number
  readonly held: Pick<HeldSet, 'waiting' | 'running'>
}

/**
 * Lets others have what dead children held, at once. Where that fails, the leases run out.
 *
 * No death is charged as an attempt. What had not started goes back as if nothing had happened; so does what ran
 * when the supervisor itself ended the child. When a child died by itself, each job that ran is a suspect, and runs
 * alone the next time. A suspect whose process dies again is a dead letter: nobody else can have done it.
 */
export class Salvage {
  readonly #pgbus: Pgbus
  readonly #log: Logger
  readonly #underWay = new Set<Promise<void>>()

  constructor(options: { pgbus: Pgbus; log: Logger }) {
    this.#pgbus = options.pgbus
    this.#log = options.log
  }

  /** Begins; {@link done} tells the end. `kinds`: of the rows in `pgbus_processes`. Never throws. */
  giveBack(child: DeadChild, exit: ChildExit, kinds: readonly ProcessKind[]): void {
    const { waiting, running } = child.held
    const work = [...waiting].map(([physical, tokens]) => this.#release(child, physical, tokens))
    const [only] = running
    const alone = running.size === 1 && only?.[1].length === 1 ? only[1][0] : undefined
    for (const [physical, tokens] of running) {
      if (exit.expected) work.push(this.#release(child, physical, tokens))
      else if (alone) work.push(this.#judge(child, physical, alone, exit))
      else work.push(this.#suspect(child, physical, tokens, exit))
    }
    if (child.pid !== -1) work.push(forgetProcess(this.#pgbus.db, kinds, child.pid))
    const end = Promise.allSettled(work).then(results => {
      for (const result of results) {
        if (result.status === 'rejected')
          this.#pgbus.report(result.reason, { action: 'give_back_messages', slot: child.slot })
      }
      this.#underWay.delete(end)
    })
    this.#underWay.add(end)
  }

  /** Resolves when everything that began has ended. */
  async done(): Promise<void> {
    await Promise.all(this.#underWay)
  }

  async #release(child: DeadChild, physical: string, tokens: readonly Token[]): Promise<void> {
    const { rowCount } = await this.#pgbus.db.query(release(physical, tokens, null))
    this.#tell(child, physical, rowCount)
  }

  async #suspect(
    child: DeadChild,
    physical: string,
    tokens: readonly Token[],
    { code, signal }: ChildExit,
  ): Promise<void> {
    const { rows } = await this.#pgbus.db.query<MessageIdRow>(
      recordDeath(physical, tokens, { exitCode: code, signal }),
    )
    this.#tell(child, physical, rows.length)
    if (rows.length === 0) return
    this.#log.warn(
      { slot: child.slot, queue: physical, msg_ids: rows.map(row => row.msg_id) },
      `${rows.length} jobs were running when ${child.slot} died; each runs alone the next time`,
    )
  }

  /** Nothing else ran when the process died. If that is the second time, the job is to blame. */
  async #judge(child: DeadChild, physical: string, token: Token, exit: ChildExit): Promise<void> {
    const { db, queues, config } = this.#pgbus
    const { rows } = await db.query<DeathsRow>(readDeaths(physical, [token]))
    const earlier = rows[0]?.deaths ?? 0
    if (earlier === 0) return this.#suspect(child, physical, [token], exit)
    const deadLetters = deadLetterName(config, logicalOf(config, physical))
    await queues.ensurePhysical(deadLetters, 'dlq')
    const { code, signal, reason } = exit
    const error = {
      errorClass: 'ProcessDiedError',
      errorMessage: `the process of this job died ${earlier + 1} times, at last while nothing else ran in it: ${reason}`,
      backtrace: null,
    }
    const deadLetter = deadLetterText(physical, token, error, new Date(), {
      reason: 'process_died',
      exit_code: code,
      signal,
    })
    // Its message may be one that holds a lock; nobody here has read it.
    const { rowCount } = await db.query(
      buryTracked(physical, deadLetters, [{ ...token, deadLetter }], failedName(config, physical)),
    )
    if (rowCount === 0) return
    this.#log.warn(
      { slot: child.slot, queue: physical, msg_id: token.msgId, exit_code: code, signal },
      'job moved to the dead-letter queue: its process died again while it ran alone',
    )
  }

  #tell(child: DeadChild, physical: string, count: number): void {
    if (count === 0) return
    this.#log.info({ slot: child.slot, queue: physical }, `gave back ${count} messages of a dead worker`)
  }
}
