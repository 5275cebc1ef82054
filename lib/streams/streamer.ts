import type { ResolvedConfig } from '../config/options.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { withDeadline } from '../core/sleep.ts'
import { type CloseReason, Connection, type Sink } from './connection.ts'
import type { Filters } from './filters.ts'
import type { PresenceTracker } from './presence-tracker.ts'
import { ReadLimit } from './read-limit.ts'
import { Room, type RoomStats } from './room.ts'
import type { StreamStore } from './store.ts'
import type { WakeSource } from './wake-source.ts'

export interface StreamerOptions {
  config: ResolvedConfig['streams']
  store: StreamStore
  filters: Filters
  /** Closed by {@link Streamer.drain}. */
  presence: PresenceTracker
  /** Closed by {@link Streamer.drain}. */
  source: WakeSource
  log: Logger
  report: Report
}

/** A response whose head has been written. */
export interface Subscription {
  stream: string
  cursor: number
  sink: Sink
  inFlight?: (() => number) | undefined
  context?: unknown
}

export interface StreamerStats {
  connections: { joining: number; live: number; lagging: number }
  rooms: number
  byStream: Record<string, RoomStats>
  source: { mode: 'hub' | 'local'; healthy: boolean; channels: number }
  /** How connections ended, since the start. */
  closed: Partial<Record<CloseReason, number>>
  gaps: number
  replayed: number
  bufferedBytes: number
}

export interface DrainOptions {
  /** Told to the clients. Default `worker_restart`. */
  reason?: Exclude<CloseReason, 'stalled' | 'client'> | undefined
}

export interface DrainResult {
  /** Connections that were told to come back. */
  closed: number
  /** Those among them that did not take it in time. */
  destroyed: number
}

const longestTickMs = 1_000
const shortestTickMs = 20
/** Connections ended per turn of the event loop. */
const drainSlice = 200

/** All open connections of a process: their rooms, their wakes, their clock. */
export class Streamer {
  readonly #options: StreamerOptions
  readonly #log: Logger
  readonly #reads: ReadLimit
  readonly #connections = new Set<Connection>()
  /** Closed connections whose response is not over yet. */
  readonly #ending = new Set<Connection>()
  /** By channel. */
  readonly #rooms = new Map<string, Room>()
  readonly #tally = { gaps: 0, replayed: 0 }
  readonly #closed: Partial<Record<CloseReason, number>> = {}
  #timer: NodeJS.Timeout | undefined
  #drained: Promise<DrainResult> | undefined
  #drainReason: CloseReason = 'worker_restart'

  constructor(options: StreamerOptions) {
    this.#options = options
    this.#log = options.log
    this.#reads = new ReadLimit(Math.max(1, options.config.pool.size - 1))
    options.source.onWake((channel, payload) => this.#rooms.get(channel)?.wake(payload))
  }

  /** Open connections. */
  get size(): number {
    return this.#connections.size
  }

  get isDraining(): boolean {
    return this.#drained !== undefined
  }

  /** Takes a connection in. While draining it is sent away at once, by a frame. */
  connect(subscription: Subscription): Connection {
    const connection = new Connection({ ...subscription, limits: this.#options.config })
    this.#ending.add(connection)
    void connection.finished.then(() => this.#ending.delete(connection))
    if (this.isDraining) {
      connection.close(this.#drainReason)
      return connection
    }
    const room = this.#roomOf(subscription.stream)
    this.#connections.add(connection)
    connection.onClosed(reason => this.#forget(connection, room, reason))
    connection.onLive(() => this.#options.presence.enter(connection))
    this.#timer ??= this.#startClock()
    room.join(connection)
    return connection
  }

  /** Ends connections whose right to listen is gone. Without conditions: all. Returns how many. */
  disconnect(
    which: {
      stream?: string | undefined
      connectionId?: string | undefined
      match?: ((context: unknown) => boolean) | undefined
    } = {},
  ): number {
    const { stream, connectionId, match } = which
    let count = 0
    for (const connection of [...this.#connections]) {
      if (stream !== undefined && connection.stream !== stream) continue
      if (connectionId !== undefined && connection.id !== connectionId) continue
      if (match && match(connection.context) !== true) continue
      connection.close('revoked')
      count += 1
    }
    return count
  }

  stats(): StreamerStats {
    const connections = { joining: 0, live: 0, lagging: 0 }
    let bufferedBytes = 0
    for (const connection of this.#connections) {
      const { state } = connection
      if (state === 'live' || state === 'lagging') connections[state] += 1
      else connections.joining += 1
      bufferedBytes += connection.unsent
    }
    const { mode, healthy, channels } = this.#options.source
    return {
      connections,
      rooms: this.#rooms.size,
      byStream: Object.fromEntries([...this.#rooms.values()].map(room => [room.stream, room.stats])),
      source: { mode, healthy, channels },
      closed: { ...this.#closed },
      ...this.#tally,
      bufferedBytes,
    }
  }

  /**
   * Ends every connection after what is already stored was written to it, tells each to come back, and closes
   * the wake source. Takes at most about three times `writeDeadline`. Later calls wait for the same end.
   */
  drain(options: DrainOptions = {}): Promise<DrainResult> {
    if (!this.#drained) {
      this.#drainReason = options.reason ?? 'worker_restart'
      this.#drained = this.#drain()
    }
    return this.#drained
  }

  async #drain(): Promise<DrainResult> {
    const { source, config, presence } = this.#options
    const lastPasses = Promise.all([...this.#rooms.values()].map(room => room.lastPass()))
    await withDeadline(lastPasses, config.writeDeadline)
    let closed = 0
    for (const connection of [...this.#connections]) {
      if (connection.isClosed) continue
      connection.flushHeld()
      connection.close(this.#drainReason)
      closed += 1
      if (closed % drainSlice === 0) await new Promise(resolve => setImmediate(resolve))
    }
    const ending = [...this.#ending]
    await withDeadline(Promise.all(ending.map(connection => connection.finished)), config.writeDeadline)
    for (const connection of this.#ending) connection.destroy()
    const destroyed = ending.filter(connection => connection.wasCut).length
    clearInterval(this.#timer)
    await withDeadline(presence.close(), config.writeDeadline)
    await source.close()
    if (closed > 0)
      this.#log.info({ closed, destroyed }, `closed ${closed} event streams: ${this.#drainReason}`)
    return { closed, destroyed }
  }

  #roomOf(stream: string): Room {
    const { store, source, filters, report } = this.#options
    const channel = store.channel(stream)
    const existing = this.#rooms.get(channel)
    if (existing) return existing
    const room = new Room({
      stream,
      channel,
      store,
      source,
      filters,
      reads: this.#reads,
      tally: this.#tally,
      onEmpty: () => this.#rooms.delete(channel),
      log: this.#log,
      report,
    })
    this.#rooms.set(channel, room)
    return room
  }

  #forget(connection: Connection, room: Room, reason: CloseReason): void {
    this.#connections.delete(connection)
    this.#closed[reason] = (this.#closed[reason] ?? 0) + 1
    room.leave(connection)
    this.#options.presence.leave(connection.id)
    const fields = { stream: connection.stream, connectionId: connection.id, reason }
    if (reason === 'slow' || reason === 'stalled') this.#log.warn(fields, `closed an event stream: ${reason}`)
    else this.#log.debug(fields, `closed an event stream: ${reason}`)
    if (this.#connections.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  /** Often enough for the shortest of the limits to be kept. */
  #startClock(): NodeJS.Timeout {
    const { heartbeatInterval, writeDeadline, idleTimeout } = this.#options.config
    const finest = Math.min(heartbeatInterval, writeDeadline, idleTimeout) / 5
    const tick = () => {
      for (const connection of [...this.#connections]) connection.tick()
    }
    // After what arrived on sockets was handled: a process that was busy must not take its clients for stalled.
    const afterSockets = () => setImmediate(tick)
    return setInterval(afterSockets, Math.min(longestTickMs, Math.max(shortestTickMs, finest))).unref()
  }
}
