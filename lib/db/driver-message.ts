import { redactUrl } from '../config/redact.ts'
import { toError } from '../core/report.ts'

/**
 * The driver's words on one line, without the password of a URL that it quotes. A host name with several addresses
 * fails with one error per address and no text of its own.
 */
export function driverMessage(thrown: unknown): string {
  const error = toError(thrown)
  const text =
    error.message === '' && error instanceof AggregateError
      ? error.errors.map(inner => toError(inner).message).join(', ')
      : error.message
  return text
    .replace(/postgres(ql)?:\/\/\S+/gi, url => redactUrl(url))
    .split('\n')
    .join(' ')
}
