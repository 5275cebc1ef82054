import { type Deferred, deferred } from '../core/deferred.ts'
import { toError } from '../core/report.ts'
import { sqlState } from '../db/database.ts'

interface Entry<T, R> {
  item: T
  done: Deferred<R>
}

export interface GroupCommitOptions<T, R> {
  /** Runs one statement over the items; results in their order. */
  run: (items: readonly T[]) => Promise<R[]>
  /** How many of the waiting items, at least one, go into the next statement. Default: all, at most 1000. */
  take?: ((items: readonly T[]) => number) | undefined
}

const maxItems = 1_000

/**
 * Merges what is asked for while a statement runs into the next one. At most one is in flight; there is no timer,
 * so an item that comes alone goes alone, at once. Each promise settles with *its* statement.
 *
 * A statement leaves at the end of a turn of the event loop. Whoever the statement before has set free and asks
 * again at once is then part of it; without that turn ten callers would fall apart into one and nine, for ever.
 */
export class GroupCommit<T, R> {
  readonly #run: (items: readonly T[]) => Promise<R[]>
  readonly #take: (items: readonly T[]) => number
  #waiting: Entry<T, R>[] = []
  #running = false

  constructor(options: GroupCommitOptions<T, R>) {
    this.#run = options.run
    this.#take = options.take ?? (items => items.length)
  }

  add(item: T): Promise<R> {
    const done = deferred<R>()
    this.#waiting.push({ item, done })
    if (!this.#running) {
      this.#running = true
      void this.#drain()
    }
    return done.promise
  }

  async #drain(): Promise<void> {
    while (this.#waiting.length > 0) {
      await endOfTurn()
      const size = this.#take(this.#waiting.slice(0, maxItems).map(entry => entry.item))
      await this.#commit(this.#waiting.splice(0, Math.max(1, size)))
    }
    this.#running = false
  }

  async #commit(entries: Entry<T, R>[]): Promise<void> {
    try {
      const results = await this.#run(entries.map(entry => entry.item))
      for (const [index, entry] of entries.entries()) entry.done.resolve(results[index] as R)
    } catch (error) {
      if (entries.length === 1 || !blamesOneItem(error)) {
        for (const entry of entries) entry.done.reject(toError(error))
        return
      }
      // Halves, until the bad one is alone.
      const middle = Math.ceil(entries.length / 2)
      await this.#commit(entries.slice(0, middle))
      await this.#commit(entries.slice(middle))
    }
  }
}

function endOfTurn(): Promise<void> {
  return new Promise(resolve => setImmediate(resolve))
}

/** The server refused the data of an item, so it stored nothing of the statement. */
function blamesOneItem(error: unknown): boolean {
  return /^(22|23|54)/.test(sqlState(error))
}
