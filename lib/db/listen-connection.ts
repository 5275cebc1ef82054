import { randomBytes } from 'node:crypto'
import type pg from 'pg'
import { deadline } from '../core/deadline.ts'
import { type Deferred, deferred } from '../core/deferred.ts'
import { toError } from '../core/report.ts'
import { type Connector, destroyClient, type TargetName } from './connector.ts'
import { quoteIdentifier } from './identifier.ts'

export interface ListenConnectionOptions {
  connector: Connector
  target: Extract<TargetName, 'notify' | 'streams'>
  /** Longest time one batch of statements may take; beyond it the connection counts as broken. */
  commandTimeout: number
  /** Called with each notification of a channel that was LISTENed here. */
  onNotification: (channel: string, payload: string) => void
}

/** Longest wait for a notification that this connection asked for itself. */
export const probeTimeoutMs = 2_000
const batchSize = 500

/**
 * One LISTEN session and nothing above it: no reference counts, no reconnecting.
 *
 * Statements form one ordered chain. Deciding and queueing happen in the same tick, so the order in which
 * callers decided is the order in which the server sees LISTEN and UNLISTEN. One batch is in flight at a
 * time; what is asked for meanwhile goes into the next one, so a thousand channels cost a few round trips.
 *
 * It breaks once: an error, the end of the socket, or a batch without an answer. Then `lost` resolves and
 * every waiting statement rejects.
 */
export class ListenConnection {
  readonly #options: ListenConnectionOptions
  readonly #client: pg.Client
  readonly #probeChannel = `pgbus_probe_${process.pid}_${randomBytes(4).toString('hex')}`
  readonly #listening = new Map<string, Promise<void>>()
  readonly #lost = deferred<Error>()
  #queue: { text: string; timeout: number; done: Deferred<void> }[] = []
  #inFlight: Deferred<void>[] = []
  #broken: Error | undefined
  #closed: Promise<void> | undefined
  #probe: { nonce: string; came: Deferred<boolean> } | undefined
  readonly #probing = new Set<Promise<unknown>>()
  #lastHeard = Date.now()

  /**
   * Connects; refuses a standby.
   * @throws the driver's error, or ReplicaConnectionError. Nothing stays open then.
   */
  static async open(options: ListenConnectionOptions): Promise<ListenConnection> {
    let early: Error | undefined
    let connection: ListenConnection | undefined
    const client = await options.connector.connect({
      target: options.target,
      applicationName: 'pgbus-listen',
      statementTimeout: 0,
      mustBePrimary: true,
      onError: error => {
        if (connection) connection.#fail(error)
        else early = error
      },
    })
    connection = new ListenConnection(options, client)
    if (early) connection.#fail(early)
    return connection
  }

  private constructor(options: ListenConnectionOptions, client: pg.Client) {
    this.#options = options
    this.#client = client
    client.on('notification', message => this.#receive(message.channel, message.payload ?? ''))
    client.on('end', () => this.#fail(new Error('the server closed the connection')))
    // A server that ends idle sessions must not end this one. The setting exists since PostgreSQL 14.
    this.#send(
      `SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('server_version_num')::int >= 140000`,
    ).catch(ignore)
    this.listen(this.#probeChannel).catch(ignore)
  }

  /** Resolves with the reason once the connection broke or was closed. Never rejects. */
  get lost(): Promise<Error> {
    return this.#lost.promise
  }

  get broken(): boolean {
    return this.#broken !== undefined
  }

  /** When the server was last heard of, in milliseconds since the epoch. */
  get lastHeard(): number {
    return this.#lastHeard
  }

  isListening(channel: string): boolean {
    return this.#listening.has(channel)
  }

  /** Resolves when the server has answered LISTEN; concurrent callers share the statement. */
  listen(channel: string): Promise<void> {
    const known = this.#listening.get(channel)
    if (known) return known
    const answered = this.#send(`LISTEN ${quoteIdentifier(channel)}`)
    answered.catch(ignore)
    this.#listening.set(channel, answered)
    return answered
  }

  unlisten(channel: string): void {
    if (!this.#listening.delete(channel)) return
    this.#send(`UNLISTEN ${quoteIdentifier(channel)}`).catch(ignore)
  }

  /** Asks the server for a sign of life; without one within `timeout` the connection is broken. */
  async check(timeout: number): Promise<void> {
    await this.#send('SELECT 1', timeout).catch(ignore)
  }

  /**
   * Notifies this connection and says whether the notification arrived.
   *
   * A pooler in transaction mode forwards a notification only while a statement of ours runs, so a NOTIFY on
   * this connection comes back although nothing else ever would. With `elsewhere` the notification is sent by
   * a second, short connection; without one (cheaper) only a connection that had passed before is checked.
   */
  probe(elsewhere: boolean): Promise<boolean> {
    const probing = this.#runProbe(elsewhere)
    this.#probing.add(probing)
    return probing.finally(() => this.#probing.delete(probing))
  }

  /** Ends the connection: politely for at most 2 s, then by its socket. Resolves when it is closed. */
  close(): Promise<void> {
    this.#fail(new Error('closed'))
    return this.#closed!.then(() => Promise.all(this.#probing)).then(() => undefined)
  }

  async #runProbe(elsewhere: boolean): Promise<boolean> {
    const came = deferred<boolean>()
    const nonce = randomBytes(4).toString('hex')
    this.#probe = { nonce, came }
    const notify = `NOTIFY ${quoteIdentifier(this.#probeChannel)}, '${nonce}'`
    try {
      await this.listen(this.#probeChannel)
      // A server without a free connection for the second session says nothing about deliveries.
      if (!elsewhere || !(await this.#sendElsewhere(notify))) await this.#send(notify)
    } catch {
      return false
    }
    const cancel = deadline(probeTimeoutMs, () => came.resolve(false))
    try {
      return this.#broken ? false : await came.promise
    } finally {
      cancel()
    }
  }

  async #sendElsewhere(text: string): Promise<boolean> {
    const { connector, target } = this.#options
    try {
      const client = await connector.connect({
        target,
        applicationName: 'pgbus-probe',
        statementTimeout: probeTimeoutMs,
      })
      try {
        await client.query(text)
        return true
      } finally {
        await destroyClient(client)
      }
    } catch {
      return false
    }
  }

  #receive(channel: string, payload: string): void {
    this.#lastHeard = Date.now()
    if (channel === this.#probeChannel) {
      if (payload === this.#probe?.nonce) this.#probe.came.resolve(true)
      return
    }
    if (this.#listening.has(channel) && !this.#broken) this.#options.onNotification(channel, payload)
  }

  #send(text: string, timeout = this.#options.commandTimeout): Promise<void> {
    if (this.#broken) return Promise.reject(this.#broken)
    const done = deferred()
    this.#queue.push({ text, timeout, done })
    if (this.#inFlight.length === 0) void this.#pump()
    return done.promise
  }

  async #pump(): Promise<void> {
    while (this.#queue.length > 0 && !this.#broken) {
      const batch = this.#queue.splice(0, batchSize)
      this.#inFlight = batch.map(command => command.done)
      const timeout = Math.min(...batch.map(command => command.timeout))
      const cancel = deadline(timeout, () =>
        this.#fail(new Error(`the LISTEN connection gave no answer within ${timeout} ms`)),
      )
      try {
        await this.#client.query(batch.map(command => command.text).join('; '))
        this.#lastHeard = Date.now()
        for (const command of batch) command.done.resolve()
      } catch (error) {
        this.#fail(toError(error))
      } finally {
        cancel()
        this.#inFlight = []
      }
    }
  }

  #fail(reason: Error): void {
    if (this.#broken) return
    this.#broken = reason
    const waiting = [...this.#inFlight, ...this.#queue.map(command => command.done)]
    this.#queue = []
    for (const done of waiting) done.reject(reason)
    this.#probe?.came.resolve(false)
    this.#closed = destroyClient(this.#client)
    this.#lost.resolve(reason)
  }
}

function ignore(): void {
  // Rejections here repeat what `lost` says.
}
