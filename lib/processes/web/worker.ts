import cluster from 'node:cluster'
import { loadConfig } from '../../config/load.ts'
import type { Logger } from '../../core/log.ts'
import { toError } from '../../core/report.ts'
import type { PrimaryToWebWorker, WebWorkerToPrimary } from '../messages.ts'
import { AppHost } from './app-host.ts'

/** After a crash, running requests get this long; a second later the process ends, whatever they do. */
const crashDrainMs = 4_000

/** An application that left something open does not keep its process. */
const lingerMs = 1_000

/**
 * A worker of the cluster, from its first message to its end. When the primary dies, Node ends this process
 * as soon as the channel closes; nothing here has to.
 */
export async function runWorker(env: NodeJS.ProcessEnv): Promise<void> {
  const index = Number(env.PGBUS_WEB_INDEX ?? 0)
  const phase = Number(env.PGBUS_WEB_PHASE ?? 0)
  process.title = `pgbus-web: worker ${index}`

  let host: AppHost | undefined
  let log: Logger | undefined
  let ending: Promise<void> | undefined

  const end = (code: number, budget: number, { handover = false }: { handover?: boolean } = {}) => {
    ending ??= (async () => {
      tell({ pgbus: 'web', t: 'draining', connections: host?.connections ?? 0 })
      await host?.drain(budget, { handover })
      leave(code)
    })()
    return ending
  }
  const fail = (thrown: unknown) => {
    const error = toError(thrown)
    // Once it drains, the first reason is the one that counts.
    if (ending) return
    log?.error({ err: error }, `fatal: ${error.message}`)
    tell({ pgbus: 'web', t: 'fatal', message: oneLine(error) })
    process.exitCode = 1
    setTimeout(() => process.exit(1), crashDrainMs + 1_000).unref()
    void end(1, crashDrainMs)
  }

  process.on('uncaughtException', error => {
    if (ending) log?.error({ err: error }, `while stopping: ${toError(error).message}`)
    else fail(error)
  })
  process.on('message', (message: PrimaryToWebWorker) => {
    if (message?.pgbus === 'web' && message.t === 'stop') void end(0, message.deadlineMs, message)
  })

  tell({ pgbus: 'web', t: 'booting' })
  try {
    const { config } = await loadConfig({ env })
    // The primary replaces it.
    process.on('SIGTERM', () => void end(0, config.web.shutdownTimeout, { handover: true }))
    if (ending) return
    host = new AppHost({ config, app: config.web.app ?? '', index, phase })
    log = host.log
    const addresses = await host.boot()
    if (ending) return
    tell({ pgbus: 'web', t: 'ready', addresses })
    const checkIn = () => {
      if (host) tell({ pgbus: 'web', t: 'checkin', stats: host.stats() })
    }
    checkIn()
    setInterval(checkIn, config.web.checkInterval).unref()
  } catch (error) {
    fail(error)
  }
}

/** `disconnect` waits until the primary hands over no more connections; a plain exit would lose them. */
function leave(code: number): void {
  process.exitCode = code
  process.once('disconnect', () => {
    if (code === 0) setTimeout(() => process.exit(), lingerMs).unref()
    else process.exit()
  })
  cluster.worker?.disconnect()
}

/** A channel that is closed has nobody behind it. */
function tell(message: WebWorkerToPrimary): void {
  if (process.connected) process.send?.(message, undefined, undefined, () => undefined)
}

/** The kind of an error says something when it is one of the language, nothing when it is one of ours. */
function oneLine(error: Error): string {
  const text = error.message.split(/\s*\n\s*/).join(' ')
  return error.name === 'Error' || 'code' in error ? text : `${error.name}: ${text}`
}
