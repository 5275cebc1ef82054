import type { AddressInfo } from 'node:net'
import Fastify, { type FastifyInstance, type FastifyServerOptions } from 'fastify'
import type { PgbusConfig } from '../../../lib/config/options.ts'
import type { Logger } from '../../../lib/core/log.ts'
import type { Pgbus } from '../../../lib/pgbus.ts'
import { type PgbusStreamsOptions, pgbusStreams } from '../../../plugins/fastify/index.ts'
import { createDatabase, type TestContext, type TestDatabase } from '../../support/database.ts'
import { createTestPgbus } from '../../support/instance.ts'
import { openSse, type SseClient } from '../../support/sse-client.ts'

export interface StreamsApp {
  db: TestDatabase
  pgbus: Pgbus
  app: FastifyInstance
  /** Origin, without a slash at its end. */
  origin: string
  /** Opens a stream by name, with the token and, if given, the cursor. */
  follow(
    stream: string,
    options?: { since?: number | string; headers?: Record<string, string> },
  ): Promise<SseClient>
}

/** A database, an instance on it and a Fastify application with the plugin, listening. */
export async function startApp(
  t: TestContext,
  options: {
    streams?: PgbusConfig['streams']
    /** Logger of the instance. Default: silent. */
    log?: Logger
    plugin?: Omit<PgbusStreamsOptions, 'pgbus'>
    fastify?: FastifyServerOptions
    /** Called before the plugin is registered. */
    prepare?: (app: FastifyInstance) => void | Promise<void>
    /** Default: one of its own. */
    db?: TestDatabase
  } = {},
): Promise<StreamsApp> {
  const db = options.db ?? (await createDatabase(t))
  const pgbus = createTestPgbus(t, db, {
    streams: options.streams,
    ...(options.log ? { log: { logger: options.log } } : {}),
  })
  const app = Fastify({ forceCloseConnections: 'idle', ...options.fastify })
  t.teardown(() => app.close())
  await options.prepare?.(app)
  await app.register(pgbusStreams, { pgbus, ...options.plugin })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const origin = `http://127.0.0.1:${(app.server.address() as AddressInfo).port}`
  return {
    db,
    pgbus,
    app,
    origin,
    follow: (stream, { since, headers } = {}) =>
      openSse(`${origin}${pgbus.stream(stream).url()}${since === undefined ? '' : `?since=${since}`}`, {
        ...(headers ? { headers } : {}),
      }),
  }
}

/** Ids of the durable frames that a client got. */
export function idsOf(client: SseClient): number[] {
  return client.frames.filter(frame => frame.id !== null).map(frame => Number(frame.id))
}

/** Data of the frames that are not about the connection itself. */
export function dataOf(client: SseClient): string[] {
  return client.frames
    .filter(frame => frame.event && !frame.event.startsWith('pgbus:'))
    .map(frame => frame.data)
}
