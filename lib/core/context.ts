import { AsyncLocalStorage } from 'node:async_hooks'
import type { Pgbus } from '../pgbus.ts'
import { ConfigurationError } from './errors.ts'
import type { Logger } from './log.ts'

/** What the code that a handler calls can find without being given it. */
export interface HandlerContext {
  readonly pgbus: Pgbus
  readonly log: Logger
}

interface ProcessContext {
  readonly running: AsyncLocalStorage<HandlerContext>
  readonly instances: Set<Pgbus>
}

const key = Symbol.for('pgbus.context')
const holder = globalThis as { [key]?: ProcessContext }

/** One per process, so that two copies of the package agree. */
holder[key] ??= { running: new AsyncLocalStorage<HandlerContext>(), instances: new Set<Pgbus>() }
const { running, instances } = holder[key]

/** Context of the running handler. */
export const runningHandler: AsyncLocalStorage<HandlerContext> = running

/** Every instance that is open in this process. */
export const openInstances: Set<Pgbus> = instances

/**
 * The instance that is meant: the one given, else that of the running handler, else the only open one.
 * @throws ConfigurationError when that leaves none or several.
 */
export function currentInstance(given?: Pgbus): Pgbus {
  const instance =
    given ?? running.getStore()?.pgbus ?? (instances.size === 1 ? [...instances][0] : undefined)
  if (instance) return instance
  throw new ConfigurationError(
    `${instances.size === 0 ? 'no pgbus instance is' : `${instances.size} pgbus instances are`} open in this process — pass { pgbus } or use pgbus.enqueue`,
  )
}
