import { hostname } from 'node:os'
import { type IntervalHistogram, monitorEventLoopDelay } from 'node:perf_hooks'
import type { Logger } from '../core/log.ts'
import type { Database } from '../db/database.ts'

export type ProcessKind = 'supervisor' | 'worker' | 'consumer' | 'dispatcher' | 'scheduler' | 'outbox_poller'

type Metadata = Record<string, unknown> | (() => Record<string, unknown>)

const intervalMs = 60_000
/** How often the delay of the event loop is measured. */
const lagResolutionMs = 50

/**
 * The row of a process in `pgbus_processes`: inserted at start, touched every minute, deleted at stop. A row that
 * somebody removed meanwhile comes back with the next beat. It tells people who is alive; nothing depends on it.
 */
export class Heartbeat {
  readonly #db: Database
  readonly #log: Logger
  readonly #interval: number
  readonly #onBeat: (id: number) => void
  readonly #loopAge: () => number | null
  #kind: ProcessKind = 'worker'
  #metadata: () => Record<string, unknown> = () => ({})
  #id: number | undefined
  #timer: NodeJS.Timeout | undefined
  #lag: IntervalHistogram | undefined
  #beating: Promise<void> = Promise.resolve()
  #failing = false
  #stopped = false

  constructor(options: {
    db: Database
    log: Logger
    interval?: number | undefined
    /** Told the id of the row after each beat. */
    onBeat?: ((id: number) => void) | undefined
    /** Ms since the process's loop last went round; recorded as the moment when it did. */
    loopAge?: (() => number | null) | undefined
  }) {
    this.#db = options.db
    this.#log = options.log
    this.#interval = options.interval ?? intervalMs
    this.#onBeat = options.onBeat ?? (() => undefined)
    this.#loopAge = options.loopAge ?? (() => null)
  }

  /** Resolves after the first beat, whether it succeeded or not. A function as `metadata` is asked at each beat. */
  start(kind: ProcessKind, metadata: Metadata): Promise<void> {
    this.#kind = kind
    this.#metadata = typeof metadata === 'function' ? metadata : () => metadata
    this.#lag = monitorEventLoopDelay({ resolution: lagResolutionMs })
    this.#lag.enable()
    this.#beating = this.#beat()
    return this.#beating
  }

  /** Deletes the row. Never rejects. */
  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#timer)
    this.#lag?.disable()
    await this.#beating
    const id = this.#id
    if (id === undefined) return
    this.#id = undefined
    try {
      await this.#db.query('DELETE FROM pgbus_processes WHERE id = $1', [id])
    } catch (error) {
      this.#log.debug({ err: error }, 'the process row was not deleted; it ages')
    }
  }

  async #beat(): Promise<void> {
    try {
      const own = { ...this.#metadata(), pid: process.pid, event_loop_lag_ms: this.#takeLag() }
      await this.#write(JSON.stringify(own))
      if (this.#failing) this.#log.info('heartbeats are written again')
      this.#failing = false
    } catch (error) {
      if (!this.#failing) this.#log.warn({ err: error }, 'a heartbeat was not written, trying again')
      this.#failing = true
    }
    if (this.#stopped) return
    if (this.#id !== undefined) this.#onBeat(this.#id)
    this.#timer = setTimeout(() => {
      this.#beating = this.#beat()
    }, this.#interval)
    this.#timer.unref()
  }

  /** Ms by which turns of the event loop came late since the last beat, 99th percentile; undefined: none was measured. */
  #takeLag(): number | undefined {
    const lag = this.#lag
    if (lag === undefined || lag.count === 0) return undefined
    const late = Math.max(0, lag.percentile(99) / 1e6 - lagResolutionMs)
    lag.reset()
    return Math.round(late)
  }

  async #write(metadata: string): Promise<void> {
    if (this.#id !== undefined) {
      const { rowCount } = await this.#db.query(
        `UPDATE pgbus_processes
   SET metadata = ${metadataWithTick('$2', '$3')}, last_heartbeat_at = clock_timestamp() AT TIME ZONE 'UTC',
       updated_at = clock_timestamp() AT TIME ZONE 'UTC'
 WHERE id = $1`,
        [this.#id, metadata, this.#loopAge()],
      )
      if (rowCount > 0) return
    }
    const { rows } = await this.#db.query<{ id: number }>(
      `INSERT INTO pgbus_processes (kind, hostname, pid, metadata, last_heartbeat_at, created_at, updated_at)
SELECT $1, $2, $3, ${metadataWithTick('$4', '$5')}, now, now, now FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS clock
RETURNING id`,
      [this.#kind, hostname(), process.pid, metadata, this.#loopAge()],
    )
    this.#id = rows[0]?.id
  }
}

/** The moment is taken from the clock that `last_heartbeat_at` is from, so that the two can be compared. */
function metadataWithTick(metadata: string, ageMs: string): string {
  return `CASE WHEN ${ageMs}::float8 IS NULL THEN ${metadata}::jsonb
  ELSE ${metadata}::jsonb || jsonb_build_object('loop_tick_at', extract(epoch FROM clock_timestamp()) - ${ageMs}::float8 / 1000) END`
}

/** Deletes the rows of a process of this host that died without doing so. */
export async function forgetProcess(
  db: Pick<Database, 'query'>,
  kinds: readonly ProcessKind[],
  pid: number,
): Promise<void> {
  await db.query('DELETE FROM pgbus_processes WHERE kind = ANY($1) AND hostname = $2 AND pid = $3', [
    kinds,
    hostname(),
    pid,
  ])
}
