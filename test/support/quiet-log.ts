import type { Logger } from '../../lib/core/log.ts'

/** Writes nothing. */
export const quiet: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => quiet,
}
