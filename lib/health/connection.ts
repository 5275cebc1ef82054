import type pg from 'pg'
import { ClosedError } from '../core/errors.ts'
import { type Connector, destroyClient } from '../db/connector.ts'
import { isConnectionError } from '../db/database.ts'

const keptMs = 60_000

/**
 * The connection of probes, apart from the pools: where every pooled connection is in use, the cluster is busy and
 * not ill. It is kept for a minute after its last use, so that probes go on where the server takes no new ones.
 */
export class HealthConnection {
  readonly #connector: Connector
  readonly #inUse = new Set<pg.Client>()
  #kept: pg.Client | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(connector: Connector) {
    this.#connector = connector
  }

  /**
   * Runs `work`, and once more when the kept connection turns out to be dead. When `signal` aborts, its reason is
   * thrown at once, and the connection is cut in the middle of whatever it does.
   */
  async run<T>(work: (client: pg.Client) => Promise<T>, signal: AbortSignal): Promise<T> {
    try {
      return await this.#run(work, signal)
    } catch (error) {
      // Whatever the driver says of a connection that was cut then.
      if (this.#closed) throw closedError(error)
      throw error
    }
  }

  async #run<T>(work: (client: pg.Client) => Promise<T>, signal: AbortSignal): Promise<T> {
    const kept = this.#take()
    if (kept) {
      try {
        return await this.#use(kept, work, signal)
      } catch (error) {
        if (signal.aborted || this.#closed || !isConnectionError(error)) throw error
      }
    }
    return this.#use(await this.#connect(signal), work, signal)
  }

  /** Ends what is open, in use or not. */
  async close(): Promise<void> {
    this.#closed = true
    const kept = this.#take()
    await Promise.all([...this.#inUse, ...(kept ? [kept] : [])].map(destroyClient))
  }

  async #use<T>(client: pg.Client, work: (client: pg.Client) => Promise<T>, signal: AbortSignal): Promise<T> {
    this.#inUse.add(client)
    let isGood = false
    try {
      const result = await unlessAborted(work(client), signal)
      isGood = true
      return result
    } finally {
      this.#inUse.delete(client)
      if (isGood && !this.#closed && !this.#kept) this.#keep(client)
      else void destroyClient(client)
    }
  }

  async #connect(signal: AbortSignal): Promise<pg.Client> {
    const connecting = this.#connector.connect({
      target: 'base',
      applicationName: 'pgbus-health',
      statementTimeout: 0,
      onError: () => this.#forget(),
    })
    try {
      const client = await unlessAborted(connecting, signal)
      if (this.#closed) throw closedError()
      return client
    } catch (error) {
      // What arrives late is of no use to anybody.
      void connecting.then(destroyClient, () => undefined)
      throw error
    }
  }

  #keep(client: pg.Client): void {
    this.#kept = client
    // It keeps no process alive that has nothing else to do.
    socketOf(client).unref()
    this.#timer = setTimeout(() => this.#forget(), keptMs)
    this.#timer.unref()
  }

  #take(): pg.Client | undefined {
    const kept = this.#kept
    this.#kept = undefined
    clearTimeout(this.#timer)
    if (kept) socketOf(kept).ref()
    return kept
  }

  #forget(): void {
    const kept = this.#take()
    if (kept) void destroyClient(kept)
  }
}

function closedError(cause?: unknown): ClosedError {
  return new ClosedError('this pgbus instance was closed meanwhile', { cause })
}

/** The client's own methods, which its types do not tell of. */
function socketOf(client: pg.Client): { ref(): void; unref(): void } {
  return client as unknown as { ref(): void; unref(): void }
}

function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason)
    if (signal.aborted) aborted()
    signal.addEventListener('abort', aborted, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', aborted))
  })
}
