import type { ResolvedConfig, ResolvedWorkerEntry } from '../config/options.ts'
import { isWildcard } from '../config/queue-names.ts'
import type { Logger } from '../core/log.ts'
import { failedName, logicalOf } from '../pgmq/names.ts'
import type { Work } from './work.ts'

/** A logical queue and its tables, most urgent first. */
interface WorkQueue {
  readonly name: string
  readonly tables: readonly string[]
}

/** What one claim reads, in order; the lists are parallel. */
export interface ClaimTarget {
  readonly tables: string[]
  readonly names: string[]
  readonly failedNames: string[]
  /** Groups whose turn it was last. */
  readonly cursors: (string | null)[]
  /** Most that one queue may give while others wait; null: all. */
  readonly share: number | null
}

/**
 * The queues of a worker: those that its entry names, and those that its patterns find, in the order in which the
 * next claim reads them.
 *
 * Queues that take turns are read in the order in which they gave something last, longest ago first. One that has
 * work is therefore reached before any that was served in the meantime, however many there are.
 */
export class QueueList {
  readonly #config: ResolvedConfig
  readonly #entry: ResolvedWorkerEntry
  readonly #work: Pick<Work, 'tablesOf' | 'isForPatterns'>
  readonly #log: Logger
  readonly #onTables: (tables: string[]) => void
  readonly #named: readonly WorkQueue[]
  readonly #patterns: readonly string[]
  #found: readonly WorkQueue[] = []
  readonly #served = new Map<string, number>()
  readonly #cursors = new Map<string, string>()
  #clock = 0

  constructor(options: {
    config: ResolvedConfig
    entry: ResolvedWorkerEntry
    work: Pick<Work, 'tablesOf' | 'isForPatterns'>
    log: Logger
    /** Told when the set of tables has changed. */
    onTables: (tables: string[]) => void
  }) {
    const { config, entry, work } = options
    this.#config = config
    this.#entry = entry
    this.#work = work
    this.#log = options.log
    this.#onTables = options.onTables
    this.#named = entry.queues
      .filter(queue => !isWildcard(queue))
      .map(name => ({ name, tables: work.tablesOf(name) }))
    this.#patterns = entry.queues.filter(isWildcard)
  }

  /** Names of the entry that are no patterns. */
  get named(): string[] {
    return this.#named.map(queue => queue.name)
  }

  get names(): string[] {
    return this.#all().map(queue => queue.name)
  }

  get tables(): string[] {
    return this.#all().flatMap(queue => queue.tables)
  }

  get hasPatterns(): boolean {
    return this.#patterns.length > 0
  }

  /** Takes the tables of all job queues of the database, and keeps those that its patterns match. */
  resolve(tables: readonly string[]): void {
    const named = new Set(this.named)
    const found = new Map<string, string[]>()
    for (const table of tables) {
      const name = this.#nameOf(table)
      if (name === undefined || named.has(name) || !this.#matches(name)) continue
      const own = found.get(name)
      if (own) own.push(table)
      else found.set(name, [table])
    }
    this.#replace([...found].map(([name, own]) => ({ name, tables: own.sort() })))
  }

  /** Before the patterns could be resolved, or when `*` finds nothing. */
  fallBack(): void {
    this.#replace([])
  }

  /** What the next claim reads, without the queues for which `usable` is false. */
  next(quantity: number, usable: (name: string) => boolean): ClaimTarget {
    const queues = this.#ordered().filter(queue => usable(queue.name))
    const target: ClaimTarget = {
      tables: [],
      names: [],
      failedNames: [],
      cursors: [],
      share: this.#entry.order === 'fair' ? Math.ceil(quantity / Math.max(1, queues.length)) : null,
    }
    for (const queue of queues) {
      for (const table of queue.tables) {
        target.tables.push(table)
        target.names.push(queue.name)
        target.failedNames.push(failedName(this.#config, table))
        target.cursors.push(this.#cursors.get(table) ?? null)
      }
    }
    return target
  }

  /** One message of this table was claimed. */
  served(table: string, turn: string | null): void {
    this.#clock += 1
    this.#served.set(logicalOf(this.#config, table), this.#clock)
    if (turn !== null) this.#cursors.set(table, turn)
  }

  #ordered(): readonly WorkQueue[] {
    if (this.#entry.order === 'fair') return this.#byTurn(this.#all())
    return [...this.#named, ...this.#byTurn(this.#found)]
  }

  #byTurn(queues: readonly WorkQueue[]): readonly WorkQueue[] {
    const servedAt = (queue: WorkQueue) => this.#served.get(queue.name) ?? 0
    return queues.toSorted((a, b) => servedAt(a) - servedAt(b))
  }

  #all(): readonly WorkQueue[] {
    return [...this.#named, ...this.#found]
  }

  #replace(found: WorkQueue[]): void {
    const { defaultQueue } = this.#config
    if (found.length === 0 && this.#named.length === 0 && this.#patterns.includes('*')) {
      const name = defaultQueue.toLowerCase()
      found.push({ name, tables: this.#work.tablesOf(name) })
    }
    const before = this.tables
    const from = this.names
    this.#found = found
    const after = this.tables
    if (before.length === after.length && before.every((table, index) => table === after[index])) return
    const known = new Set(after)
    for (const table of this.#cursors.keys()) if (!known.has(table)) this.#cursors.delete(table)
    const names = new Set(this.names)
    for (const name of this.#served.keys()) if (!names.has(name)) this.#served.delete(name)
    this.#log.info({ from, to: this.names }, 'the queues of a worker changed')
    this.#onTables(after)
  }

  /** The logical name of one of our tables; nothing for those of other prefixes and for names that are not ours. */
  #nameOf(table: string): string | undefined {
    const name = logicalOf(this.#config, table)
    try {
      return this.#work.isForPatterns(name) && this.#work.tablesOf(name).includes(table) ? name : undefined
    } catch {
      // Another client allows names that ours do not.
      return undefined
    }
  }

  #matches(name: string): boolean {
    return this.#patterns.some(pattern => name.startsWith(pattern.slice(0, -1)))
  }
}
