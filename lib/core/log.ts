import { pino } from 'pino'

/** What pgbus needs of a logger. A pino logger, or `fastify.log`, fits. */
export interface Logger {
  debug(fields: object, message: string): void
  debug(message: string): void
  info(fields: object, message: string): void
  info(message: string): void
  warn(fields: object, message: string): void
  warn(message: string): void
  error(fields: object, message: string): void
  error(message: string): void
  child(bindings: Record<string, unknown>): Logger
}

export type LogLevel = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent'

export interface LogOptions {
  /** A logger of the host; its format and level are left as they are. */
  logger: Logger | null
  /** `auto`: text on a terminal, else JSON lines. */
  format: 'auto' | 'text' | 'json'
  level: LogLevel
}

const redactedPaths = [
  'password',
  'token',
  'secret',
  'databaseUrl',
  'arguments',
  '*.password',
  '*.secret',
  '*.token',
]

/** The root logger of one instance. Everything else logs through `log.child({ component })`. */
export function createLogger(options: LogOptions): Logger {
  if (options.logger) return options.logger
  const text = options.format === 'text' || (options.format === 'auto' && process.stdout.isTTY === true)
  const base = {
    level: options.level,
    base: { pid: process.pid },
    timestamp: () => `,"ts":"${new Date().toISOString()}"`,
    formatters: { level: (label: string) => ({ lvl: label.toUpperCase() }) },
    redact: { paths: redactedPaths, censor: '[REDACTED]' },
  }
  return text
    ? pino(base, { write: line => process.stdout.write(formatLine(line)) })
    : pino(base, pino.destination({ fd: 1, sync: true }))
}

/** One JSON line as `LEVEL time pid=N key=value: message`. */
function formatLine(line: string): string {
  const { lvl, ts, msg, err, ...fields } = JSON.parse(line) as Record<string, unknown>
  const pairs = Object.entries(fields).map(
    ([key, value]) => `${key}=${typeof value === 'object' ? JSON.stringify(value) : String(value)}`,
  )
  const { message, stack } = (err ?? {}) as { message?: unknown; stack?: unknown }
  const error = message === undefined || String(msg).includes(String(message)) ? '' : ` (${String(message)})`
  const trace = lvl === 'ERROR' && typeof stack === 'string' ? `\n${stack}` : ''
  return `${String(lvl)} ${String(ts)} ${pairs.join(' ')}: ${String(msg)}${error}${trace}\n`
}
