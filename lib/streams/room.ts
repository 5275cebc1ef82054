import { Backoff } from '../core/backoff.ts'
import type { Logger } from '../core/log.ts'
import type { Report } from '../core/report.ts'
import { sleep } from '../core/sleep.ts'
import type { Connection } from './connection.ts'
import { decodeEnvelope, type Envelope, isMeantFor } from './envelope.ts'
import type { Filters } from './filters.ts'
import { defaultEvent, durableFrame, ephemeralFrame, type Gap } from './frames.ts'
import type { ReadLimit } from './read-limit.ts'
import type { StreamRow, StreamStore } from './store.ts'
import type { WakeSource } from './wake-source.ts'

/**
 * The connections of one stream in this process, and the only place where history and live broadcasts meet.
 *
 * Promise: a connection that came with cursor C is written every message above C, in order of ids, each once,
 * however the commit of a message, its wake, the reads and the coming and going of others interleave.
 *
 * What it rests on. Within a stream the order of ids is the order of commits, so what a read sees is a prefix
 * of what will ever be there: having looked at everything up to id N, "above N" can never skip a message that
 * commits late. A wake says nothing but "look"; it comes after the commit, and may be merged or doubled.
 *
 * How a connection joins. It is put into the room first. Then LISTEN is waited for, so that from some moment on
 * every commit wakes this room. Then it reads from its cursor, page by page, until a page is short. Then it
 * is `ready`, which is not yet live: only a *pass* makes it live.
 *
 * A pass takes the connections that are live or ready at its beginning, its members. It reads from the lowest
 * position among them until a page is short, and writes to each member the rows above that member's own
 * position. Then it makes its ready members live. There is at most one pass at a time; a wake during a pass
 * makes another one follow.
 *
 * Why nothing is missed. Take a message M and a connection that was made live by pass P. If M was committed
 * before the last read of P began, that read, or an earlier one of the connection, saw it, since all of them
 * go on exactly where the connection's position was. If M was committed later, its wake comes later than the
 * beginning of that read, so it finds P running or ended, and in both cases a pass follows; the connection is
 * a member of that pass, because P has made it live. Had it been made live outside a pass, by its own
 * short page, M could commit after that page while the pass that M's wake asked for runs without the
 * connection: nobody would look again. And had it joined a pass that was already reading, it would be given
 * rows beyond a hole.
 *
 * Why nothing is doubled or reordered. Each connection has one position. Only its own catch-up moves it while
 * it is joining or lagging, only a pass while it is ready or live, and it only grows; a row at or below it is
 * skipped. A member that falls behind stops being a member in the same tick and starts catching up, and may
 * come back only as a ready member of a later pass.
 *
 * If LISTEN is not established yet, the source wakes the room once it is, as it does after every interruption.
 */
export class Room {
  readonly stream: string
  readonly channel: string
  readonly #options: RoomOptions
  readonly #connections = new Set<Connection>()
  /** Aborts when no read is worth repeating any more. */
  readonly #ending = new AbortController()
  #listening: Promise<unknown> | undefined
  #running: Promise<void> | undefined
  /** Another pass has to follow. */
  #again = false
  /** Somebody said that there is something new; else a pass is only wanted by a ready connection. */
  #woken = false
  #resetCheckedAt = Number.NEGATIVE_INFINITY
  #total = 0
  #broadcasts = 0
  /** Since the event loop had its last turn: to all connections, and to each of them. */
  #written = { frames: 0, bytes: 0 }

  constructor(options: RoomOptions) {
    this.#options = options
    this.stream = options.stream
    this.channel = options.channel
  }

  get connections(): ReadonlySet<Connection> {
    return this.#connections
  }

  get stats(): RoomStats {
    return { broadcasts: this.#broadcasts, active: this.#connections.size, total: this.#total }
  }

  /** Takes a connection in, in this tick. It leaves by itself when it closes. */
  join(connection: Connection): void {
    this.#connections.add(connection)
    this.#total += 1
    // Only now: from the first moment of LISTEN on, what is notified has a recipient.
    this.#listening ??= this.#options.source.ensureListening(this.channel)
    void this.#follow(connection, this.#listening)
  }

  /** Forgets a closed connection; with the last one the channel is given back. */
  leave(connection: Connection): void {
    if (!this.#connections.delete(connection) || this.#connections.size > 0) return
    this.#ending.abort()
    this.#options.source.release(this.channel)
    this.#options.onEmpty()
  }

  /** Something was stored (null), or an ephemeral envelope has come. */
  wake(payload: string | null): void {
    if (payload !== null) {
      this.#receive(payload)
    } else {
      this.#woken = true
      this.#askForPass()
    }
  }

  /** Looks one last time and resolves when that was written, or cannot be. */
  async lastPass(): Promise<void> {
    this.#ending.abort()
    this.wake(null)
    await this.#running
  }

  async #follow(connection: Connection, listening: Promise<unknown>): Promise<void> {
    await listening
    await this.#catchUp(connection)
  }

  /** Reads what the connection does not have, with its own reads, until a page is short. */
  async #catchUp(connection: Connection): Promise<void> {
    if (connection.isClosed || !(await this.#checkGap(connection))) return
    connection.startReplay()
    for (;;) {
      const rows = await this.#readFor(connection, () => this.#readAfter(connection.scan))
      if (!rows) return
      for (const row of rows) {
        await connection.drained()
        if (connection.isClosed) return
        connection.replay(row.id, this.#frameFor(connection, this.#encode(row)))
        this.#options.tally.replayed += 1
      }
      if (rows.length < this.#pageSize) break
    }
    connection.markReady()
    this.#askForPass()
  }

  /** A member of a pass does not read: what it lacks is read again once it does. */
  async #resume(connection: Connection): Promise<void> {
    await connection.drained()
    await this.#catchUp(connection)
  }

  /** False when the connection closed meanwhile. A cursor of 0 has nothing it could have missed. */
  async #checkGap(connection: Connection): Promise<boolean> {
    if (connection.scan === 0) return true
    const { store } = this.#options
    const bounds = await this.#readFor(connection, () => store.bounds(this.stream))
    if (!bounds) return false
    const lastSeenId = connection.scan
    if (lastSeenId > bounds.last) this.#reportGap(connection, 'reset', bounds.prunedId)
    else if (lastSeenId < bounds.prunedId) this.#reportGap(connection, 'expired', bounds.prunedId)
    return true
  }

  #reportGap(connection: Connection, reason: Gap['reason'], prunedId: number): void {
    this.#options.tally.gaps += 1
    const archiveOldestId = prunedId > 0 ? prunedId + 1 : null
    connection.reportGap({ lastSeenId: connection.scan, archiveOldestId, reason })
  }

  /** A read of one connection, repeated for a while. Undefined: the connection is closed. */
  async #readFor<T>(connection: Connection, read: () => Promise<T>): Promise<T | undefined> {
    const { reads, report } = this.#options
    const backoff = this.#backoff()
    const since = performance.now()
    for (;;) {
      try {
        const result = await reads.run(async () => (connection.isClosed ? undefined : await read()))
        return connection.isClosed ? undefined : result
      } catch (error) {
        if (connection.isClosed) return undefined
        if (this.#ending.signal.aborted || performance.now() - since > catchUpPatienceMs) {
          report(error, { action: 'stream_connect', stream: this.stream })
          connection.close('error')
          return undefined
        }
      }
      await sleep(backoff.next(), connection.signal)
    }
  }

  #askForPass(): void {
    this.#again = true
    this.#running ??= this.#run()
  }

  async #run(): Promise<void> {
    // Wakes of one tick cost one read.
    await undefined
    while (this.#again) {
      this.#again = false
      try {
        await this.#pass()
      } catch (error) {
        this.#options.report(error, { action: 'stream_room_read', stream: this.stream })
      }
    }
    this.#running = undefined
  }

  async #pass(): Promise<void> {
    const woken = this.#woken
    this.#woken = false
    const members = new Set<Connection>()
    const joining: Connection[] = []
    let position = Number.POSITIVE_INFINITY
    for (const connection of this.#connections) {
      if (connection.state !== 'live' && connection.state !== 'ready') continue
      members.add(connection)
      if (connection.state === 'ready') joining.push(connection)
      position = Math.min(position, connection.scan)
    }
    if (members.size === 0) return
    const start = position
    for (;;) {
      const rows = await this.#readPage(position)
      if (!rows) return
      for (const row of rows) {
        position = row.id
        await this.#deliver(row, members)
      }
      if (rows.length < this.#pageSize) break
    }
    // No `await` between the last row and here for any one connection that the wake of a later row could use:
    // such a wake has set `#again`, and the next pass finds these connections live.
    for (const connection of joining) {
      if (members.has(connection) && connection.state === 'ready') connection.promote()
    }
    if (woken && position === start) await this.#checkReset(position, members)
  }

  /** Writes one row to every member that has not got it. */
  async #deliver(row: StreamRow, members: Set<Connection>): Promise<void> {
    const broadcast = this.#encode(row)
    this.#broadcasts += 1
    for (const connection of members) {
      if (connection.isClosed) {
        members.delete(connection)
      } else if (
        connection.scan < row.id &&
        !connection.deliver(row.id, this.#frameFor(connection, broadcast))
      ) {
        members.delete(connection)
        void this.#resume(connection)
      }
      this.#written.frames += 1
      if (this.#written.frames >= framesPerTurn) await this.#takeTurn()
    }
    this.#written.bytes += broadcast?.frame.length ?? 0
    if (this.#written.bytes >= bytesPerTurn) await this.#takeTurn()
  }

  /** Lets sockets send what was written, and everybody else have their turn. */
  async #takeTurn(): Promise<void> {
    this.#written = { frames: 0, bytes: 0 }
    await new Promise(resolve => setImmediate(resolve))
  }

  /** One page for the pass, however long it takes. Undefined: nobody waits for it any more. */
  async #readPage(after: number): Promise<StreamRow[] | undefined> {
    const { signal } = this.#ending
    const backoff = this.#backoff()
    for (;;) {
      try {
        return await this.#readAfter(after)
      } catch (error) {
        if (backoff.attempt === 0)
          this.#options.report(error, { action: 'stream_room_read', stream: this.stream })
      }
      if (!signal.aborted) await sleep(backoff.next(), signal)
      if (signal.aborted) return undefined
    }
  }

  /**
   * There should have been something above `position`, and there was not: the database may have been replaced
   * by an older copy of itself, whose ids are below those that the clients have.
   */
  async #checkReset(position: number, members: ReadonlySet<Connection>): Promise<void> {
    const now = performance.now()
    if (position === 0 || now - this.#resetCheckedAt < resetCheckPauseMs) return
    this.#resetCheckedAt = now
    const bounds = await this.#options.store.bounds(this.stream).catch(() => undefined)
    if (!bounds || position <= bounds.last) return
    this.#options.log.warn({ stream: this.stream }, 'ids of a stream went back; its clients start again')
    for (const connection of members) {
      if (!connection.isClosed && connection.state !== 'lagging')
        this.#reportGap(connection, 'reset', bounds.prunedId)
    }
    this.#askForPass()
  }

  #receive(text: string): void {
    if (this.#connections.size === 0) return
    const envelope = decodeEnvelope(text)
    if (!envelope) {
      this.#options.log.debug({ stream: this.stream }, 'ignored a notification that is no broadcast')
      return
    }
    if (!isMeantFor(this.stream, envelope)) return
    const broadcast = { envelope, frame: ephemeralFrame(envelope.event, envelope.html) }
    this.#broadcasts += 1
    for (const connection of this.#connections) {
      const frame = this.#frameFor(connection, broadcast)
      if (frame) connection.offer(frame)
    }
  }

  /** A stored row, encoded once; null when it is not for this stream. What is no envelope goes out as it is. */
  #encode(row: StreamRow): Broadcast | null {
    const envelope = decodeEnvelope(row.message)
    if (!envelope) return { envelope, frame: durableFrame(row.id, defaultEvent, row.message) }
    if (!isMeantFor(this.stream, envelope)) return null
    return { envelope, frame: durableFrame(row.id, envelope.event, envelope.html) }
  }

  /** What of a broadcast this connection gets: its own echo first, then the filter. */
  #frameFor(connection: Connection, broadcast: Broadcast | null): Uint8Array | null {
    if (!broadcast) return null
    const { envelope, frame } = broadcast
    if (!envelope) return frame
    if (envelope.exclude === connection.id) return null
    return this.#options.filters.allows(envelope.visible_to, connection) ? frame : null
  }

  #readAfter(id: number): Promise<StreamRow[]> {
    return this.#options.store.readAfter(this.stream, id, this.#pageSize)
  }

  get #pageSize(): number {
    return this.#options.pageSize ?? defaultPageSize
  }

  #backoff(): Backoff {
    return new Backoff(this.#options.retry ?? { base: retryBaseMs, max: retryMaxMs })
  }
}

/** One broadcast, encoded. */
interface Broadcast {
  envelope: Envelope | undefined
  frame: Uint8Array
}

export interface RoomStats {
  /** Frames handed out, each counted once. */
  broadcasts: number
  active: number
  total: number
}

export interface RoomOptions {
  stream: string
  channel: string
  store: Pick<StreamStore, 'readAfter' | 'bounds'>
  source: Pick<WakeSource, 'ensureListening' | 'release'>
  filters: Filters
  /** Shared by everything that catches up in this process. */
  reads: ReadLimit
  /** Counters of the process. */
  tally: { gaps: number; replayed: number }
  /** Called when the last connection has left. The room is not used again. */
  onEmpty: () => void
  log: Logger
  report: Report
  /** Rows per read. Default 500. */
  pageSize?: number | undefined
  /** Pauses between reads that failed, in milliseconds. Default 100 doubling to 2000. */
  retry?: { base: number; max: number } | undefined
}

const defaultPageSize = 500
const framesPerTurn = 500
/** A socket sends nothing before the turn ends: more at once would make a client look slow that is not. */
const bytesPerTurn = 65_536
const retryBaseMs = 100
const retryMaxMs = 2_000
/** A client that cannot be given its history for so long is sent away to try again. */
const catchUpPatienceMs = 10_000
const resetCheckPauseMs = 1_000
