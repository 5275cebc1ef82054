import type { Token } from '../pgmq/statements.ts'
import type { ErrorRecord } from './failures.ts'

const maxMessageLength = 1_000

/** JSON text of the header that tells a buried message's story. Keys are shared with clients in other languages. */
export function deadLetterText(
  physical: string,
  token: Token,
  error: ErrorRecord | null,
  failedAt: Date,
  more: Readonly<Record<string, unknown>> = {},
): string {
  return JSON.stringify({
    // Where a retry of the dead letter has to go.
    queue: physical,
    msg_id: token.msgId,
    read_ct: token.readCount,
    ...(error && {
      error_class: error.errorClass,
      error_message: wellFormed(error.errorMessage.slice(0, maxMessageLength)),
    }),
    failed_at: failedAt.toISOString(),
    ...more,
  })
}

/** The cut may have halved a surrogate pair, which `jsonb` refuses. */
function wellFormed(text: string): string {
  return (text as string & { toWellFormed(): string }).toWellFormed()
}
