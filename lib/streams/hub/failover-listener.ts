import { Backoff } from '../../core/backoff.ts'
import type { Logger } from '../../core/log.ts'
import type { Report } from '../../core/report.ts'
import { sleep } from '../../core/sleep.ts'
import type { WakeSource } from '../wake-source.ts'

/** A wake source that can end; see HubClient. */
export interface MortalSource extends WakeSource {
  onDead(receive: (reason: string) => void): void
}

/** A wake source that connects in the background and wakes every channel when it has; see LocalSource. */
export interface FallbackSource extends WakeSource {
  readonly delivering: Promise<void>
}

export interface FailoverListenerOptions {
  hub: MortalSource
  /** Makes the source that takes over, started. */
  local: () => FallbackSource | Promise<FallbackSource>
  /** The root logger of the instance. */
  log: Logger
  report: Report
  /** Delays between attempts to make the local source, in milliseconds; default 1 s doubling to 30 s. */
  retry?: { base: number; max: number } | undefined
}

/**
 * Wakes through the hub for as long as it lives, then through a connection of this process, for good: a worker
 * that fell back stays local until it is replaced, so a hub that comes and goes cannot make it flap.
 *
 * The references held by callers are recorded here. When the hub dies they are taken, all of them, on one
 * local source. That one LISTENs every channel before it gives an answer and then wakes each channel, which
 * covers what was stored between the hub's death and LISTEN. Ephemeral payloads of that moment are lost.
 */
export class FailoverListener implements WakeSource {
  readonly #options: FailoverListenerOptions
  readonly #log: Logger
  readonly #references = new Map<string, number>()
  readonly #abort = new AbortController()
  /** Who answers now; undefined between the hub's death and the local source. */
  #source: WakeSource | undefined
  #mode: 'hub' | 'local' = 'hub'
  #failover: Promise<void> | undefined
  #closed: Promise<void> | undefined
  #receive: (channel: string, payload: string | null) => void = () => undefined

  constructor(options: FailoverListenerOptions) {
    this.#options = options
    this.#log = options.log.child({ component: 'streams.client' })
    this.#source = options.hub
    options.hub.onWake((channel, payload) => this.#receive(channel, payload))
    options.hub.onDead(reason => {
      this.#mode = 'local'
      this.#source = undefined
      this.#failover ??= this.#fallBack(reason)
    })
  }

  get mode(): 'hub' | 'local' {
    return this.#mode
  }

  get healthy(): boolean {
    return this.#source?.healthy ?? false
  }

  get channels(): number {
    return this.#references.size
  }

  onWake(receive: (channel: string, payload: string | null) => void): void {
    this.#receive = receive
  }

  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    if (this.#closed) return 'pending'
    this.#references.set(channel, (this.#references.get(channel) ?? 0) + 1)
    const source = this.#source
    if (!source) return 'pending'
    try {
      return await source.ensureListening(channel)
    } catch (error) {
      this.#options.report(error, { action: 'stream_hub', channel })
      return 'pending'
    }
  }

  release(channel: string): void {
    const references = this.#references.get(channel)
    if (references === undefined) return
    if (references > 1) this.#references.set(channel, references - 1)
    else this.#references.delete(channel)
    this.#source?.release(channel)
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#abort.abort()
    await this.#options.hub.close()
    // A local source that is being made is closed by its maker.
    await this.#failover
    if (this.#source !== this.#options.hub) await this.#source?.close()
  }

  async #fallBack(reason: string): Promise<void> {
    this.#log.warn(`hub lost: ${reason}; switching to a local listener`)
    const local = await this.#makeLocal()
    if (!local) return
    local.onWake((channel, payload) => this.#receive(channel, payload))
    // One tick: every reference that callers hold, then the swap. Later calls go to the new source directly.
    const answers: Promise<'active' | 'pending'>[] = []
    for (const [channel, references] of this.#references) {
      for (let n = 0; n < references; n += 1) answers.push(this.#takeOver(local, channel))
    }
    this.#source = local
    void local.delivering.then(() => this.#log.info(`local listener active, ${this.channels} channels`))
    await Promise.all(answers)
  }

  /** A source that answers `active` here had its LISTEN before anybody was told, so its wake is given here. */
  async #takeOver(local: WakeSource, channel: string): Promise<'active' | 'pending'> {
    try {
      const state = await local.ensureListening(channel)
      if (state === 'active' && this.#references.has(channel)) this.#receive(channel, null)
      return state
    } catch (error) {
      this.#options.report(error, { action: 'stream_hub', channel })
      return 'pending'
    }
  }

  async #makeLocal(): Promise<FallbackSource | undefined> {
    const backoff = new Backoff(this.#options.retry ?? { base: 1_000, max: 30_000 })
    const { signal } = this.#abort
    while (!signal.aborted) {
      try {
        const local = await this.#options.local()
        if (!signal.aborted) return local
        await local.close()
      } catch (error) {
        if (backoff.attempt === 0) this.#options.report(error, { action: 'stream_hub' })
        await sleep(backoff.next(), signal)
      }
    }
    return undefined
  }
}
