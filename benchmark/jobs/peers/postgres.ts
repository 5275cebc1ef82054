import pg from 'pg'

/** What all that live on PostgreSQL have in common: a database of their own, and how it is looked at. */
export class PostgresHome {
  readonly url: string
  readonly #pool: pg.Pool

  private constructor(url: string) {
    this.url = url
    this.#pool = new pg.Pool({ connectionString: url, max: 2, application_name: 'bench_observer' })
    this.#pool.on('error', () => undefined)
  }

  static async create(serverUrl: string, database: string): Promise<PostgresHome> {
    const admin = new pg.Client({ connectionString: serverUrl })
    await admin.connect()
    await admin.query(`CREATE DATABASE ${database}`)
    await admin.end()
    const url = new URL(serverUrl)
    url.pathname = `/${database}`
    return new PostgresHome(url.toString())
  }

  /** For workers: their connections carry a name, by which they are counted. */
  get workerUrl(): string {
    const url = new URL(this.url)
    url.searchParams.set('application_name', 'bench_worker')
    return url.toString()
  }

  async query<R = Record<string, unknown>>(text: string): Promise<R[]> {
    return (await this.#pool.query(text)).rows as R[]
  }

  async exists(select: string): Promise<boolean> {
    const [row] = await this.query<{ found: boolean }>(`SELECT EXISTS (${select}) AS found`)
    return row?.found === true
  }

  async workerConnections(): Promise<number> {
    const [row] = await this.query<{ n: string }>(
      `SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bench_worker'`,
    )
    return Number(row?.n)
  }

  async transactions(): Promise<number> {
    const [row] = await this.query<{ n: string }>(
      'SELECT xact_commit + xact_rollback AS n FROM pg_stat_database WHERE datname = current_database()',
    )
    return Number(row?.n)
  }

  async close(): Promise<void> {
    await this.#pool.end()
  }
}
