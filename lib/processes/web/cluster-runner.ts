import { isDeepStrictEqual } from 'node:util'
import type { ResolvedConfig } from '../../config/options.ts'
import type { Logger } from '../../core/log.ts'
import { createReport } from '../../core/report.ts'
import { HubKeeper } from './hub-keeper.ts'
import { Primary } from './primary.ts'
import { reload } from './reload.ts'
import { Restarts } from './restarts.ts'
import type { Runner } from './runner.ts'
import { releaseOf, type Setup, type SetupOptions } from './setup.ts'

export interface ClusterRunnerOptions {
  /** Where the configuration came from, for the next time. */
  options: SetupOptions
  setup: Setup
  /** The root logger of the instance. */
  root: Logger
  log: Logger
}

/** A primary with its workers, the hub that they share, and restarts of them. */
export function clusterRunner({ options, setup: first, root, log }: ClusterRunnerOptions): Runner {
  let setup = first
  let phase = 0
  const { config } = first
  const { enabled, listenScope } = config.streams
  const hub =
    enabled && listenScope === 'master'
      ? new HubKeeper({ config, log: root, report: createReport(root, config.errorReporters) })
      : undefined
  if (hub) setup.env.PGBUS_STREAMS_HUB_SOCKET = hub.path
  const primary = new Primary({ release: releaseOf(setup, phase), log })
  const restarts = new Restarts({
    log,
    run: async kind => {
      const wanted = kind === 'reload' ? await reload(options, setup) : setup
      warnOfChanges(first.config, wanted, log)
      phase += 1
      await primary.replaceAll(releaseOf(wanted, phase))
      setup = wanted
    },
  })
  return {
    start: async () => {
      // Before the first worker, which looks for it once.
      await hub?.open()
      try {
        const addresses = await primary.start()
        restarts.open()
        return addresses
      } catch (error) {
        await primary.stop('boot failed')
        await hub?.close()
        throw error
      }
    },
    // The hub outlives the workers: their last reads need its wakes.
    stop: reason => {
      restarts.close()
      return primary.stop(reason).then(() => hub?.close())
    },
    kill: () => primary.kill().then(() => hub?.close()),
    restart: kind => void restarts.request(kind).catch(() => undefined),
  }
}

/** What this process itself goes by, and keeps until it is started again. */
const kept: readonly [keys: string, of: (config: ResolvedConfig) => unknown][] = [
  ['web.bind, web.host and web.port', ({ web: { bind, host, port } }) => [bind, host, port]],
  ['web.workers', ({ web }) => web.workers],
  ['web.hubSocket', ({ web }) => web.hubSocket],
  [
    'streams.enabled and streams.listenScope',
    ({ streams: { enabled, listenScope } }) => [enabled, listenScope],
  ],
  ['log', ({ log }) => log],
]

function warnOfChanges(config: ResolvedConfig, { config: wanted, warnings }: Setup, log: Logger): void {
  for (const [keys, of] of kept) {
    if (isDeepStrictEqual(of(config), of(wanted))) continue
    log.warn(`configuration: a change of ${keys} takes effect when the process is started again`)
  }
  for (const { path, rule } of warnings) log.warn({ key: path }, `configuration: ${path} ${rule}`)
}
