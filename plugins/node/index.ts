export { type Authorize, connectionIdOf } from '../../lib/streams/endpoint.ts'
export type { NodeRequest, NodeResponse } from './door.ts'
export { createHealthHandler, type HealthHandler, type HealthHandlerOptions } from './health.ts'
export { createStreamsHandler, type StreamsHandler, type StreamsHandlerOptions } from './streams.ts'
