import pg from 'pg'

/** The steps an order goes through, in order; `retrying` is an order whose payment was declined once. */
export const steps = ['queued', 'payment', 'packing', 'shipping', 'done'] as const
export type Status = (typeof steps)[number] | 'retrying'

export interface Order {
  id: number
  batch: string
  item: string
  status: Status
  attempt: number
  /** Process that worked on it last. */
  worker: number | null
}

const items = [
  'Espresso beans',
  'Pour-over kettle',
  'Ceramic dripper',
  'Paper filters',
  'Hand grinder',
  'Cold brew jar',
  'Milk pitcher',
  'Digital scale',
  'Travel mug',
  'Tasting set',
]

/** Orders shown on the board; older ones stay in the table. */
const boardSize = 240

/** The shop's own table, in the same database as its jobs and streams. */
export class OrderTable {
  readonly #pool: pg.Pool

  constructor(databaseUrl: string) {
    this.#pool = new pg.Pool({ connectionString: databaseUrl, max: 3, application_name: 'order-desk' })
    this.#pool.on('error', () => undefined)
  }

  async create(): Promise<void> {
    await this.#pool.query(`CREATE TABLE IF NOT EXISTS order_desk_orders (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      batch text NOT NULL,
      item text NOT NULL,
      status text NOT NULL DEFAULT 'queued',
      attempt int NOT NULL DEFAULT 1,
      worker int,
      updated_at timestamptz NOT NULL DEFAULT now())`)
  }

  /** Runs `fn` in one transaction on one client: order, job and broadcast commit together, or not at all. */
  async transaction<T>(fn: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
    const tx = await this.#pool.connect()
    let broken = false
    const onError = () => {
      broken = true
    }
    tx.on('error', onError)
    try {
      await tx.query('BEGIN')
      const result = await fn(tx)
      await tx.query('COMMIT')
      return result
    } catch (error) {
      await tx.query('ROLLBACK').catch(() => {
        broken = true
      })
      throw error
    } finally {
      tx.removeListener('error', onError)
      tx.release(broken)
    }
  }

  async insert(tx: pg.PoolClient, batch: string, count: number): Promise<Order[]> {
    const names = Array.from({ length: count }, () => items[Math.floor(Math.random() * items.length)])
    const { rows } = await tx.query(
      `INSERT INTO order_desk_orders (batch, item) SELECT $1, name FROM unnest($2::text[]) AS name RETURNING ${columns}`,
      [batch, names],
    )
    return rows
  }

  /** Moves one order to a status and gives it back as it is now. */
  async advance(tx: pg.PoolClient, id: number, status: Status, attempt: number): Promise<Order | undefined> {
    const { rows } = await tx.query(
      `UPDATE order_desk_orders SET status = $2, attempt = $3, worker = $4, updated_at = now() WHERE id = $1 RETURNING ${columns}`,
      [id, status, attempt, process.pid],
    )
    return rows[0]
  }

  /** The newest orders, newest first. */
  async board(): Promise<Order[]> {
    const { rows } = await this.#pool.query(
      `SELECT ${columns} FROM order_desk_orders ORDER BY id DESC LIMIT $1`,
      [boardSize],
    )
    return rows
  }

  async totals(): Promise<{ done: number; open: number }> {
    const { rows } = await this.#pool.query(
      `SELECT count(*) FILTER (WHERE status = 'done')::int AS done, count(*) FILTER (WHERE status <> 'done')::int AS open FROM order_desk_orders`,
    )
    return rows[0]
  }

  /** Job workers that have reported within two of their beats, which are a minute apart. */
  async liveWorkers(): Promise<number> {
    const { rows } = await this.#pool.query(
      `SELECT count(*)::int AS live FROM pgbus_processes
       WHERE kind = 'worker' AND last_heartbeat_at > (now() AT TIME ZONE 'UTC') - interval '130 seconds'`,
    )
    return rows[0].live
  }

  async close(): Promise<void> {
    await this.#pool.end()
  }
}

const columns = 'id::int, batch, item, status, attempt, worker'
