export type { Authorize } from '../../lib/streams/endpoint.ts'
export { type PgbusHealthOptions, pgbusHealth } from './health.ts'
export { type PgbusStreamsOptions, pgbusStreams } from './streams.ts'
