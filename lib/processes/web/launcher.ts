import { createLogger, type Logger } from '../../core/log.ts'
import type { HostReadyMessage } from '../messages.ts'
import { bindsOf, formatBind, probeBind } from './bind.ts'
import { clusterRunner } from './cluster-runner.ts'
import type { RestartSignals } from './restart-signals.ts'
import type { Runner } from './runner.ts'
import { configure, type SetupOptions } from './setup.ts'
import { singleRunner } from './single-runner.ts'
import { StopSignals } from './stop-signals.ts'

export interface LaunchOptions {
  setup: SetupOptions
  version: string
  /** Listening since the process began. */
  restartSignals: RestartSignals
}

/**
 * Runs pgbus-web until it is told to stop. Resolves to the exit code: 0, or 1 when a second signal cut it short.
 * @throws ConfigurationError when there is nothing to run, BootError when it cannot be run.
 */
export async function launch(options: LaunchOptions): Promise<number> {
  const signals = new StopSignals()
  try {
    const setup = await configure(options.setup)
    const { config } = setup
    const root = createLogger(config.log)
    const log = root.child({ component: 'web.primary' })
    signals.log = log
    for (const { path, rule } of setup.warnings) log.warn({ key: path }, `configuration: ${path} ${rule}`)

    const single = config.web.workers === 0
    const binds = bindsOf(config.web)
    process.title = `pgbus-web: ${single ? 'single' : 'primary'} ${options.version} (${binds.map(formatBind).join(', ')})`
    for (const bind of binds) await probeBind(bind)
    if (setup.madeUpSecret !== undefined)
      log.info(
        'streams.secret is not set: one was made up for this run, and open pages do not survive a restart',
      )
    if (config.web.workers === 1) log.info('one worker: with web.workers 0 this process serves by itself')
    if (signals.received) return signals.crashed ? 1 : 0
    const runner = single ? singleRunner(setup) : clusterRunner({ options: options.setup, setup, root, log })
    options.restartSignals.listen((signal, kind) => {
      if (runner.restart) {
        log.info(`${signal}: ${kind === 'reload' ? 'restart with the configuration read anew' : 'restart'}`)
        runner.restart(kind)
      } else
        log.warn(
          `${signal}: without workers (web.workers 0) nobody serves during a restart; restart the process`,
        )
    })
    return await run(runner, signals, log)
  } finally {
    signals.release()
  }
}

async function run(runner: Runner, signals: StopSignals, log: Logger): Promise<number> {
  const starting = runner.start()
  starting.catch(() => undefined)
  const outcome = await Promise.race([starting, signals.first])
  if (typeof outcome !== 'string') {
    const ready: HostReadyMessage = { pgbus: 'host', t: 'ready', addresses: [...outcome] }
    if (process.connected) process.send?.(ready, undefined, undefined, () => undefined)
  }
  const reason = await signals.first
  log.info(`stopping: ${reason}`)
  const stopped = runner.stop(reason).then(() => 'stopped' as const)
  if ((await Promise.race([stopped, signals.second])) === 'stopped') {
    log.info('stopped')
    return signals.crashed ? 1 : 0
  }
  log.warn('told to stop again: ending everything now')
  await runner.kill()
  return 1
}
