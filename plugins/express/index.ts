export { type Authorize, connectionIdOf } from '../../lib/streams/endpoint.ts'
export { type PgbusHealthExpress, pgbusHealthExpress } from './health.ts'
export {
  type PgbusStreamsExpress,
  type PgbusStreamsExpressOptions,
  pgbusStreamsExpress,
} from './streams.ts'
