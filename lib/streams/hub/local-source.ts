import type { ResolvedConfig } from '../../config/options.ts'
import { deferred } from '../../core/deferred.ts'
import type { Logger } from '../../core/log.ts'
import type { Report } from '../../core/report.ts'
import type { Connector } from '../../db/connector.ts'
import { Listener } from '../../db/listener.ts'
import type { WakeSource } from '../wake-source.ts'

export interface StreamsListenerOptions {
  config: ResolvedConfig
  connector: Connector
  /** The root logger of the instance. */
  log: Logger
  report: Report
}

/** The LISTEN connection of streams, not started: what the hub of a host owns, or a process without one. */
export function createStreamsListener(options: StreamsListenerOptions): Listener {
  const { config, connector, log, report } = options
  return new Listener({
    connector,
    target: 'streams',
    log: log.child({ component: 'streams.listener' }),
    report,
    action: 'streamer_reconnect',
    healthCheck: config.streams.listenHealthCheck,
    verifyDelivery: false,
    ackTimeout: config.streams.ackTimeout,
    degradedPoll: config.streams.degradedPoll,
  })
}

/** Wakes from a LISTEN connection of this process. Owns the listener it was given. */
export class LocalSource implements WakeSource {
  readonly mode = 'local'
  readonly #listener: Listener
  readonly #delivering = deferred()
  #receive: (channel: string, payload: string | null) => void = () => undefined

  constructor(listener: Listener) {
    this.#listener = listener
    listener.onNotify((channel, payload) => this.#receive(channel, payload === '' ? null : payload))
    listener.onStatus(delivering => {
      if (delivering) this.#delivering.resolve()
    })
    listener.start()
  }

  get healthy(): boolean {
    return this.#listener.delivering
  }

  get channels(): number {
    return this.#listener.channels
  }

  /** Resolves when notifications arrived for the first time. Stays pending while the database is away. */
  get delivering(): Promise<void> {
    return this.#delivering.promise
  }

  ensureListening(channel: string): Promise<'active' | 'pending'> {
    return this.#listener.ensureListening(channel)
  }

  release(channel: string): void {
    this.#listener.release(channel)
  }

  onWake(receive: (channel: string, payload: string | null) => void): void {
    this.#receive = receive
  }

  close(): Promise<void> {
    return this.#listener.close()
  }
}
