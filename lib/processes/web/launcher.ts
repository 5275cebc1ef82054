import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { type LoadedConfig, loadConfig } from '../../config/load.ts'
import type { PgbusConfig } from '../../config/options.ts'
import { BootError, ConfigurationError } from '../../core/errors.ts'
import { createLogger, type Logger } from '../../core/log.ts'
import { createReport } from '../../core/report.ts'
import type { HostReadyMessage } from '../messages.ts'
import { AppHost } from './app-host.ts'
import { formatBind, probeBind } from './bind.ts'
import { HubKeeper } from './hub-keeper.ts'
import { Primary } from './primary.ts'
import { StopSignals } from './stop-signals.ts'

export interface LaunchOptions {
  /** Configuration file; default: looked for as every command does. */
  file?: string | undefined
  /** Application module, relative to the working directory. */
  app?: string | undefined
  host?: string | undefined
  port?: number | undefined
  workers?: number | 'auto' | undefined
  env: NodeJS.ProcessEnv
  version: string
}

/** What runs until it is told to stop: a cluster, or the application in this process. */
interface Runner {
  /** Resolves to the addresses once everything serves. */
  start(): Promise<readonly string[]>
  /** Lets everything finish, then ends it. */
  stop(reason: string): Promise<void>
  /** Ends everything now. */
  kill(): Promise<void>
}

/** The configuration of this run. */
interface Setup extends LoadedConfig {
  /** Absolute path of the application module. */
  app: string
  /** Variables that make a worker load the same configuration. */
  env: Record<string, string>
  secretMadeUp: boolean
}

/**
 * Runs pgbus-web until it is told to stop. Resolves to the exit code: 0, or 1 when a second signal cut it short.
 * @throws ConfigurationError when there is nothing to run, BootError when it cannot be run.
 */
export async function launch(options: LaunchOptions): Promise<number> {
  const signals = new StopSignals()
  try {
    const setup = await configure(options)
    const { config } = setup
    const root = createLogger(config.log)
    const log = root.child({ component: 'web.primary' })
    signals.log = log
    for (const { path, rule } of setup.warnings) log.warn({ key: path }, `configuration: ${path} ${rule}`)

    const single = config.web.workers === 0
    const bind = { host: config.web.host, port: config.web.port }
    process.title = `pgbus-web: ${single ? 'single' : 'primary'} ${options.version} (${formatBind(bind)})`
    await probeBind(bind)
    if (setup.secretMadeUp)
      log.info(
        'streams.secret is not set: one was made up for this run, and open pages do not survive a restart',
      )
    if (config.web.workers === 1) log.info('one worker: with web.workers 0 this process serves by itself')
    if (signals.received) return signals.crashed ? 1 : 0
    return await run(single ? singleRunner(setup) : clusterRunner(setup, root, log), signals, log)
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

function clusterRunner({ config, env }: Setup, root: Logger, log: Logger): Runner {
  const { enabled, listenScope } = config.streams
  const hub =
    enabled && listenScope === 'master'
      ? new HubKeeper({ config, log: root, report: createReport(root, config.errorReporters) })
      : undefined
  if (hub) env.PGBUS_STREAMS_HUB_SOCKET = hub.path
  const primary = new Primary({ config, log, env })
  return {
    start: async () => {
      // Before the first worker, which looks for it once.
      await hub?.open()
      try {
        return await primary.start()
      } catch (error) {
        await primary.stop('boot failed')
        await hub?.close()
        throw error
      }
    },
    // The hub outlives the workers: their last reads need its wakes.
    stop: reason => primary.stop(reason).then(() => hub?.close()),
    kill: () => primary.kill().then(() => hub?.close()),
  }
}

function singleRunner({ config, app }: Setup): Runner {
  const host = new AppHost({ config, app, index: 0 })
  return {
    start: async () => {
      try {
        const addresses = await host.boot()
        host.log.info(`listening on ${addresses.join(', ')}`)
        return addresses
      } catch (error) {
        await host.drain(0)
        throw error
      }
    },
    stop: () => host.drain(config.web.shutdownTimeout),
    kill: async () => undefined,
  }
}

/** Loads the configuration; flags win. */
async function configure(options: LaunchOptions): Promise<Setup> {
  const { app, host, port, workers, file, env } = options
  const load = (overrides: PgbusConfig) =>
    loadConfig({ env, overrides: { web: { app, host, port, workers }, ...overrides }, ...(file && { file }) })
  let loaded = await load({})

  const named = loaded.config.web.app
  if (named === null)
    throw new ConfigurationError(
      'web.app is required: name the application module as an argument, or set web.app in the configuration',
    )
  // A path in a file belongs to the folder of that file; one from anywhere else to the working directory.
  const folder = loaded.file !== null && loaded.sources.get('web.app') === 'file' ? dirname(loaded.file) : '.'
  const path = resolve(folder, named)
  if (!existsSync(path)) throw new BootError(`app module ${path} does not exist`)

  const workerEnv: Record<string, string> = {
    ...(loaded.file !== null && { PGBUS_CONFIG: loaded.file }),
    PGBUS_WEB_APP: path,
    PGBUS_WEB_HOST: loaded.config.web.host,
    PGBUS_WEB_PORT: String(loaded.config.web.port),
    PGBUS_WEB_WORKERS: String(loaded.config.web.workers),
  }
  const { streams } = loaded.config
  const secretMadeUp = streams.enabled && streams.secret.length === 0 && env.NODE_ENV !== 'production'
  if (secretMadeUp) {
    const secret = randomBytes(32).toString('hex')
    workerEnv.PGBUS_STREAMS_SECRET = secret
    loaded = await load({ streams: { secret } })
  }
  return { ...loaded, app: path, env: workerEnv, secretMadeUp }
}
