import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ResolvedConfig } from '../../config/options.ts'
import { Backoff } from '../../core/backoff.ts'
import type { Logger } from '../../core/log.ts'
import { type Report, toError } from '../../core/report.ts'
import { Connector } from '../../db/connector.ts'
import { createStreamsListener } from '../../streams/hub/local-source.ts'
import { MasterHub } from '../../streams/hub/master-hub.ts'

export interface HubKeeperOptions {
  config: ResolvedConfig
  /** The root logger of the instance. */
  log: Logger
  report: Report
  /** Delays between attempts, in milliseconds; default 1 s doubling to 60 s. */
  retry?: { base: number; max: number } | undefined
}

/**
 * Keeps the streams hub of this host open, always at the same path. Workers that find no hub listen for
 * themselves, so nothing waits for it and a hub that cannot be opened fails nothing.
 */
export class HubKeeper {
  readonly path: string
  readonly #options: HubKeeperOptions
  readonly #log: Logger
  readonly #connector: Connector
  readonly #backoff: Backoff
  #hub: MasterHub | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: HubKeeperOptions) {
    this.#options = options
    this.#log = options.log.child({ component: 'web.primary' })
    this.#connector = new Connector(options.config)
    this.#backoff = new Backoff(options.retry ?? { base: 1_000, max: 60_000 })
    this.path = options.config.web.hubSocket ?? join(tmpdir(), `pgbus-streams-hub-${process.pid}.sock`)
  }

  /** Makes the first attempt; later ones follow by themselves. Never rejects. */
  async open(): Promise<void> {
    if (this.#closed) return
    const { config, log, report } = this.#options
    const hub = new MasterHub({
      path: this.path,
      listener: () => createStreamsListener({ config, connector: this.#connector, log, report }),
      log,
      report,
    })
    this.#hub = hub
    try {
      await hub.start()
      this.#backoff.reset()
    } catch (error) {
      if (this.#closed) return
      await hub.close()
      const delay = this.#backoff.next()
      report(error, { action: 'stream_hub' })
      this.#log.warn(
        `no streams hub: ${toError(error).message}; workers listen for themselves, next attempt in ${delay} ms`,
      )
      this.#timer = setTimeout(() => void this.open(), delay)
      this.#timer.unref()
    }
  }

  /** After the workers are gone: their last reads need it. */
  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#hub?.close()
  }
}
