import pg from 'pg'
import { sleep } from '../../lib/core/sleep.ts'
import type { Pgbus } from '../../lib/pgbus.ts'
import type { SoakArgs } from './handlers.ts'
import type { Random } from './random.ts'

export const queues = ['alpha', 'beta', 'gamma']

/** Jobs that must run, told by the transaction that made them. */
export const expectedTable = 'CREATE TABLE expected (n int PRIMARY KEY)'

const batchSize = 20
const retryMs = 200

/**
 * Enqueues `total` jobs in `ms` milliseconds. Most go in batches with a row of `expected` in the same
 * transaction, which is repeated until that row is there; each sixth batch goes one by one without a transaction:
 * such a job must run when its enqueue resolved, and may run or not when that rejected.
 */
export class Feed {
  /** Enqueues that rejected: nobody can know whether they committed. */
  readonly maybe = new Set<number>()
  refused = 0
  readonly #pgbus: Pgbus
  readonly #pool: pg.Pool
  readonly #random: Random

  constructor(pgbus: Pgbus, url: string, random: Random) {
    this.#pgbus = pgbus
    this.#random = random
    this.#pool = new pg.Pool({ connectionString: url, max: 2, application_name: 'feed' })
    this.#pool.on('error', () => undefined)
  }

  async run(total: number, ms: number): Promise<void> {
    const began = performance.now()
    for (let n = 0, batch = 0; n < total; n += batchSize, batch += 1) {
      const jobs = Array.from({ length: Math.min(batchSize, total - n) }, (_, i) => this.#job(n + i))
      if (batch % 6 === 5) await Promise.all(jobs.map(job => this.#single(job)))
      else await this.#together(jobs)
      const due = began + (ms * (n + jobs.length)) / total
      await sleep(Math.max(0, due - performance.now()))
    }
  }

  close(): Promise<void> {
    return this.#pool.end()
  }

  #job(n: number): { job: string; args: SoakArgs; queue: string } {
    const kind = this.#random.next()
    const ms = kind < 0.7 ? 0 : kind < 0.95 ? this.#random.between(5, 50) : this.#random.between(200, 800)
    const args = { n, ms: Math.round(ms), fails: this.#random.next() < 0.02 }
    return { job: 'soak', args, queue: this.#random.pick(queues) as string }
  }

  async #single({ job, args, queue }: { job: string; args: SoakArgs; queue: string }): Promise<void> {
    try {
      await this.#pgbus.enqueue(job, args, { queue })
    } catch {
      this.refused += 1
      this.maybe.add(args.n)
      return
    }
    await this.#until(() =>
      this.#pool.query('INSERT INTO expected VALUES ($1) ON CONFLICT DO NOTHING', [args.n]),
    )
  }

  /** All or none, whatever happens to the connection. */
  async #together(jobs: { job: string; args: SoakArgs; queue: string }[]): Promise<void> {
    const ids = jobs.map(({ args }) => args.n)
    await this.#until(async () => {
      const done = await this.#pool.query('SELECT 1 FROM expected WHERE n = $1', [ids[0]])
      if (done.rowCount) return
      const client = await this.#pool.connect()
      let broken: Error | undefined
      client.on('error', () => undefined)
      try {
        await client.query('BEGIN')
        await client.query('INSERT INTO expected SELECT unnest($1::int[])', [ids])
        await this.#pgbus.enqueueMany(jobs, { tx: client })
        await client.query('COMMIT')
      } catch (error) {
        broken = error as Error
        throw error
      } finally {
        client.removeAllListeners('error')
        client.release(broken ?? false)
      }
    })
  }

  /** Repeats what a broken database refuses. */
  async #until(run: () => Promise<unknown>): Promise<void> {
    for (;;) {
      try {
        await run()
        return
      } catch {
        this.refused += 1
        await sleep(retryMs)
      }
    }
  }
}
