import type { ResolvedConfig } from '../config/options.ts'
import { deadline } from '../core/deadline.ts'
import { type Duration, parseDelay } from '../core/duration.ts'
import { HealthTimeoutError, SchemaNotReadyError } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Connector } from '../db/connector.ts'
import { sqlState } from '../db/database.ts'
import { handlerQueues } from '../pgmq/handler-queues.ts'
import { HealthConnection } from './connection.ts'
import { readFacts } from './facts.ts'
import { type HealthVerdict, judge } from './verdict.ts'

export interface HealthOptions {
  /**
   * How long a message may be claimable and claimed by nobody before its queue stands still; 0: it may not. Default
   * `health.unreadGrace`.
   */
  unreadGrace?: Duration | undefined
}

/** A schema, a table or a function is missing. */
const missingCodes = new Set(['3F000', '42P01', '42883'])

/** Asks the database how the whole cluster is. */
export class Health {
  readonly #config: ResolvedConfig
  readonly #log: Logger
  readonly #connection: HealthConnection

  constructor(options: { config: ResolvedConfig; connector: Connector; log: Logger }) {
    this.#config = options.config
    this.#log = options.log
    this.#connection = new HealthConnection(options.connector)
  }

  /** See `Pgbus.health`. */
  async check({ unreadGrace: given }: HealthOptions = {}): Promise<HealthVerdict> {
    const unreadGrace =
      given === undefined ? this.#config.health.unreadGrace : parseDelay('unreadGrace', given)
    const facts = await this.#limited(signal =>
      this.#connection.run(
        client =>
          readFacts(client, this.#config, { unreadGrace, statementTimeout: this.#config.health.timeout }),
        signal,
      ),
    )
    if (facts.oldestTransaction instanceof Error)
      this.#log.warn({ err: facts.oldestTransaction }, 'statistics of the database could not be read')
    return judge(facts, { ...this.#config, unreadGrace, handlerQueues })
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  async #limited<T>(read: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { timeout } = this.#config.health
    const limit = new AbortController()
    const cancel = deadline(timeout, () => {
      limit.abort(
        new HealthTimeoutError(
          `no answer from the database within ${timeout} ms (health.timeout); it is away or overloaded`,
        ),
      )
    })
    try {
      return await read(limit.signal)
    } catch (error) {
      throw explained(error, timeout)
    } finally {
      cancel()
    }
  }
}

function explained(error: unknown, timeout: number): unknown {
  if (missingCodes.has(sqlState(error)))
    return new SchemaNotReadyError(
      `pgbus is not installed in this database, or not far enough (${(error as Error).message}) — run "pgbus migrate"`,
      { cause: error },
    )
  // The server's own limit, which may come first.
  if (sqlState(error) === '57014')
    return new HealthTimeoutError(
      `the queues could not be looked at within ${timeout} ms (health.timeout); the database is overloaded`,
      { cause: error },
    )
  return error
}
