import type { Logger } from '../core/log.ts'

/**
 * Decides whether a connection sees a broadcast that carries the filter's label. `context` is what `authorize`
 * answered (undefined: nothing but yes). Has to answer at once: a promise counts as no.
 */
export type FilterPredicate = (context: unknown, info: { stream: string; connectionId: string }) => boolean

/** The side of a connection that a filter looks at. */
export interface Viewer {
  id: string
  stream: string
  context: unknown
}

const warningPauseMs = 60_000

/**
 * Filters of one instance, by label. They fail closed: a label that is not registered here, a predicate that
 * throws or answers with a promise, each means "not delivered", with a line in the log.
 */
export class Filters {
  readonly #log: Logger
  readonly #now: () => number
  readonly #predicates = new Map<string, FilterPredicate>()
  /** What was complained about → when. */
  readonly #warned = new Map<string, number>()

  constructor(log: Logger, now: () => number = () => performance.now()) {
    this.#log = log
    this.#now = now
  }

  /**
   * Registers a predicate; the same label again replaces it. Do it where every web worker passes, for example
   * in the module of the application.
   * @throws TypeError
   */
  register(label: string, predicate: FilterPredicate): void {
    if (typeof label !== 'string' || label === '')
      throw new TypeError(`a filter needs a label, instead got ${JSON.stringify(label)}`)
    if (typeof predicate !== 'function')
      throw new TypeError(`the filter "${label}" should be a function, instead got ${typeof predicate}`)
    this.#predicates.set(label, predicate)
  }

  /** Whether a broadcast with this label (undefined or null: none) may reach the viewer. Never throws. */
  allows(label: unknown, viewer: Viewer): boolean {
    if (label === undefined || label === null) return true
    const predicate = typeof label === 'string' ? this.#predicates.get(label) : undefined
    if (!predicate) {
      this.#complain('warn', `unknown filter ${JSON.stringify(label)}: not delivered`, viewer)
      return false
    }
    try {
      const answer: unknown = predicate(viewer.context, { stream: viewer.stream, connectionId: viewer.id })
      if (isThenable(answer)) {
        answer.then(undefined, () => undefined)
        this.#complain('error', `filter "${label}": filters must be synchronous, not delivered`, viewer)
        return false
      }
      return Boolean(answer)
    } catch (error) {
      this.#complain('error', `filter "${label}" threw: not delivered`, viewer, error)
      return false
    }
  }

  /** At most once a minute for each text: a filter is asked for every frame and connection. */
  #complain(level: 'warn' | 'error', text: string, { stream }: Viewer, err?: unknown): void {
    const now = this.#now()
    for (const [said, at] of this.#warned) if (now - at >= warningPauseMs) this.#warned.delete(said)
    if (this.#warned.has(text)) return
    this.#warned.set(text, now)
    this.#log[level]({ stream, ...(err === undefined ? {} : { err }) }, text)
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return (
    (typeof value === 'object' || typeof value === 'function') &&
    value !== null &&
    typeof (value as { then?: unknown }).then === 'function'
  )
}
