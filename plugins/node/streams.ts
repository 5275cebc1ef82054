import { type NodeRequest, type NodeResponse, StreamsDoor, type StreamsDoorOptions } from './door.ts'

export type StreamsHandlerOptions = StreamsDoorOptions<NodeRequest>

/** Answers requests below its prefix. False: the request is not for it, and was not touched. */
export interface StreamsHandler {
  (request: NodeRequest, response: NodeResponse): boolean
  /** Ends every open stream. Call it before `server.close()`, which would wait for them. */
  close(): Promise<void>
}

/**
 * Streams for a server of `node:http`, `node:https` or `node:http2`.
 * @throws TypeError, MissingSecretError
 */
export function createStreamsHandler(options: StreamsHandlerOptions): StreamsHandler {
  const door = new StreamsDoor(options)
  const handle = (request: NodeRequest, response: NodeResponse): boolean => {
    const [path = ''] = (request.url ?? '').split('?', 1)
    if (path !== door.prefix && !path.startsWith(`${door.prefix}/`)) return false
    door.answer(request, response, path.slice(door.prefix.length + 1), request)
    return true
  }
  return Object.assign(handle, { close: () => door.close() })
}
