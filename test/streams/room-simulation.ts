/**
 * A world in which a room lives and everything around it takes its time: commits, wakes, snapshots of reads,
 * answers, LISTEN, clients that come, stall, read and go. One seed is one course of events.
 */
import { Connection, type Sink } from '../../lib/streams/connection.ts'
import { Filters } from '../../lib/streams/filters.ts'
import { ReadLimit } from '../../lib/streams/read-limit.ts'
import type { Room, RoomOptions } from '../../lib/streams/room.ts'
import type { StreamRow } from '../../lib/streams/store.ts'
import { silentLog } from './fakes.ts'

const stream = 'simulated'
const channel = 'pgbus.s.simulated'
const limits = {
  heartbeatInterval: 60_000,
  idleTimeout: 3_600_000,
  maxAge: null,
  writeDeadline: 60_000,
  maxBufferedBytes: 500,
}

export interface SimulationResult {
  /** What went wrong; null: nothing. */
  problem: string | null
  delivered: number
  joined: number
  lagged: number
}

export type RoomClass = new (options: RoomOptions) => Room

/** A reproducible source of numbers from 0 to 1. */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

class Client implements Sink {
  readonly cursor: number
  /** How likely it is to read when it could. */
  readonly speed: number
  readonly expectedEphemerals: number[] = []
  writableLength = 0
  isGone = false
  text = ''
  connection!: Connection
  lagged = false
  readonly #callbacks: (() => void)[] = []
  readonly #onClose: (() => void)[] = []

  constructor(cursor: number, speed: number) {
    this.cursor = cursor
    this.speed = speed
  }

  write(chunk: Uint8Array, onFlushed: () => void): boolean {
    this.text += Buffer.from(chunk).toString()
    this.writableLength += chunk.length
    this.#callbacks.push(onFlushed)
    return false
  }

  flush(): void {
    this.writableLength = 0
    for (const callback of this.#callbacks.splice(0)) callback()
  }

  end(): void {
    this.isGone = true
  }

  destroy(): void {
    this.isGone = true
  }

  leave(): void {
    this.isGone = true
    for (const listener of this.#onClose) listener()
  }

  on(event: 'close' | 'error', listener: () => void): this {
    if (event === 'close') this.#onClose.push(listener)
    return this
  }

  get durables(): number[] {
    return [...this.text.matchAll(/^id: (\d+)\nevent: turbo-stream\ndata: m\1$/gm)].map(match =>
      Number(match[1]),
    )
  }

  get ephemerals(): number[] {
    return [...this.text.matchAll(/^event: note\ndata: e(\d+)$/gm)].map(match => Number(match[1]))
  }
}

export async function simulate(seed: number, RoomUnderTest: RoomClass): Promise<SimulationResult> {
  const random = randomFrom(seed)
  const chance = (probability: number) => random() < probability
  /** Everything that can happen next, in any order. */
  const pending: (() => void)[] = []
  /** Notifications on their way, which keep their order. */
  const wakes: (string | null)[] = []
  const rows: StreamRow[] = []
  const clients: Client[] = []
  const problems: string[] = []
  const hasReadErrors = chance(0.2)
  let lastId = 0
  let ephemerals = 0
  let isListening = false
  let held = 0
  let room: Room | undefined

  /** Two steps of the server that can each come any time later: what is seen, and when it is told. */
  const answerLater = <T>(look: () => T): Promise<T> =>
    new Promise((resolve, reject) => {
      pending.push(() => {
        const seen = look()
        pending.push(() => {
          if (hasReadErrors && chance(0.1)) reject(new Error('the connection broke'))
          else resolve(seen)
        })
      })
    })

  const store: RoomOptions['store'] = {
    readAfter: (_stream, id, limit) => answerLater(() => rows.filter(row => row.id > id).slice(0, limit)),
    bounds: () => answerLater(() => ({ prunedId: 0, watermark: lastId, last: lastId })),
  }
  const source: RoomOptions['source'] = {
    ensureListening: () => {
      held += 1
      const isAway = chance(0.2)
      return new Promise(resolve => {
        if (isAway) resolve('pending')
        const listen = (delays: number) =>
          pending.push(() => {
            if (delays > 0) return void listen(delays - 1)
            isListening = true
            if (isAway) wakes.push(null)
            else pending.push(() => resolve('active'))
          })
        listen(Math.floor(random() * 6))
      })
    },
    release: () => {
      held -= 1
      isListening = false
    },
  }
  const openRoom = () =>
    new RoomUnderTest({
      stream,
      channel,
      store,
      source,
      filters: new Filters(silentLog),
      reads: new ReadLimit(2),
      tally: { gaps: 0, replayed: 0 },
      onEmpty: () => {
        room = undefined
      },
      log: silentLog,
      report: () => undefined,
      pageSize: 3,
      retry: { base: 0, max: 0 },
    })

  const commit = () => {
    lastId += 1 + Math.floor(random() * 3)
    rows.push({
      id: lastId,
      createdAt: new Date(0),
      message: JSON.stringify({ html: `m${lastId}`, stream }),
    })
    // Wakes that nobody has received yet may be merged.
    if (isListening && !(wakes.includes(null) && chance(0.5))) wakes.push(null)
  }
  const join = () => {
    const client = new Client(chance(0.3) ? 0 : Math.floor(random() * (lastId + 1)), chance(0.4) ? 0.02 : 1)
    clients.push(client)
    room ??= openRoom()
    const joined = room
    client.connection = new Connection({ stream, cursor: client.cursor, sink: client, limits })
    client.connection.onClosed(() => joined.leave(client.connection))
    joined.join(client.connection)
  }
  const receive = () => {
    const [payload] = wakes.splice(0, 1)
    if (typeof payload === 'string' && room) {
      const number = Number(/e(\d+)/.exec(payload)?.[1])
      for (const { connection, expectedEphemerals } of clients)
        if (room.connections.has(connection)) expectedEphemerals.push(number)
    }
    if (payload !== undefined) room?.wake(payload)
  }
  const openClients = () => clients.filter(client => !client.connection.isClosed)
  const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(random() * list.length)]

  const actions: [number, () => void][] = [
    [5, () => void pending.splice(Math.floor(random() * pending.length), 1)[0]?.()],
    [3, receive],
    [2, commit],
    [
      2,
      () => {
        const client = pick(openClients())
        if (client && chance(client.speed)) client.flush()
      },
    ],
    [0.6, join],
    [0.15, () => pick(openClients())?.leave()],
    [
      0.3,
      () => {
        ephemerals += 1
        if (isListening) wakes.push(JSON.stringify({ html: `e${ephemerals}`, event: 'note' }))
      },
    ],
    [
      0.1,
      () => {
        // The LISTEN connection breaks and comes back, after which the source wakes every channel.
        if (!isListening) return
        isListening = false
        pending.push(() => {
          isListening = held > 0
          wakes.push(null)
        })
      },
    ],
  ]
  const total = actions.reduce((sum, [weight]) => sum + weight, 0)
  const settle = () => new Promise(resolve => setImmediate(resolve))
  const step = async () => {
    let at = random() * total
    const action = actions.find(([weight]) => {
      at -= weight
      return at < 0
    })
    action?.[1]()
    await settle()
    for (const client of clients) client.lagged ||= client.connection.state === 'lagging'
  }

  join()
  // Short courses matter too: in a long one, a later wake makes up for one that was lost.
  const steps = chance(0.4) ? 10 + Math.floor(random() * 40) : 50 + Math.floor(random() * 150)
  for (let n = 0; n < steps; n += 1) await step()

  // Nothing new from here on: everything that is under way arrives.
  for (let quiet = 0, rounds = 0; quiet < (hasReadErrors ? 40 : 5) && rounds < 5_000; rounds += 1) {
    const isBusy =
      pending.length > 0 || wakes.length > 0 || openClients().some(client => client.writableLength > 0)
    quiet = isBusy ? 0 : quiet + 1
    if (chance(0.5)) receive()
    void pending.splice(Math.floor(random() * pending.length), 1)[0]?.()
    for (const client of openClients()) if (chance(0.5)) client.flush()
    if (hasReadErrors && !isBusy) await new Promise(resolve => setTimeout(resolve, 1))
    await settle()
  }

  for (const [index, client] of clients.entries()) {
    const expected = rows.map(row => row.id).filter(id => id > client.cursor)
    const { durables, connection } = client
    const complete = connection.isClosed ? expected.slice(0, durables.length) : expected
    if (durables.join() !== complete.join())
      problems.push(
        `client ${index} from ${client.cursor} (${connection.state}) got [${durables}] of [${expected}]`,
      )
    if (connection.isClosed) continue
    if (connection.state !== 'live') problems.push(`client ${index} is still ${connection.state}`)
    if (client.ephemerals.join() !== client.expectedEphemerals.join())
      problems.push(`client ${index} got notes [${client.ephemerals}] of [${client.expectedEphemerals}]`)
  }
  for (const client of openClients()) client.leave()
  if (held !== 0) problems.push(`${held} references to the channel are left`)
  if (room !== undefined) problems.push('the empty room is still there')
  return {
    problem: problems.length > 0 ? problems.join('; ') : null,
    delivered: clients.reduce((sum, client) => sum + client.durables.length, 0),
    joined: clients.length,
    lagged: clients.filter(client => client.lagged).length,
  }
}
