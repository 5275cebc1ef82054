import type { Report } from '../core/report.ts'

interface Pending {
  stream: string
  target: string
  send: () => Promise<unknown>
  timer: NodeJS.Timeout
}

/**
 * Lets the last of several broadcasts to one target win. The first one of a target starts a window; those that
 * come within it replace it; when it ends, the latest is sent. The window is never restarted, so nothing waits
 * longer than that.
 */
export class Coalescer {
  readonly #report: Report
  readonly #pending = new Map<string, Pending>()
  readonly #sending = new Set<Promise<unknown>>()

  constructor(report: Report) {
    this.#report = report
  }

  submit(stream: string, target: string, windowMs: number, send: () => Promise<unknown>): void {
    // Neither can hold U+0000.
    const key = `${stream}\0${target}`
    const waiting = this.#pending.get(key)
    if (waiting) {
      waiting.send = send
      return
    }
    const timer = setTimeout(() => this.#send(key), windowMs)
    this.#pending.set(key, { stream, target, send, timer })
  }

  /** Sends what waits, now; resolves when all of it, and what was under way, is sent. */
  async flush(): Promise<void> {
    for (const key of [...this.#pending.keys()]) this.#send(key)
    await Promise.all(this.#sending)
  }

  #send(key: string): void {
    const { stream, target, send, timer } = this.#pending.get(key)!
    this.#pending.delete(key)
    clearTimeout(timer)
    const sending = send()
      .catch(error => this.#report(error, { action: 'coalescer_flush', stream, target }))
      .finally(() => this.#sending.delete(sending))
    this.#sending.add(sending)
  }
}
