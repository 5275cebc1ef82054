export type { Authorize } from '../../lib/streams/endpoint.ts'
export { type PgbusStreamsOptions, pgbusStreams } from './streams.ts'
