import type { ResolvedConfig } from '../config/options.ts'
import { redactText } from '../config/redact.ts'
import { ClosedError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { type ProbeReply, readyReply, routeProbe } from '../core/probes.ts'
import type { Report } from '../core/report.ts'
import { driverMessage } from '../db/driver-message.ts'
import type { HealthVerdict } from './verdict.ts'
import { toWire } from './wire.ts'

export interface HealthProbeOptions {
  /** Takes a limited time, whatever the database does. */
  check: () => Promise<HealthVerdict>
  config: ResolvedConfig
  log: Logger
  report: Report
}

/**
 * The mounted `/livez` and `/readyz`. Probes that come while a verdict is under way share it, so any number of them
 * costs the database one look at a time. One of an instance, however often it is mounted.
 */
export class HealthProbe {
  readonly #options: HealthProbeOptions
  #running: Promise<ProbeReply> | undefined
  #last: { reply: ProbeReply; until: number } | undefined
  #isFailing = false

  constructor(options: HealthProbeOptions) {
    this.#options = options
  }

  /** The answer to a request; `path` from the slash behind the prefix on, without the query. Never rejects. */
  answer(method: string | undefined, path: string): ProbeReply | Promise<ProbeReply> {
    const route = routeProbe(method, path)
    if (route !== 'ready') return route
    if (this.#last && performance.now() < this.#last.until) return this.#last.reply
    this.#running ??= this.#ask()
    return this.#running
  }

  async #ask(): Promise<ProbeReply> {
    const reply = await this.#readiness()
    this.#last = { reply, until: performance.now() + this.#options.config.health.cacheTtl }
    this.#running = undefined
    return reply
  }

  async #readiness(): Promise<ProbeReply> {
    const { check, config, log } = this.#options
    try {
      const verdict = await check()
      if (this.#isFailing) log.info('the health of the cluster can be told again')
      this.#isFailing = false
      // A degraded cluster still does its work; fewer processes would not help it.
      return readyReply(verdict.status !== 'STALLED', toWire(verdict))
    } catch (error) {
      // An application that ends answers its last probes so.
      if (!(error instanceof ClosedError)) this.#tell(error)
      return readyReply(false, { status: 'ERROR', error: redactText(driverMessage(error), config) })
    }
  }

  /** An outage is one report, however many probes it lasts. */
  #tell(error: unknown): void {
    const { log, report } = this.#options
    if (this.#isFailing) log.debug({ err: error }, 'the health of the cluster still cannot be told')
    else report(error, { action: 'health_check' })
    this.#isFailing = true
  }
}
