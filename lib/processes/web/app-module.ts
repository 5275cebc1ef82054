import { createServer, type RequestListener, type Server } from 'node:http'
import { Server as TlsServer } from 'node:tls'
import { pathToFileURL } from 'node:url'
import type { FastifyInstance, FastifyPluginCallback, FastifyServerOptions } from 'fastify'
import type { ResolvedConfig } from '../../config/options.ts'
import { AppModuleError } from '../../core/errors.ts'
import { importReason } from '../../core/import-hint.ts'
import type { Logger } from '../../core/log.ts'
import type { Pgbus } from '../../pgbus.ts'
import { alreadyListening, formatAddress } from './bind.ts'

/** What an application module is given: first argument of `createApp`, options of a plugin. */
export interface AppContext {
  /** The instance of this process; closed by pgbus-web after the application. */
  pgbus: Pgbus
  config: ResolvedConfig
  /** `phase`: how many restarts there were before it was started. */
  worker: { index: number; phase: number; pid: number }
  log: Logger
  /** Aborts when draining starts. */
  signal: AbortSignal
}

/** An application that can be served, whatever its module exported. */
export interface App {
  readonly server: Server
  /** Makes everything ready, without listening. */
  ready(): Promise<void>
  /** Makes everything ready, then listens. Resolves to the URLs. */
  listen(where: ListenOptions): Promise<string[]>
  /** Resolves when running requests are finished and the application has closed what it opened. */
  close(): Promise<void>
}

export interface ListenOptions {
  host: string
  port: number
  backlog: number
}

type Shape =
  | { kind: 'fastify'; app: FastifyInstance }
  | { kind: 'plugin'; plugin: FastifyPluginCallback; options: FastifyServerOptions }
  | { kind: 'handler'; handler: RequestListener }
  | { kind: 'server'; server: Server }
  | { kind: 'factory'; createApp: (context: AppContext) => unknown }

const oneOf = 'export one of createApp, plugin, app, handler, server'

/** Imports a module and makes an application of it. */
export async function loadApp(path: string, context: AppContext): Promise<App> {
  const shape = findShape(await importModule(path), path)
  if (shape.kind !== 'factory') return adapt(shape, context)

  const made = await shape.createApp(context)
  const { result, close } = unwrap(made)
  const app = await adapt(findResultShape(result, path), context)
  if (close === undefined) return app
  return {
    ...app,
    close: async () => {
      try {
        await app.close()
      } finally {
        await close()
      }
    },
  }
}

async function importModule(path: string): Promise<Record<string, unknown>> {
  try {
    return (await import(pathToFileURL(path).href)) as Record<string, unknown>
  } catch (error) {
    const code = (error as NodeJS.ErrnoException | null)?.code
    const message = error instanceof Error ? error.message : String(error)
    if (code === 'ERR_MODULE_NOT_FOUND' && message.includes(`'${path}'`))
      throw new AppModuleError(`app module ${path} does not exist`, { cause: error })
    if (code === 'ERR_UNKNOWN_FILE_EXTENSION')
      throw new AppModuleError(
        `app module ${path} cannot be imported by plain Node; start pgbus-web under its loader (node --import …), or compile it`,
        { cause: error },
      )
    throw new AppModuleError(`app module ${path} failed to load: ${importReason(error)}`, { cause: error })
  }
}

/** @internal Decides what a module is. Exported for tests. */
export function findShape(exported: Record<string, unknown>, path: string): Shape {
  const names = namesOf(exported)
  const found = new Map<unknown, { name: string; shape: Shape }>()
  const take = (name: string, value: unknown, shape: Shape) => {
    // The same thing under two names is one thing.
    if (!found.has(value)) found.set(value, { name, shape })
  }
  const { createApp, plugin, app, handler, server } = names
  if (typeof createApp === 'function')
    take('createApp', createApp, { kind: 'factory', createApp: createApp as never })
  if (typeof plugin === 'function') take('plugin', plugin, pluginShape(plugin, names.options))
  for (const [name, value] of [['app', app] as const, ['default', names.default] as const]) {
    if (isExpress(value)) {
      if (found.has(value) || value === handler) continue
      throw new AppModuleError(
        `app module ${path} exports an Express application as ${name}; export it as handler`,
      )
    }
    if (isFastify(value)) take(name, value, { kind: 'fastify', app: value })
    else if (isServer(value)) take(name, value, { kind: 'server', server: value })
    else if (name === 'default' && typeof value === 'function' && value !== handler)
      take(
        name,
        value,
        (value as { kind?: unknown }).kind === 'factory'
          ? { kind: 'factory', createApp: value as never }
          : pluginShape(value, names.options),
      )
  }
  if (typeof handler === 'function')
    take('handler', handler, { kind: 'handler', handler: handler as RequestListener })
  if (isServer(server)) take('server', server, { kind: 'server', server })

  const [first, ...others] = found.values()
  if (first === undefined) {
    const seen = Object.keys(names).join(', ') || 'nothing'
    throw new AppModuleError(`app module ${path} exports no application (it exports ${seen}); ${oneOf}`)
  }
  if (others.length > 0) {
    const all = [first, ...others].map(({ name }) => name).join(' and ')
    throw new AppModuleError(`app module ${path} exports ${all}; ${oneOf}, not several`)
  }
  return first.shape
}

/** What `createApp` returned: an application, or an object like a module. A bare function could be two things. */
function findResultShape(result: unknown, path: string): Exclude<Shape, { kind: 'factory' }> {
  if (isFastify(result)) return { kind: 'fastify', app: result }
  if (isServer(result)) return { kind: 'server', server: result }
  if (typeof result === 'function')
    throw new AppModuleError(
      `createApp of ${path} returned a function; return { plugin } or { handler } to say which it is`,
    )
  if (typeof result === 'object' && result !== null) {
    const { app, plugin, handler, server, options } = result as Record<string, unknown>
    const shape = findShape({ app, plugin, handler, server, options }, `returned by createApp of ${path}`)
    if (shape.kind !== 'factory') return shape
  }
  throw new AppModuleError(
    `createApp of ${path} returned ${result === null ? 'null' : typeof result}; return a Fastify instance, an http.Server, or { app, close }`,
  )
}

async function adapt(shape: Exclude<Shape, { kind: 'factory' }>, context: AppContext): Promise<App> {
  switch (shape.kind) {
    case 'fastify':
      return fastifyApp(shape.app)
    case 'plugin': {
      const { fastify } = await importFastify()
      const app = fastify({
        ...shape.options,
        // A request that is already on an open connection is answered, not refused, while draining.
        return503OnClosing: false,
        forceCloseConnections: 'idle',
      })
      app.register(shape.plugin, context as never)
      return fastifyApp(app)
    }
    case 'handler':
      return serverApp(createServer(shape.handler))
    case 'server':
      return serverApp(shape.server)
  }
}

function fastifyApp(app: FastifyInstance): App {
  allowOneListen(app.server as Server)
  return {
    server: app.server as Server,
    ready: async () => void (await app.ready()),
    listen: async where => {
      await app.ready()
      await app.listen({ ...where, listenTextResolver: address => `listening at ${address}` })
      return app.addresses().map(address => formatAddress(address, app.server instanceof TlsServer))
    },
    // Runs `preClose` (open event streams end), waits for running requests, then runs `onClose`.
    close: async () => {
      await app.close()
    },
  }
}

function serverApp(server: Server): App {
  allowOneListen(server)
  return {
    server,
    ready: async () => undefined,
    listen: async where => {
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject)
        server.listen(where, () => {
          server.removeListener('error', reject)
          resolve()
        })
      })
      return [formatAddress(server.address(), server instanceof TlsServer)]
    },
    // A server that is closed already answers with an error, but only after its last connection ended.
    close: () => new Promise(resolve => server.close(() => resolve())),
  }
}

/**
 * A call of the application may be under way and not yet visible: a worker asks the primary first, and would
 * take two addresses without complaint.
 */
function allowOneListen(server: Server): void {
  if (server.listening) throw alreadyListening()
  const listen = server.listen
  let called = false
  server.listen = ((...args: Parameters<typeof listen>) => {
    if (called) throw alreadyListening()
    called = true
    return listen.apply(server, args)
  }) as typeof listen
}

async function importFastify() {
  try {
    return await import('fastify')
  } catch (error) {
    throw new AppModuleError(
      'the app module exports a Fastify plugin, and fastify is not installed: npm install fastify',
      { cause: error },
    )
  }
}

/** Named exports, also of a CommonJS module (whose `module.exports` is the default export). */
function namesOf(exported: Record<string, unknown>): Record<string, unknown> {
  const inner = exported.default
  if (typeof inner !== 'object' || inner === null || isFastify(inner) || isServer(inner)) return exported
  const { default: own, ...named } = exported
  void own
  return { ...named, ...(inner as Record<string, unknown>) }
}

/** `{ app, close }` in its parts. Fastify instances and servers have a `close` of their own. */
function unwrap(made: unknown): { result: unknown; close: (() => unknown) | undefined } {
  if (typeof made === 'object' && made !== null && !isFastify(made) && !isServer(made)) {
    const { close } = made as { close?: unknown }
    if (typeof close === 'function') return { result: made, close: () => close.call(made) }
  }
  return { result: made, close: undefined }
}

function pluginShape(plugin: unknown, options: unknown): Shape {
  return {
    kind: 'plugin',
    plugin: plugin as FastifyPluginCallback,
    options: typeof options === 'object' && options !== null ? options : {},
  }
}

function isFastify(value: unknown): value is FastifyInstance {
  if (typeof value !== 'object' || value === null) return false
  const { ready, listen, server } = value as Record<string, unknown>
  return typeof ready === 'function' && typeof listen === 'function' && typeof server === 'object'
}

function isServer(value: unknown): value is Server {
  if (typeof value !== 'object' || value === null || isFastify(value)) return false
  const { listen, close, address } = value as Record<string, unknown>
  return typeof listen === 'function' && typeof close === 'function' && typeof address === 'function'
}

function isExpress(value: unknown): boolean {
  if (typeof value !== 'function') return false
  const { use, handle } = value as unknown as Record<string, unknown>
  return typeof use === 'function' && typeof handle === 'function'
}
