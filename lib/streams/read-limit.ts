/**
 * How many reads run at once. Connections that catch up share it, so that a herd of them never takes the whole
 * pool from the passes of live connections and from broadcasts.
 */
export class ReadLimit {
  #free: number
  readonly #waiting: (() => void)[] = []

  constructor(size: number) {
    this.#free = size
  }

  /** Runs `read` when its turn comes, in order of arrival. */
  async run<T>(read: () => Promise<T>): Promise<T> {
    if (this.#free > 0) this.#free -= 1
    else await new Promise<void>(resolve => this.#waiting.push(resolve))
    try {
      return await read()
    } finally {
      const next = this.#waiting.shift()
      if (next) next()
      else this.#free += 1
    }
  }
}
