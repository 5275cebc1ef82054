import t from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import type { Logger } from '../../../lib/core/log.ts'
import { Connector } from '../../../lib/db/connector.ts'
import { waitForDatabase } from '../../../lib/processes/supervisor/boot.ts'

const setup = (o: { databaseWait?: string; failures: (Error | null)[] }) => {
  const config = resolveConfig(
    {
      databaseUrl: 'postgres://app:very-secret@db.internal:5433/orders',
      databaseWait: o.databaseWait ?? '2m',
    },
    {},
  )
  const lines: string[] = []
  const log: Logger = {
    debug: () => undefined,
    info: (...args: unknown[]) => lines.push(`info ${String(args.at(-1))}`),
    warn: (...args: unknown[]) => lines.push(`warn ${String(args.at(-1))}`),
    error: () => undefined,
    child: () => log,
  }
  let clock = 0
  let attempts = 0
  const waits: number[] = []
  const abort = new AbortController()
  const run = () =>
    waitForDatabase({
      loaded: { config, sources: new Map([['databaseUrl', 'environment']]) },
      connector: new Connector(config),
      log,
      signal: abort.signal,
      now: () => clock,
      wait: async ms => {
        waits.push(ms)
        clock += ms
      },
      connect: async () => {
        const failure = o.failures[Math.min(attempts, o.failures.length - 1)]
        attempts += 1
        if (failure) throw failure
      },
    })
  return { run, lines, waits, abort, attempts: () => attempts }
}

const refused = Object.assign(new Error('connect ECONNREFUSED 10.0.0.1:5433'), { code: 'ECONNREFUSED' })
const starting = Object.assign(new Error('the database system is starting up'), { code: '57P03' })
const wrongPassword = Object.assign(new Error('password authentication failed for user "app"'), {
  code: '28P01',
})

t.test('given a database that is not there yet', async t => {
  t.test(
    'when it comes, then the boot goes on after one warning, waiting 1 to 5 s between attempts',
    async t => {
      const { run, lines, waits } = setup({ failures: [refused, refused, starting, refused, refused, null] })
      await run()
      t.strictSame(waits, [1_000, 2_000, 4_000, 5_000, 5_000])
      t.strictSame(lines, [
        'warn cannot reach the database via env (db.internal:5433/orders): connect ECONNREFUSED 10.0.0.1:5433; trying again for 120 s',
        'info the database answers',
      ])
    },
  )

  t.test('when it does not come within databaseWait, then the boot fails and names it', async t => {
    const { run, waits } = setup({ failures: [refused], databaseWait: '10s' })
    await t.rejects(run(), {
      code: 'PGBUS_ERR_BOOT',
      message:
        'cannot reach the database via env (db.internal:5433/orders): connect ECONNREFUSED 10.0.0.1:5433',
    })
    t.equal(
      waits.reduce((sum, ms) => sum + ms, 0),
      10_000,
    )
  })

  t.test('when databaseWait is 0, then it fails at once', async t => {
    const { run, attempts } = setup({ failures: [refused], databaseWait: '0s' })
    await t.rejects(run(), { code: 'PGBUS_ERR_BOOT' })
    t.equal(attempts(), 1)
  })

  t.test('when a host name has several addresses, then what each said is told', async t => {
    const both = Object.assign(
      new AggregateError([refused, new Error('connect ECONNREFUSED ::1:5433')], ''),
      {
        code: 'ECONNREFUSED',
      },
    )
    const { run } = setup({ failures: [both], databaseWait: '0s' })
    await t.rejects(run(), { message: /ECONNREFUSED 10\.0\.0\.1:5433, connect ECONNREFUSED ::1:5433$/ })
  })

  t.test('when the host is told to stop meanwhile, then it leaves without an error', async t => {
    const { run, abort } = setup({ failures: [refused] })
    abort.abort()
    await t.resolves(run())
  })
})

t.test('given a database that refuses the password', async t => {
  t.test(
    'when booting, then it fails at once, and neither password nor user is lost in the text',
    async t => {
      const { run, attempts } = setup({ failures: [wrongPassword] })
      const error = await run().then(
        () => undefined,
        (failure: Error) => failure,
      )
      t.equal(attempts(), 1)
      t.match(error?.message, /db\.internal:5433\/orders.*password authentication failed for user "app"/)
      t.notMatch(error?.message, /very-secret/)
    },
  )
})
