import { type EventLoopUtilization, monitorEventLoopDelay, performance } from 'node:perf_hooks'
import type { WebWorkerStats } from '../messages.ts'

/** How precisely delays of the event loop are measured, ms. */
const resolutionMs = 20

/** What a worker says about itself at each check-in. Figures of the event loop are those since the last one. */
export class VitalSigns {
  readonly #delay = monitorEventLoopDelay({ resolution: resolutionMs })
  #utilization: EventLoopUtilization = performance.eventLoopUtilization()

  constructor() {
    this.#delay.enable()
  }

  take(): Pick<WebWorkerStats, 'rss' | 'heapUsed' | 'external' | 'elu' | 'eventLoopP99'> {
    const { rss, heapUsed, external } = process.memoryUsage()
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, this.#utilization)
    this.#utilization = now
    const p99 = this.#delay.percentile(99) / 1e6
    this.#delay.reset()
    return { rss, heapUsed, external, elu: round(utilization), eventLoopP99: round(p99) }
  }

  stop(): void {
    this.#delay.disable()
  }
}

function round(value: number): number {
  return Number.isFinite(value) ? Math.round(value * 1_000) / 1_000 : 0
}
