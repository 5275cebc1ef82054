import { toError } from '../../core/report.ts'
import type { WakeSource } from '../wake-source.ts'
import { FailoverListener } from './failover-listener.ts'
import { HubClient } from './hub-client.ts'
import { createStreamsListener, LocalSource, type StreamsListenerOptions } from './local-source.ts'

export interface WakeSourceOptions extends StreamsListenerOptions {
  /** Path of the hub's socket, or null when this host has none. */
  hubSocket: string | null
  /** Which web worker this is, for the hub's log. */
  worker?: { index: number; phase: number } | undefined
}

/**
 * The wake source of this process: through the hub of this host when there is one and it answers, else a
 * LISTEN connection of its own. Never fails; a database that is away is waited for in the background.
 */
export async function createWakeSource(options: WakeSourceOptions): Promise<WakeSource> {
  const { config, log, report, hubSocket, worker } = options
  const local = () => new LocalSource(createStreamsListener(options))
  const streamsLog = log.child({ component: 'streams' })
  const useLocal = (reason: string) => {
    streamsLog.info(`using a local listener: ${reason}`)
    return local()
  }
  if (config.streams.listenScope !== 'master') return useLocal('streams.listenScope is "process"')
  if (hubSocket === null) return useLocal('this process has no hub')
  try {
    const hub = await HubClient.connect({
      path: hubSocket,
      index: worker?.index,
      phase: worker?.phase,
      ackTimeout: config.streams.ackTimeout,
      log,
      report,
    })
    streamsLog.info(`listening through the hub at ${hubSocket}`)
    return new FailoverListener({ hub, local, log, report })
  } catch (error) {
    return useLocal(toError(error).message)
  }
}
