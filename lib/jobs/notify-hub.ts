/**
 * One LISTEN connection for all workers of a host, or of a process.
 *
 * Each member says which tables it reads; the union is LISTENed, with one reference per member and table. A
 * notification becomes a `wake` to every member that reads the table: waking one too many costs an empty claim,
 * waking one too few would cost seconds. Wakes carry no data, so those that a busy member has not received yet
 * merge into one. What was cancelled is told as it is. A child that hears nothing for a while, or whose supervisor
 * dies, polls by itself.
 */
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import type { Connector } from '../db/connector.ts'
import { Listener } from '../db/listener.ts'
import { insertChannel } from '../pgmq/names.ts'
import { type Cancelled, cancelChannel, createdChannel, readCancelled } from '../pgmq/statements.ts'

/** Interval at which members are told again whether notifications arrive. */
export const statusIntervalMs = 5_000

const healthCheckMs = 30_000
const ackTimeoutMs = 5_000

export type HubMessage =
  /** A message was inserted into a table that the member reads. */
  | { t: 'wake' }
  /** Notifications are delivered: idle waits may be long. */
  | { t: 'healthy' }
  /** Notifications are not delivered: poll fast. */
  | { t: 'degraded' }
  /** A queue was created: look which ones there are. */
  | { t: 'refresh' }
  /** A message was cancelled that the member may be working on. */
  | ({ t: 'cancel' } & Cancelled)

/** A worker as the hub sees it. `sent` is called when the message has left this process, or never will. */
export interface HubMember {
  readonly slot: string
  send(message: HubMessage, sent: () => void): void
}

export type HubListener = Pick<
  Listener,
  'start' | 'ensureListening' | 'release' | 'onNotify' | 'onStatus' | 'delivering' | 'close'
>

interface Membership {
  channels: ReadonlySet<string>
  /** It reads queues by pattern. */
  wildcard: boolean
  /** Counts `listen` messages: an answer of LISTEN that belongs to an older set is stale. */
  generation: number
  /** Every channel of the set was answered; before, the member polls. */
  settled: boolean
  /** A wake or status is on its way; what is due meanwhile follows it. */
  sending: boolean
  wakeDue: boolean
  statusDue: boolean
  refreshDue: boolean
}

export class NotifyHub {
  readonly #listener: HubListener
  readonly #log: Logger
  readonly #every: (ms: number, fn: () => void) => () => void
  readonly #members = new Map<HubMember, Membership>()
  #stopStatus: () => void = () => undefined
  #closed: Promise<void> | undefined

  /** A hub with a connection of its own. */
  static open(options: { connector: Connector; log: Logger; report: Report }): NotifyHub {
    const log = options.log.child({ component: 'notify-hub' })
    const listener = new Listener({
      connector: options.connector,
      target: 'notify',
      log,
      report: options.report,
      action: 'notify_listener_reconnect',
      healthCheck: healthCheckMs,
      verifyDelivery: true,
      ackTimeout: ackTimeoutMs,
      degradedPoll: null,
    })
    const hub = new NotifyHub({ listener, log })
    hub.start()
    return hub
  }

  /** `every` calls a function at an interval and returns what ends that. */
  constructor(options: {
    listener: HubListener
    log: Logger
    every?: ((ms: number, fn: () => void) => () => void) | undefined
  }) {
    this.#listener = options.listener
    this.#log = options.log
    this.#every = options.every ?? unrefInterval
  }

  /** Connects in the background. */
  start(): void {
    this.#listener.onNotify((channel, payload) => this.#notified(channel, payload))
    for (const channel of [cancelChannel, createdChannel]) void this.#listener.ensureListening(channel)
    this.#listener.onStatus(delivering => {
      this.#log.info(
        delivering ? 'notifications are delivered' : 'notifications are not delivered; workers poll',
      )
      this.#broadcastStatus()
    })
    this.#listener.start()
    this.#stopStatus = this.#every(statusIntervalMs, () => this.#broadcastStatus())
  }

  /**
   * Replaces the tables that a member reads. `wildcard`: it wants to know of new queues. `channels`: others, whose
   * notifications wake it as well.
   */
  async listen(
    member: HubMember,
    tables: readonly string[],
    {
      wildcard = false,
      channels: others = [],
    }: { wildcard?: boolean | undefined; channels?: readonly string[] | undefined } = {},
  ): Promise<void> {
    if (this.#closed) return
    const channels = new Set([...tables.map(insertChannel), ...others])
    const membership = this.#members.get(member) ?? {
      channels: new Set<string>(),
      wildcard,
      generation: 0,
      settled: false,
      sending: false,
      wakeDue: false,
      statusDue: false,
      refreshDue: false,
    }
    const before = membership.channels
    membership.channels = channels
    membership.wildcard = wildcard
    membership.generation += 1
    membership.settled = false
    this.#members.set(member, membership)

    const { generation } = membership
    // References are taken before others are given back: a channel in both sets is never let go.
    const answers = [...channels]
      .filter(channel => !before.has(channel))
      .map(channel => this.#listener.ensureListening(channel))
    for (const channel of before) if (!channels.has(channel)) this.#listener.release(channel)
    await Promise.all(answers)
    if (this.#members.get(member) !== membership || membership.generation !== generation) return
    membership.settled = true
    // What was inserted between the member's last claim and LISTEN had no messenger.
    membership.wakeDue = true
    membership.statusDue = true
    this.#flush(member, membership)
  }

  /** Forgets a member that is gone. */
  remove(member: HubMember): void {
    const membership = this.#members.get(member)
    if (!membership) return
    this.#members.delete(member)
    for (const channel of membership.channels) this.#listener.release(channel)
  }

  /** Ends the connection. Members are not told. */
  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#stopStatus()
    this.#members.clear()
    await this.#listener.close()
  }

  #notified(channel: string, payload: string): void {
    if (channel === cancelChannel) {
      this.#cancelled(payload)
      return
    }
    for (const [member, membership] of this.#members) {
      if (channel === createdChannel) membership.refreshDue ||= membership.wildcard
      else if (membership.channels.has(channel)) membership.wakeDue = true
      else continue
      this.#flush(member, membership)
    }
  }

  /** To each member that reads the table: which of them has the message, they know best. */
  #cancelled(payload: string): void {
    // LISTEN began anew. What was missed meanwhile is noticed at the next renewal of a lease.
    if (payload === '') return
    const cancelled = readCancelled(payload)
    if (!cancelled) {
      this.#log.warn({ channel: cancelChannel }, 'ignored a notification that is no cancellation')
      return
    }
    const channel = insertChannel(cancelled.physical)
    for (const [member, { channels }] of this.#members) {
      if (channels.has(channel)) member.send({ t: 'cancel', ...cancelled }, () => undefined)
    }
  }

  #broadcastStatus(): void {
    for (const [member, membership] of this.#members) {
      if (!membership.settled) continue
      membership.statusDue = true
      this.#flush(member, membership)
    }
  }

  #flush(member: HubMember, membership: Membership): void {
    if (membership.sending || this.#members.get(member) !== membership) return
    const message = this.#next(membership)
    if (!message) return
    membership.sending = true
    member.send(message, () => {
      membership.sending = false
      this.#flush(member, membership)
    })
  }

  #next(membership: Membership): HubMessage | undefined {
    if (membership.wakeDue) {
      membership.wakeDue = false
      return { t: 'wake' }
    }
    if (membership.refreshDue) {
      membership.refreshDue = false
      return { t: 'refresh' }
    }
    if (membership.statusDue) {
      membership.statusDue = false
      return { t: this.#listener.delivering ? 'healthy' : 'degraded' }
    }
    return undefined
  }
}

function unrefInterval(ms: number, fn: () => void): () => void {
  const timer = setInterval(fn, ms)
  timer.unref()
  return () => clearInterval(timer)
}
