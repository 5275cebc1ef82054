/** The browser client. Importing it defines `<pgbus-stream-source>` where there is a DOM. */
export {
  type CloseDetail,
  type EventDetail,
  type MessageDetail,
  PgbusStream,
  type PgbusStreamOptions,
  type StreamState,
  type TypedDetail,
} from './pgbus-stream.ts'
export { PgbusStreamSource } from './stream-source.ts'
export { type Turbo, useTurbo } from './turbo.ts'
