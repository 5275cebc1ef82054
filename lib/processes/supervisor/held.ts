/**
 * Which deliveries a child has in its hands, and which of them run, so that its supervisor can give them back when
 * it dies. Both ends: the child reports differences, the supervisor keeps the set.
 */
import { type Deferred, deferred } from '../../core/deferred.ts'
import { groupBy } from '../../core/group-by.ts'
import type { HeldChange, HeldToken } from '../../jobs/held-tokens.ts'
import type { Token } from '../../pgmq/statements.ts'

/** Deliveries whose state changed since the last difference, each in one list. */
export interface HeldDifference {
  claimed: HeldToken[]
  running: HeldToken[]
  done: HeldToken[]
}

type State = keyof HeldDifference

const keyOf = ([physical, msgId, readCount]: HeldToken): string => `${msgId}:${readCount}:${physical}`

/**
 * The child's end. The first difference leaves at once; while one is on its way, the next ones gather, and a
 * delivery that is taken and done within that time is never mentioned. So the cost follows the speed of the
 * channel, and there is no timer during which a kill would go unnoticed.
 */
export class HeldReporter {
  readonly #send: (difference: HeldDifference, sent: () => void) => void
  /** What the supervisor holds for held here, once it has read everything that was sent. */
  readonly #told = new Set<string>()
  /** The newest state of each delivery that changed since. */
  readonly #changed = new Map<string, { token: HeldToken; state: State }>()
  #sending = false
  /** Settled when the changes so far have been sent. */
  #next: Deferred | undefined

  constructor(send: (difference: HeldDifference, sent: () => void) => void) {
    this.#send = send
  }

  /** Resolves when this is with the supervisor, or on the way to it in a place that outlives this process. */
  report({ claimed = [], running = [], done = [] }: HeldChange): Promise<void> {
    let news = false
    const change = (tokens: readonly HeldToken[], state: State) => {
      for (const token of tokens) {
        const key = keyOf(token)
        news = true
        // The supervisor need not hear of the end of what it never heard of.
        if (state === 'done' && !this.#told.has(key)) this.#changed.delete(key)
        else this.#changed.set(key, { token, state })
      }
    }
    change(claimed, 'claimed')
    change(running, 'running')
    change(done, 'done')
    if (!news || this.#changed.size === 0) return Promise.resolve()
    this.#next ??= deferred()
    const { promise } = this.#next
    this.#flush()
    return promise
  }

  #flush(): void {
    if (this.#sending) return
    if (this.#changed.size === 0) {
      // What was to be told has ended meanwhile.
      this.#next?.resolve()
      this.#next = undefined
      return
    }
    const difference: HeldDifference = { claimed: [], running: [], done: [] }
    for (const [key, { token, state }] of this.#changed) {
      difference[state].push(token)
      if (state === 'done') this.#told.delete(key)
      else this.#told.add(key)
    }
    this.#changed.clear()
    const sent = this.#next
    this.#next = undefined
    this.#sending = true
    this.#send(difference, () => {
      this.#sending = false
      sent?.resolve()
      this.#flush()
    })
  }
}

/** The supervisor's end. */
export class HeldSet {
  readonly #tokens = new Map<string, { token: HeldToken; running: boolean }>()

  apply({ claimed, running, done }: HeldDifference): void {
    for (const token of done) this.#tokens.delete(keyOf(token))
    for (const token of claimed) this.#tokens.set(keyOf(token), { token, running: false })
    for (const token of running) this.#tokens.set(keyOf(token), { token, running: true })
  }

  get size(): number {
    return this.#tokens.size
  }

  /** Claimed, not started; by table. */
  get waiting(): Map<string, Token[]> {
    return this.#byTable(false)
  }

  /** In the hands of their handlers; by table. */
  get running(): Map<string, Token[]> {
    return this.#byTable(true)
  }

  #byTable(running: boolean): Map<string, Token[]> {
    const held = [...this.#tokens.values()].filter(entry => entry.running === running)
    const tables = groupBy(held, ({ token: [physical] }) => physical)
    return new Map(
      [...tables].map(([physical, entries]) => [
        physical,
        entries.map(({ token: [, msgId, readCount] }) => ({ msgId, readCount })),
      ]),
    )
  }
}
