import type { Logger } from '../../lib/core/log.ts'
import type { StreamBounds, StreamRow, StreamStore } from '../../lib/streams/store.ts'
import type { WakeSource } from '../../lib/streams/wake-source.ts'

export const silentLog: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => silentLog,
}

/** A logger that keeps `level: message`. */
export function recordingLog(): { log: Logger; lines: string[] } {
  const lines: string[] = []
  const keep =
    (level: string) =>
    (...args: unknown[]) =>
      void lines.push(`${level}: ${String(args.at(-1))}`)
  const log: Logger = {
    debug: keep('debug'),
    info: keep('info'),
    warn: keep('warn'),
    error: keep('error'),
    child: () => log,
  }
  return { log, lines }
}

/** A store in memory, for streams without readers in other processes. */
export class MemoryStore implements StreamStore {
  readonly rows: (StreamRow & { stream: string })[] = []
  readonly notified: string[] = []
  prunedId = 0
  last = 0
  reads = 0
  /** Set: every read waits for it. */
  gate: Promise<void> | undefined
  /** Set: every read fails with it. */
  failure: Error | undefined

  channel(stream: string): string {
    return `channel of ${stream}`
  }

  async append(stream: string, message: string): Promise<number> {
    this.last += 1
    this.rows.push({ stream, id: this.last, createdAt: new Date(), message })
    return this.last
  }

  async notify(_stream: string, message: string): Promise<void> {
    this.notified.push(message)
  }

  async readAfter(stream: string, id: number, limit: number): Promise<StreamRow[]> {
    this.reads += 1
    await this.gate
    if (this.failure) throw this.failure
    return this.rows.filter(row => row.stream === stream && row.id > id).slice(0, limit)
  }

  async bounds(stream: string): Promise<StreamBounds> {
    const newest = this.rows.findLast(row => row.stream === stream)?.id ?? 0
    return { prunedId: this.prunedId, watermark: Math.max(newest, this.prunedId), last: this.last }
  }

  async watermarks(streams: readonly string[]): Promise<number[]> {
    return await Promise.all(streams.map(async stream => (await this.bounds(stream)).watermark))
  }
}

/** A wake source that the test speaks for. */
export class FakeSource implements WakeSource {
  readonly mode = 'local'
  readonly healthy = true
  readonly references = new Map<string, number>()
  isClosed = false
  /** Set: LISTEN waits for it. */
  gate: Promise<void> | undefined
  #receive: (channel: string, payload: string | null) => void = () => undefined

  get channels(): number {
    return this.references.size
  }

  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    this.references.set(channel, (this.references.get(channel) ?? 0) + 1)
    await this.gate
    return 'active'
  }

  release(channel: string): void {
    const left = (this.references.get(channel) ?? 0) - 1
    if (left > 0) this.references.set(channel, left)
    else this.references.delete(channel)
  }

  onWake(receive: (channel: string, payload: string | null) => void): void {
    this.#receive = receive
  }

  wake(channel: string, payload: string | null = null): void {
    this.#receive(channel, payload)
  }

  async close(): Promise<void> {
    this.isClosed = true
  }
}
