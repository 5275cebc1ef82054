import pg from 'pg'

/** A session of the database under test, at one moment. */
export interface SessionSample {
  pid: number
  application_name: string
  state: string | null
  wait_event: string | null
  in_transaction: boolean
  /** It keeps rows from being vacuumed. */
  holds_snapshot: boolean
}

/** Sessions by name (`LIKE`), of one database. */
export const censusQuery = `SELECT pid, application_name, state, wait_event, xact_start IS NOT NULL AS in_transaction,
       backend_xmin IS NOT NULL AS holds_snapshot
  FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE $1 AND pid <> pg_backend_pid()`

export interface Census {
  readonly samples: readonly (readonly SessionSample[])[]
  /** Longest time over which one session was like that in every sample, ms. */
  longest(like: (session: SessionSample) => boolean): number
  /** Share of the notification queue in use, 0 to 1: the highest seen. */
  readonly queueUsage: number
  stop(): Promise<void>
}

/** Looks at the sessions whose name matches, again and again until stopped. */
export async function takeCensus(url: string, options: { like: string; every: number }): Promise<Census> {
  const client = new pg.Client({ connectionString: url, application_name: 'census' })
  client.on('error', () => undefined)
  await client.connect()
  const samples: SessionSample[][] = []
  const times: number[] = []
  let queueUsage = 0
  let stopped = false
  const looking = (async () => {
    while (!stopped) {
      const { rows } = await client.query<SessionSample>(censusQuery, [options.like])
      samples.push(rows)
      times.push(performance.now())
      const usage = await client.query<{ usage: number }>('SELECT pg_notification_queue_usage() AS usage')
      queueUsage = Math.max(queueUsage, usage.rows[0]?.usage ?? 0)
      await new Promise(resolve => setTimeout(resolve, options.every))
    }
  })()
  return {
    samples,
    get queueUsage() {
      return queueUsage
    },
    longest: like => {
      let longest = 0
      let since = new Map<number, number>()
      for (const [index, sessions] of samples.entries()) {
        const now = times[index] as number
        since = new Map(sessions.filter(like).map(({ pid }) => [pid, since.get(pid) ?? now]))
        for (const from of since.values()) longest = Math.max(longest, now - from)
      }
      return longest
    },
    stop: async () => {
      stopped = true
      await looking.finally(() => client.end())
    },
  }
}
