import { InvalidQueueNameError } from '../core/errors.ts'

/** A name that is safe inside SQL text: checked, and wrapped in double quotes. */
export type QuotedIdentifier = string & { readonly __brand: 'QuotedIdentifier' }

/** Quotes a name for use inside SQL. This is the only way a name becomes SQL text. */
export function quoteIdentifier(name: string): QuotedIdentifier {
  if (name === '' || name.includes('\0'))
    throw new InvalidQueueNameError(`${JSON.stringify(name)} is not an SQL identifier`)
  return `"${name.replaceAll('"', '""')}"` as QuotedIdentifier
}
