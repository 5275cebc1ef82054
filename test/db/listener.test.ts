import { type AddressInfo, createServer, type Socket } from 'node:net'
import t from 'tap'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'
import { ReplicaConnectionError } from '../../lib/core/errors.ts'
import { Connector } from '../../lib/db/connector.ts'
import { Listener, type ListenerOptions } from '../../lib/db/listener.ts'
import { createEmptyDatabase, type TestContext } from '../support/database.ts'
import { waitFor } from '../support/wait-for.ts'
import { type PgProxy, recordLog, startPgProxy } from './support.ts'

function connectorFor(url: string, more: PgbusConfig = {}): Connector {
  return new Connector(resolveConfig({ databaseUrl: url, ...more }))
}

const db = await createEmptyDatabase(t)

/** A listener behind a proxy that can lose messages. */
async function setup(t: TestContext, options: Partial<ListenerOptions> = {}) {
  const proxy = await startPgProxy(db.url)
  t.teardown(() => proxy.close())
  const recorded = recordLog()
  const listener = new Listener({
    connector: connectorFor(proxy.url),
    target: 'streams',
    action: 'streamer_reconnect',
    healthCheck: 60_000,
    verifyDelivery: false,
    ackTimeout: 4_000,
    degradedPoll: 50,
    ...recorded,
    ...options,
  })
  t.teardown(() => listener.close())
  const heard: [channel: string, payload: string][] = []
  listener.onNotify((channel, payload) => void heard.push([channel, payload]))
  const statuses: boolean[] = []
  listener.onStatus(delivering => void statuses.push(delivering))
  const notify = (channel: string, payload = '') => db.query('SELECT pg_notify($1, $2)', [channel, payload])
  const delivering = () => waitFor(() => listener.delivering, { message: 'deliveries' })
  const start = async () => {
    listener.start()
    await delivering()
  }
  const terminate = () =>
    db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND application_name = 'pgbus-listen'`,
    )
  return { proxy, listener, heard, statuses, notify, delivering, start, terminate, ...recorded }
}

/** The LISTEN and UNLISTEN statements about one channel, in the order in which the server got them. */
function statementsFor(proxy: PgProxy, channel: string): string[] {
  return proxy.statements
    .flatMap(text => text.split('; '))
    .filter(text => text.endsWith(`"${channel}"`))
    .map(text => text.split(' ')[0]!)
}

t.test('given a connected listener', async t => {
  t.test('when a channel is taken, then what is notified from then on arrives', async t => {
    const { listener, heard, notify, start, statuses } = await setup(t)
    await start()
    t.equal(await listener.ensureListening('a'), 'active')
    await notify('a', 'ephemeral')
    await notify('a')
    await notify('b', 'nobody wants this')
    await waitFor(() => heard.length === 2)
    t.same(heard, [
      ['a', 'ephemeral'],
      ['a', ''],
    ])
    const names = async () => (await db.census()).map(row => row.application_name)
    await waitFor(async () => String(await names()) === 'pgbus-listen')
    t.same(statuses, [true])
    t.equal(listener.channels, 1)
    await listener.close()
    t.same(statuses, [true, false])
  })

  t.test(
    'when many callers take one channel, then they share a statement; many channels share a few',
    async t => {
      const { listener, proxy, start, notify, heard } = await setup(t)
      await start()
      const same = Array.from({ length: 50 }, () => listener.ensureListening('same'))
      t.same(new Set(await Promise.all(same)), new Set(['active']))
      t.same(statementsFor(proxy, 'same'), ['LISTEN'])
      const before = proxy.statements.length
      const many = Array.from({ length: 2_000 }, (_, n) => listener.ensureListening(`many${n}`))
      t.same(new Set(await Promise.all(many)), new Set(['active']))
      t.ok(proxy.statements.length - before < 10, `${proxy.statements.length - before} round trips`)
      await notify('many1999')
      await waitFor(() => heard.length === 1)
    },
  )

  t.test(
    'when names need quotes, then they are exact; when they are no names, then that is an error',
    async t => {
      const { listener, heard, notify, start } = await setup(t)
      await start()
      const names = ['MiXed.Case', 'with "quotes"', "it's; --", 'ä'.repeat(31)]
      for (const name of names) {
        t.equal(await listener.ensureListening(name), 'active')
        await notify(name)
      }
      await waitFor(() => heard.length === names.length)
      t.same(
        heard.map(([channel]) => channel),
        names,
      )
      for (const name of ['', 'ä'.repeat(32), 'a\0b'])
        await t.rejects(listener.ensureListening(name), RangeError)
    },
  )

  t.test('when one of two references is given back, then wakes go on', async t => {
    const { listener, heard, notify, start } = await setup(t)
    await start()
    await listener.ensureListening('a')
    await listener.ensureListening('a')
    listener.release('a')
    await notify('a')
    await waitFor(() => heard.length === 1)
    listener.release('a')
    listener.release('a')
    listener.release('never taken')
    t.equal(listener.channels, 0)
  })

  t.test(
    'when the last one leaves, then UNLISTEN comes 5 s later, and never after the LISTEN of who came next',
    async t => {
      const { listener, proxy, start, notify, heard } = await setup(t)
      await start()
      const channels = ['gone', 'backSoon', 'joinBefore', 'joinAfter', 'stays']
      await Promise.all(channels.map(channel => listener.ensureListening(channel)))
      const joined: Promise<unknown>[] = []
      const joinAt = (channel: string) =>
        new Promise<void>(resolve =>
          setTimeout(() => {
            joined.push(listener.ensureListening(channel))
            resolve()
          }, 5_000),
        )
      const left = Date.now()
      listener.release('gone')
      listener.release('backSoon')
      const before = joinAt('joinBefore')
      listener.release('joinBefore')
      listener.release('joinAfter')
      const after = joinAt('joinAfter')
      joined.push(listener.ensureListening('backSoon'))
      await waitFor(() => statementsFor(proxy, 'gone').length === 2, { message: 'UNLISTEN' })
      t.ok(Date.now() - left >= 4_990)
      await Promise.all([before, after])
      t.same(await Promise.all(joined), ['active', 'active', 'active'])
      t.same(statementsFor(proxy, 'gone'), ['LISTEN', 'UNLISTEN'])
      t.same(statementsFor(proxy, 'backSoon'), ['LISTEN'])
      t.same(statementsFor(proxy, 'joinBefore'), ['LISTEN'])
      t.same(statementsFor(proxy, 'joinAfter'), ['LISTEN', 'UNLISTEN', 'LISTEN'])
      for (const channel of channels) await notify(channel)
      await waitFor(() => heard.length >= 4)
      t.same(heard.map(([channel]) => channel).sort(), ['backSoon', 'joinAfter', 'joinBefore', 'stays'])
    },
  )

  t.test('when a receiver throws, then that is reported and others are served', async t => {
    const { listener, notify, start, reported } = await setup(t)
    await start()
    let calls = 0
    listener.onNotify(() => {
      calls += 1
      throw new Error('a receiver that throws')
    })
    await listener.ensureListening('a')
    await notify('a')
    await notify('a', 'x')
    await waitFor(() => calls === 2)
    t.equal(reported.length, 2)
  })
})

t.test('given no connection yet', async t => {
  t.test('when a channel is taken, then it is pending at once, and woken when LISTEN is active', async t => {
    const { listener, heard, start, notify } = await setup(t)
    t.equal(await listener.ensureListening('a'), 'pending')
    t.equal(await listener.ensureListening('b'), 'pending')
    listener.release('b')
    await start()
    await waitFor(() => heard.length === 1)
    t.same(heard, [['a', '']])
    await notify('a', 'x')
    await waitFor(() => heard.length === 2)
  })

  t.test('when the database is not there, then it is reported once and tried until it is', async t => {
    const { listener, proxy, heard, delivering, reported, lines } = await setup(t, { random: () => 0 })
    proxy.onStatement = (_text, cut) => cut()
    listener.start()
    await listener.ensureListening('a')
    await waitFor(() => proxy.connections >= 4)
    t.equal(listener.delivering, false)
    proxy.onStatement = undefined
    await delivering()
    t.equal(reported.length, 1)
    t.match(reported, [{ context: { action: 'streamer_reconnect' } }])
    t.equal(lines.filter(line => line.startsWith('warn LISTEN connection not available')).length, 1)
    t.match(lines.join('\n'), /info LISTEN established, 1 channels, \d+ ms/)
    t.equal(listener.reconnects, 0)
    t.same(heard, [['a', '']])
  })

  t.test('when the server is a standby, then it is refused, retried, and reported once', async t => {
    const real = connectorFor(db.url)
    let attempts = 0
    const connector = {
      describe: () => 'somewhere',
      connect: (options: Parameters<Connector['connect']>[0]) => {
        attempts += 1
        if (options.applicationName === 'pgbus-listen' && attempts < 4) {
          return Promise.reject(new ReplicaConnectionError('somewhere is a standby'))
        }
        return real.connect(options)
      },
    } as unknown as Connector
    const recorded = recordLog()
    const listener = new Listener({
      connector,
      target: 'streams',
      action: 'streamer_reconnect',
      healthCheck: 60_000,
      verifyDelivery: false,
      ackTimeout: 4_000,
      degradedPoll: null,
      random: () => 0,
      ...recorded,
    })
    t.teardown(() => listener.close())
    listener.start()
    await waitFor(() => listener.delivering)
    t.match(recorded.reported, [{ context: { action: 'streamer_reconnect' } }])
    t.equal(recorded.reported.length, 1)
    t.match(recorded.lines[0], /PGBUS_ERR_REPLICA/)
  })

  t.test(
    'when the listener is told that it must be a primary, then the connector is asked for one',
    async t => {
      const asked: unknown[] = []
      const connector = {
        connect: (options: unknown) => {
          asked.push(options)
          return Promise.reject(new Error('not now'))
        },
      } as unknown as Connector
      const { listener } = await setup(t, { connector })
      listener.start()
      t.match(asked, [
        { target: 'streams', applicationName: 'pgbus-listen', statementTimeout: 0, mustBePrimary: true },
      ])
    },
  )
})

t.test('given a connection that is lost', async t => {
  t.test(
    'when its backend is terminated, then every channel is back, woken once, and heard again',
    async t => {
      const { listener, heard, start, terminate, notify, lines, reported, statuses } = await setup(t)
      await start()
      const channels = Array.from({ length: 700 }, (_, n) => `c${n}`)
      await Promise.all(channels.map(channel => listener.ensureListening(channel)))
      await terminate()
      await waitFor(() => heard.length >= channels.length)
      t.same(
        new Set(heard.map(([channel, payload]) => `${channel} ${payload}`)),
        new Set(channels.map(c => `${c} `)),
      )
      t.equal(heard.length, channels.length)
      await waitFor(() => listener.delivering)
      t.same(statuses, [true, false, true])
      heard.length = 0
      for (const channel of channels) await notify(channel, 'again')
      await waitFor(() => heard.length === channels.length)
      t.equal(listener.reconnects, 1)
      t.equal(reported.length, 1)
      t.equal(lines.filter(line => line === 'warn LISTEN connection lost (57P01)').length, 1)
      t.equal(lines.filter(line => /^info LISTEN restored, 700 channels, \d+ ms$/.test(line)).length, 1)
    },
  )

  t.test(
    'when it fails again half-way through LISTEN, then no channel is lost and nothing is reported twice',
    async t => {
      const { listener, proxy, heard, start, notify, reported } = await setup(t)
      await start()
      const channels = Array.from({ length: 1_200 }, (_, n) => `c${n}`)
      await Promise.all(channels.map(channel => listener.ensureListening(channel)))
      let cuts = 0
      proxy.onStatement = (text, cut) => {
        if (text.includes('"c900"') && cuts < 2) {
          cuts += 1
          cut()
        }
      }
      proxy.cut()
      await waitFor(() => heard.length > 0)
      t.equal(cuts, 2)
      t.equal(heard.length, channels.length, 'one wake each, after all are LISTENed')
      t.equal(reported.length, 1)
      heard.length = 0
      for (const channel of ['c0', 'c899', 'c900', 'c1199']) await notify(channel)
      await waitFor(() => heard.length === 4)
    },
  )

  t.test(
    'when a channel is taken while LISTENs are under way, then it is part of the new connection',
    async t => {
      const { listener, proxy, heard, start, notify } = await setup(t)
      await start()
      await listener.ensureListening('a')
      let answer: Promise<string> | undefined
      proxy.onStatement = text => {
        if (text.includes('LISTEN "a"')) answer ??= listener.ensureListening('late')
      }
      proxy.cut()
      await waitFor(() => heard.length === 2)
      t.equal(await answer, 'pending')
      await notify('late', 'x')
      await waitFor(() => heard.some(([channel, payload]) => channel === 'late' && payload === 'x'))
    },
  )

  t.test('when a channel is given back meanwhile, then it is not LISTENed again', async t => {
    const { listener, proxy, start, heard } = await setup(t)
    await start()
    await listener.ensureListening('a')
    await listener.ensureListening('b')
    listener.release('b')
    proxy.statements.length = 0
    proxy.cut()
    await waitFor(() => heard.length > 0)
    t.same(statementsFor(proxy, 'a'), ['LISTEN'])
    t.same(statementsFor(proxy, 'b'), [])
    t.same(heard, [['a', '']])
  })

  t.test('when rows are stored during the outage, then the reader learns of each', async t => {
    const { listener, start, terminate, notify } = await setup(t)
    await start()
    await db.query('CREATE TABLE rows (id serial)')
    let seen = 0
    listener.onNotify(async () => {
      const [row] = await db.query<{ last: number }>('SELECT coalesce(max(id), 0) AS last FROM rows')
      seen = Math.max(seen, row!.last)
    })
    await listener.ensureListening('a')
    for (let round = 0; round < 3; round += 1) {
      await terminate()
      for (let n = 0; n < 5; n += 1) {
        await db.query('INSERT INTO rows DEFAULT VALUES')
        await notify('a')
      }
    }
    await waitFor(() => seen === 15)
  })

  t.test(
    'when LISTEN is not answered, then the caller learns it in half the time, and the channel heals',
    async t => {
      const { listener, proxy, heard, start, lines } = await setup(t, { ackTimeout: 2_000 })
      await start()
      proxy.mode = 'frozen'
      const before = Date.now()
      const answers = [
        listener.ensureListening('a'),
        listener.ensureListening('a'),
        listener.ensureListening('b'),
      ]
      t.same(await Promise.all(answers), ['pending', 'pending', 'pending'])
      const took = Date.now() - before
      t.ok(took >= 990 && took < 2_000, `${took} ms`)
      proxy.mode = 'direct'
      await waitFor(() => heard.length === 2, { timeout: 30_000 })
      t.match(lines.join('\n'), /LISTEN connection lost \(.*no answer within 1000 ms\)/)
    },
  )

  t.test('when the process was too busy to read the answer, then the connection is kept', async t => {
    // Without the proxy, which shares the event loop with the listener.
    const recorded = recordLog()
    const listener = new Listener({
      connector: connectorFor(db.url),
      target: 'streams',
      action: 'streamer_reconnect',
      healthCheck: 60_000,
      verifyDelivery: false,
      ackTimeout: 2_000,
      degradedPoll: null,
      ...recorded,
    })
    t.teardown(() => listener.close())
    listener.start()
    await waitFor(() => listener.delivering)
    // After an immediate, timers come before sockets.
    await new Promise(resolve => setImmediate(resolve))
    const answer = listener.ensureListening('a')
    const until = Date.now() + 1_500
    while (Date.now() < until);
    t.equal(await answer, 'active')
    t.same(recorded.lines, [])
  })
})

t.test('given a silent connection', async t => {
  t.test('when it is idle, then it is checked; when no answer comes, then it is replaced', async t => {
    const { listener, proxy, start, heard } = await setup(t, { healthCheck: 500 })
    await start()
    await listener.ensureListening('a')
    await waitFor(() => proxy.statements.filter(text => text === 'SELECT 1').length >= 2)
    t.equal(listener.reconnects, 0)
    proxy.mode = 'frozen'
    await waitFor(() => !listener.delivering)
    proxy.mode = 'direct'
    await waitFor(() => heard.length === 1, { timeout: 30_000 })
    t.equal(listener.reconnects, 1)
  })

  t.test('when notifications keep coming, then it is not checked', async t => {
    const { listener, proxy, start, heard, notify } = await setup(t, { healthCheck: 400 })
    await start()
    await listener.ensureListening('a')
    const until = Date.now() + 1_500
    while (Date.now() < until) await notify('a')
    t.ok(heard.length > 10)
    t.equal(proxy.statements.filter(text => text === 'SELECT 1').length, 0)
  })

  t.test(
    'when deliveries are verified, then a deaf connection is found and heals without a new one',
    async t => {
      const { listener, proxy, start, delivering, lines } = await setup(t, {
        healthCheck: 100,
        verifyDelivery: true,
        target: 'notify',
      })
      await start()
      await listener.ensureListening('a')
      await waitFor(() => proxy.statements.filter(text => text.startsWith('NOTIFY')).length >= 3)
      t.equal(listener.delivering, true)
      const { connections } = proxy
      proxy.mode = 'deaf'
      await waitFor(() => !listener.delivering)
      t.match(lines, [/error LISTEN does not deliver.*notify\.databaseUrl.*notify\.host.*notify\.port/])
      proxy.mode = 'direct'
      await delivering()
      t.equal(listener.reconnects, 0)
      t.ok(proxy.connections > connections, 'the check came from a second connection')
    },
  )
})

t.test('given a connection that does not deliver', async t => {
  for (const [mode, what] of [
    ['deaf', 'notifications never come'],
    ['pooler', 'they come only while a statement runs'],
  ] as const) {
    t.test(`when ${what}, then that is said once, channels are woken regularly, and it heals`, async t => {
      const { listener, proxy, heard, lines, notify, delivering } = await setup(t, { healthCheck: 500 })
      proxy.mode = mode
      listener.start()
      await listener.ensureListening('a')
      await listener.ensureListening('b')
      await waitFor(() => heard.length >= 12, { message: 'degraded wakes' })
      t.equal(listener.delivering, false)
      t.same(new Set(heard.map(([channel, payload]) => `${channel} ${payload}`)), new Set(['a ', 'b ']))
      await waitFor(() => proxy.connections >= 4, { message: 'more probes' })
      t.equal(lines.length, 1)
      t.match(
        lines[0],
        /error LISTEN does not deliver on this connection.*streams\.databaseUrl.*streams\.host.*streams\.port/,
      )
      proxy.mode = 'direct'
      await delivering()
      heard.length = 0
      await notify('a', 'x')
      const checks = () => proxy.statements.filter(text => text === 'SELECT 1').length
      const before = checks()
      await waitFor(() => checks() >= before + 3, { message: 'time for several regular wakes' })
      t.same(heard, [['a', 'x']], 'and the regular wakes have ended')
      t.equal(listener.reconnects, 0)
    })
  }

  t.test('when no interval is set, then nothing is woken', async t => {
    const { listener, proxy, heard, lines } = await setup(t, { degradedPoll: null })
    proxy.mode = 'deaf'
    listener.start()
    await waitFor(() => lines.length === 1)
    t.equal(await listener.ensureListening('a'), 'active')
    t.same(heard, [])
  })
})

t.test('given a listener that is closed', async t => {
  t.test('when it was never started or is closed twice, then that is fine', async t => {
    const { listener, proxy } = await setup(t)
    await Promise.all([listener.close(), listener.close()])
    listener.start()
    t.equal(await listener.ensureListening('a'), 'pending')
    t.equal(proxy.connections, 0)
  })

  t.test('when a statement is on its way, then its caller is answered and no UNLISTEN is sent', async t => {
    const { listener, proxy, start } = await setup(t)
    await start()
    await listener.ensureListening('a')
    const answer = listener.ensureListening('b')
    await listener.close()
    t.equal(await answer, 'pending')
    t.notOk(proxy.statements.some(text => text.includes('UNLISTEN')))
    await db.vacated()
  })

  t.test('when the server does not answer, then closing takes a short while at most', async t => {
    const { listener, proxy, start } = await setup(t)
    await start()
    proxy.mode = 'frozen'
    await listener.close()
  })

  t.test('when the host is silent while it connects, then closing takes a short while at most', async t => {
    const silent = createServer(socket => void sockets.push(socket))
    const sockets: Socket[] = []
    await new Promise<void>(resolve => silent.listen(0, '127.0.0.1', resolve))
    t.teardown(() => {
      for (const socket of sockets) socket.destroy()
      silent.close()
    })
    const { port } = silent.address() as AddressInfo
    const { listener } = await setup(t, { connector: connectorFor(`postgres://u:p@127.0.0.1:${port}/d`) })
    listener.start()
    await waitFor(() => sockets.length === 1)
    await listener.close()
  })

  t.test('when starting and stopping forty times at any moment, then no session is left', async _t => {
    const connector = connectorFor(db.url)
    await Promise.all(
      Array.from({ length: 40 }, async (_, n) => {
        const listener = new Listener({
          connector,
          target: 'streams',
          action: 'streamer_reconnect',
          healthCheck: 20,
          verifyDelivery: n % 2 === 0,
          ackTimeout: 4_000,
          degradedPoll: 10,
          ...recordLog(),
        })
        listener.start()
        void listener.ensureListening(`c${n}`)
        await new Promise(resolve => setTimeout(resolve, n * 10))
        void listener.ensureListening(`d${n}`)
        await listener.close()
      }),
    )
    await db.vacated()
  })
})
