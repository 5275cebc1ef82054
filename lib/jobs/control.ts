import { type Duration, parseDelay } from '../core/duration.ts'

const brand = Symbol.for('pgbus.control')

/** Thrown by a handler that wants to run again after a delay of its own. Counts as an attempt, is not reported. */
export class RetryJob extends Error {
  readonly [brand] = 'retry'
  override readonly name = 'RetryJob'
  /** Milliseconds. */
  readonly delay: number

  constructor(options: { delay: Duration; reason?: string | undefined }) {
    super(options.reason ?? 'the job asked to run again')
    this.delay = parseDelay('RetryJob: delay', options.delay)
  }
}

/** Thrown by a handler whose job has become pointless: it is archived, and neither retried nor buried. */
export class DiscardJob extends Error {
  readonly [brand] = 'discard'
  override readonly name = 'DiscardJob'
}

/** By brand: the handler may have thrown the class of another copy of the package. */
export function isRetryJob(thrown: unknown): thrown is RetryJob {
  return brandOf(thrown) === 'retry'
}

export function isDiscardJob(thrown: unknown): thrown is DiscardJob {
  return brandOf(thrown) === 'discard'
}

function brandOf(thrown: unknown): unknown {
  try {
    return typeof thrown === 'object' && thrown !== null
      ? (thrown as { [brand]?: unknown })[brand]
      : undefined
  } catch {
    // A proxy that throws is none of ours.
    return undefined
  }
}
