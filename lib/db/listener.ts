import { Backoff } from '../core/backoff.ts'
import type { Logger } from '../core/log.ts'
import { type Report, toError } from '../core/report.ts'
import { sleep, withDeadline } from '../core/sleep.ts'
import type { Connector } from './connector.ts'
import { sqlState } from './database.ts'
import { ListenConnection } from './listen-connection.ts'

export interface ListenerOptions {
  connector: Connector
  /** Whose database URL, host and port are used. */
  target: 'notify' | 'streams'
  log: Logger
  report: Report
  /** What a failed connection is reported as, once per outage. */
  action: string
  /** How long the connection may be silent before it is checked, in milliseconds. */
  healthCheck: number
  /** The check asks for a notification and expects it back; else it asks for a sign of life only. */
  verifyDelivery: boolean
  /** Deadline of a subscription, in milliseconds; the server has half of it to answer LISTEN. */
  ackTimeout: number
  /** Interval of wakes while the connection is known not to deliver; null: none. */
  degradedPoll: number | null
  /** Source of jitter; default `Math.random`. */
  random?: (() => number) | undefined
}

interface Outage {
  since: number
  /** False: there never was a connection. */
  connectedBefore: boolean
}

interface Channel {
  references: number
  /** Runs while nobody holds a reference; its end sends UNLISTEN. */
  lingering: NodeJS.Timeout | undefined
}

const lingerMs = 5_000
const reconnectBaseMs = 250
const reconnectMaxMs = 5_000
/** A connection that lived this long was a good one: the next outage starts with the shortest delay. */
const settledMs = 5_000
const closeLimitMs = 2_500
const maxChannelBytes = 63

/**
 * One LISTEN connection for as long as its owner wants one, whatever happens to the database.
 *
 * The set of channels belongs to this object and survives every failure. A new connection is used only once
 * every channel was LISTENed on it; then each channel gets one durable wake (payload `''`), because what was
 * stored during the outage had no other messenger. A connection that turns out not to deliver (a pooler in
 * transaction mode) is kept, reported once, and replaced by wakes every `degradedPoll`.
 */
export class Listener {
  readonly #options: ListenerOptions
  readonly #channels = new Map<string, Channel>()
  readonly #backoff: Backoff
  readonly #abort = new AbortController()
  #running: Promise<void> | undefined
  #closed: Promise<void> | undefined
  /** The connection, also while it is not yet `#ready`: statements may be queued on it, answers may not be given. */
  #connection: ListenConnection | undefined
  #ready = false
  /** The last probe did not come back. */
  #deaf = false
  #deafReported = false
  #delivering = false
  #reconnects = 0
  #healthTimer: NodeJS.Timeout | undefined
  #pollTimer: NodeJS.Timeout | undefined
  #notify: (channel: string, payload: string) => void = () => undefined
  #status: (delivering: boolean) => void = () => undefined

  constructor(options: ListenerOptions) {
    this.#options = options
    this.#backoff = new Backoff({
      base: reconnectBaseMs,
      max: reconnectMaxMs,
      random: options.random ?? Math.random,
    })
  }

  /** Connected to a primary, every channel LISTENed, and the last probe came back. */
  get delivering(): boolean {
    return this.#delivering
  }

  /** Channels that somebody holds. */
  get channels(): number {
    return this.#held().length
  }

  /** How often a lost connection was replaced. */
  get reconnects(): number {
    return this.#reconnects
  }

  /** Sets the one receiver of notifications. Payload `''`: look for yourself; else what was notified. */
  onNotify(receive: (channel: string, payload: string) => void): void {
    this.#notify = receive
  }

  /** Sets the one receiver of changes of `delivering`. */
  onStatus(receive: (delivering: boolean) => void): void {
    this.#status = receive
  }

  /** Connects in the background and goes on trying for ever. */
  start(): void {
    if (this.#closed) return
    this.#running ??= this.#run()
  }

  /**
   * Takes one reference on a channel. `active`: the server has answered LISTEN, whatever is notified from now
   * on arrives. `pending`: not yet; a durable wake follows when it has.
   * @throws RangeError when the name is empty or longer than 63 bytes.
   */
  async ensureListening(channel: string): Promise<'active' | 'pending'> {
    if (!isChannelName(channel)) {
      throw new RangeError(
        `a channel name has 1 to ${maxChannelBytes} bytes and no U+0000, got ${JSON.stringify(channel)}`,
      )
    }
    if (this.#closed) return 'pending'
    const held = this.#channels.get(channel) ?? { references: 0, lingering: undefined }
    this.#channels.set(channel, held)
    held.references += 1
    clearTimeout(held.lingering)
    const connection = this.#connection
    if (!connection || !this.#ready) return 'pending'
    try {
      await connection.listen(channel)
      return connection.broken ? 'pending' : 'active'
    } catch {
      // The connection broke; the next one LISTENs this channel and wakes it.
      return 'pending'
    }
  }

  /** Gives one reference back. The server hears UNLISTEN after 5 s, unless the channel is taken again. */
  release(channel: string): void {
    const held = this.#channels.get(channel)
    if (!held || held.references === 0) return
    held.references -= 1
    if (held.references > 0) return
    held.lingering = setTimeout(() => {
      // One tick: forgetting the channel and queueing UNLISTEN. Whoever comes next queues LISTEN behind it.
      this.#channels.delete(channel)
      this.#connection?.unlisten(channel)
    }, lingerMs)
    held.lingering.unref()
  }

  /** Ends the connection and every timer. Leaves no session behind, also when a connect is under way. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#abort.abort()
    this.#stopTimers()
    for (const held of this.#channels.values()) clearTimeout(held.lingering)
    this.#channels.clear()
    const ending = Promise.all([this.#connection?.close(), this.#running])
    // A connect to a silent host takes longer than anybody wants to wait; what arrives late is closed then.
    await withDeadline(ending, closeLimitMs)
    this.#setDelivering(false)
  }

  /** Each turn is one connection: open, LISTEN, use until lost, wait. */
  async #run(): Promise<void> {
    let outage: Outage | undefined
    let connectedBefore = false
    while (!this.#abort.signal.aborted) {
      let failure: Error
      let since = Date.now()
      try {
        const connection = await this.#open()
        if (this.#abort.signal.aborted) {
          await connection.close()
          return
        }
        this.#publish(connection, outage)
        outage = undefined
        connectedBefore = true
        const published = Date.now()
        failure = await connection.lost
        since = Date.now()
        if (since - published >= settledMs) this.#backoff.reset()
      } catch (error) {
        failure = toError(error)
      }
      await this.#retire()
      if (this.#abort.signal.aborted) return
      if (!outage) {
        outage = { since, connectedBefore }
        const line = connectedBefore ? 'LISTEN connection lost' : 'LISTEN connection not available, retrying'
        this.#options.log.warn({ err: failure }, `${line} (${sqlState(failure) || failure.message})`)
        this.#options.report(failure, { action: this.#options.action })
      }
      await sleep(this.#backoff.next(), this.#abort.signal)
    }
  }

  /** A connection on which every channel in use is LISTENed. */
  async #open(): Promise<ListenConnection> {
    const { connector, target, ackTimeout } = this.#options
    const connection = await ListenConnection.open({
      connector,
      target,
      commandTimeout: ackTimeout / 2,
      onNotification: (channel, payload) => this.#receive(channel, payload),
    })
    this.#connection = connection
    for (;;) {
      const missing = this.#held().filter(channel => !connection.isListening(channel))
      // The answers of those that were asked for earlier came before: the chain is ordered.
      if (missing.length === 0 || this.#abort.signal.aborted) return connection
      await Promise.all(missing.map(channel => connection.listen(channel)))
    }
  }

  /** From here on `ensureListening` answers `active`. No `await` between the last LISTEN and this. */
  #publish(connection: ListenConnection, outage: Outage | undefined): void {
    this.#ready = true
    if (outage) {
      const verb = outage.connectedBefore ? 'restored' : 'established'
      this.#options.log.info(`LISTEN ${verb}, ${this.channels} channels, ${Date.now() - outage.since} ms`)
      if (outage.connectedBefore) this.#reconnects += 1
    }
    this.#wakeAll()
    void this.#probe(connection, true).then(() => this.#armHealthCheck(connection))
  }

  async #retire(): Promise<void> {
    const connection = this.#connection
    this.#ready = false
    this.#connection = undefined
    this.#deaf = false
    this.#stopTimers()
    this.#setDelivering(false)
    await connection?.close()
  }

  #receive(channel: string, payload: string): void {
    if ((this.#channels.get(channel)?.references ?? 0) > 0) this.#emit(channel, payload)
  }

  #emit(channel: string, payload: string): void {
    try {
      this.#notify(channel, payload)
    } catch (error) {
      this.#options.report(error, { action: this.#options.action, channel })
    }
  }

  #wakeAll(): void {
    for (const channel of this.#held()) this.#emit(channel, '')
  }

  #held(): string[] {
    const held: string[] = []
    for (const [channel, { references }] of this.#channels) if (references > 0) held.push(channel)
    return held
  }

  async #probe(connection: ListenConnection, elsewhere: boolean): Promise<void> {
    const came = await connection.probe(elsewhere)
    if (connection === this.#connection && !connection.broken) this.#heard(connection, came)
  }

  #heard(connection: ListenConnection, came: boolean): void {
    if (came) {
      if (this.#deaf) this.#options.log.info('LISTEN delivers again')
      this.#deaf = false
      this.#deafReported = false
      clearInterval(this.#pollTimer)
      this.#pollTimer = undefined
      this.#setDelivering(true)
      return
    }
    this.#deaf = true
    if (!this.#deafReported) {
      this.#deafReported = true
      const { target, connector, log } = this.#options
      log.error(
        `LISTEN does not deliver on this connection (${connector.describe(target)}): a pooler in transaction mode or a standby? Set ${target}.databaseUrl, or ${target}.host and ${target}.port, to a direct connection to the primary`,
      )
    }
    this.#setDelivering(false)
    this.#pollWhileDeaf(connection)
  }

  #pollWhileDeaf(connection: ListenConnection): void {
    const { degradedPoll } = this.#options
    if (degradedPoll === null || this.#pollTimer || connection !== this.#connection) return
    this.#wakeAll()
    this.#pollTimer = setInterval(() => this.#wakeAll(), degradedPoll)
    this.#pollTimer.unref()
  }

  /** Checks a connection that was silent for `healthCheck`; a deaf one is probed at every turn, so that it heals. */
  #armHealthCheck(connection: ListenConnection): void {
    if (connection !== this.#connection || this.#closed) return
    const { healthCheck, verifyDelivery } = this.#options
    const silent = Date.now() - connection.lastHeard
    const wait = this.#deaf ? healthCheck : Math.max(0, healthCheck - silent)
    this.#healthTimer = setTimeout(async () => {
      if (this.#deaf) await this.#probe(connection, true)
      else if (Date.now() - connection.lastHeard >= healthCheck) {
        if (verifyDelivery) await this.#probe(connection, false)
        else await connection.check(healthCheck)
      }
      this.#armHealthCheck(connection)
    }, wait)
    this.#healthTimer.unref()
  }

  #stopTimers(): void {
    clearTimeout(this.#healthTimer)
    clearInterval(this.#pollTimer)
    this.#pollTimer = undefined
  }

  #setDelivering(delivering: boolean): void {
    if (this.#delivering === delivering) return
    this.#delivering = delivering
    try {
      this.#status(delivering)
    } catch (error) {
      this.#options.report(error, { action: this.#options.action })
    }
  }
}

/** A name that LISTEN and NOTIFY take as it is: PostgreSQL cuts longer ones. */
export function isChannelName(name: string): boolean {
  return name !== '' && !name.includes('\0') && Buffer.byteLength(name) <= maxChannelBytes
}
