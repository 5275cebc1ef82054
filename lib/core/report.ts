import type { Logger } from './log.ts'

/** Called with each error that pgbus cannot hand to a caller. `context.action` says what was being done. */
export type ErrorReporter = (error: Error, context: ErrorContext) => void | Promise<void>

export interface ErrorContext {
  action: string
  [key: string]: unknown
}

/** Reports an error: logs it, then calls each reporter. Never throws, never waits. */
export type Report = (error: unknown, context: ErrorContext) => void

export function createReport(log: Logger, reporters: readonly ErrorReporter[]): Report {
  return (thrown, context) => {
    const error = toError(thrown)
    try {
      log.error({ err: error, ...context }, `${context.action}: ${error.message}`)
    } catch {
      // A logger that throws must not turn one failure into two.
    }
    for (const reporter of reporters) {
      try {
        Promise.resolve(reporter(error, context)).catch(failure =>
          log.warn({ err: failure }, 'an error reporter failed'),
        )
      } catch (failure) {
        log.warn({ err: failure }, 'an error reporter failed')
      }
    }
  }
}

/** Whatever was thrown, as an `Error`. Survives getters that throw. */
export function toError(thrown: unknown): Error {
  try {
    if (thrown instanceof Error) {
      void thrown.message
      return thrown
    }
  } catch {
    return new Error('[unreadable error]')
  }
  return new Error(describe(thrown), { cause: thrown })
}

function describe(thrown: unknown): string {
  try {
    if (typeof thrown === 'object' && thrown !== null) {
      const message = (thrown as { message?: unknown }).message
      if (typeof message === 'string') return message
    }
    return `thrown value: ${String(thrown)}`
  } catch {
    return '[unreadable error]'
  }
}
