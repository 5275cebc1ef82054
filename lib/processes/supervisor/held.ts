/**
 * Which deliveries a child has in its hands, so that its supervisor can give them back when it dies. Both ends:
 * the child reports differences, the supervisor keeps the set.
 */
import { groupBy } from '../../core/group-by.ts'
import type { HeldToken } from '../../jobs/claim.ts'
import type { Token } from '../../pgmq/statements.ts'

export interface HeldDifference {
  taken: HeldToken[]
  done: HeldToken[]
}

const keyOf = ([physical, msgId, readCount]: HeldToken): string => `${msgId}:${readCount}:${physical}`

/**
 * The child's end. The first difference leaves at once; while one is on its way, the next ones gather, and a
 * delivery that is taken and done within that time is never mentioned. So the cost follows the speed of the
 * channel, and there is no timer during which a kill would go unnoticed.
 */
export class HeldReporter {
  readonly #send: (difference: HeldDifference, sent: () => void) => void
  readonly #taken = new Map<string, HeldToken>()
  readonly #done = new Map<string, HeldToken>()
  #sending = false

  constructor(send: (difference: HeldDifference, sent: () => void) => void) {
    this.#send = send
  }

  report(taken: readonly HeldToken[], done: readonly HeldToken[]): void {
    for (const token of taken) this.#taken.set(keyOf(token), token)
    for (const token of done) {
      const key = keyOf(token)
      if (!this.#taken.delete(key)) this.#done.set(key, token)
    }
    this.#flush()
  }

  #flush(): void {
    if (this.#sending || (this.#taken.size === 0 && this.#done.size === 0)) return
    const difference = { taken: [...this.#taken.values()], done: [...this.#done.values()] }
    this.#taken.clear()
    this.#done.clear()
    this.#sending = true
    this.#send(difference, () => {
      this.#sending = false
      this.#flush()
    })
  }
}

/** The supervisor's end. */
export class HeldSet {
  readonly #tokens = new Map<string, HeldToken>()

  apply({ taken, done }: HeldDifference): void {
    for (const token of done) this.#tokens.delete(keyOf(token))
    for (const token of taken) this.#tokens.set(keyOf(token), token)
  }

  get size(): number {
    return this.#tokens.size
  }

  /** Tokens by table. */
  byTable(): Map<string, Token[]> {
    const tables = groupBy(this.#tokens.values(), ([physical]) => physical)
    return new Map(
      [...tables].map(([physical, tokens]) => [
        physical,
        tokens.map(([, msgId, readCount]) => ({ msgId, readCount })),
      ]),
    )
  }
}
