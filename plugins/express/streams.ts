import { type NodeRequest, type NodeResponse, StreamsDoor, type StreamsDoorOptions } from '../node/door.ts'

export type PgbusStreamsExpressOptions<R extends NodeRequest = NodeRequest> = StreamsDoorOptions<R>

/** Middleware of Express 4 and 5. */
export interface PgbusStreamsExpress<R extends NodeRequest> {
  (request: R, response: NodeResponse, next: (error?: unknown) => void): void
  /** Ends every open stream. Call it before `server.close()`, which would wait for them. */
  close(): Promise<void>
}

/**
 * Streams for an Express application: `app.use('/pgbus/streams', pgbusStreamsExpress({ pgbus }))`. Mount it
 * behind what `authorize` needs, such as the session, and before compression and body parsers. Mounted
 * elsewhere, `prefix` says where.
 * @throws TypeError, MissingSecretError
 */
export function pgbusStreamsExpress<R extends NodeRequest = NodeRequest>(
  options: PgbusStreamsExpressOptions<R>,
): PgbusStreamsExpress<R> {
  const door = new StreamsDoor(options)
  const handle = (request: R, response: NodeResponse): void => {
    // Express has cut the mount path off.
    const [path = ''] = (request.url ?? '').split('?', 1)
    door.answer(request, response, path.slice(1), request)
  }
  return Object.assign(handle, { close: () => door.close() })
}
