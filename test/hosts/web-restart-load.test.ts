/** Nothing is lost while workers are replaced: requests of all kinds, and pages that follow a stream. */
import { Agent, request } from 'node:http'
import t, { type Test } from 'tap'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { openSse, type SseClient, type SseFrame } from '../support/sse-client.ts'
import { waitFor } from '../support/wait-for.ts'
import { booted, spawnWeb } from './web-host.ts'

/** Asks again and again; with an agent on connections that are kept. */
function load(url: string, agent: Agent | false) {
  const failures: string[] = []
  let answered = 0
  let going = true
  const once = () =>
    new Promise<void>(resolve => {
      const failed = (error: Error) => {
        failures.push(`${error.message} after ${answered}`)
        resolve()
      }
      request(url, { agent }, response => {
        if (response.statusCode === 200) answered += 1
        else failures.push(String(response.statusCode))
        response.on('error', failed).on('end', resolve).resume()
      })
        .on('error', failed)
        .end()
    })
  const done = (async () => {
    while (going) await once()
  })()
  const stop = async () => {
    going = false
    await done
    return { answered, failures }
  }
  return { stop }
}

/** A page that comes back with its last id whenever its stream ends, as a browser does. */
async function follow(t: Test, src: string) {
  const frames: SseFrame[] = []
  const refused: unknown[] = []
  let connections = 0
  let client: SseClient | undefined
  let going = true
  t.teardown(() => {
    going = false
    client?.close()
  })
  const lastId = () => frames.findLast(({ id }) => id !== null)?.id
  const connect = async () => {
    const id = lastId()
    client = await openSse(src, { headers: id ? { 'last-event-id': id } : {} })
    connections += 1
    if (client.status !== 200) refused.push(client.status)
    return client
  }
  let current = await connect()
  void (async () => {
    while (going) {
      await current.ended
      frames.push(...current.frames)
      current.frames.length = 0
      if (going) {
        try {
          current = await connect()
        } catch (error) {
          refused.push(error)
          return
        }
      }
    }
  })()
  const numbered = () => [...frames, ...current.frames].filter(({ event }) => event === 'number')
  return { numbered, refused, connections: () => connections, last: () => numbered().at(-1)?.data }
}

t.test('given constant requests, open pages and constant broadcasts', async t => {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db)
  const host = spawnWeb(t, {
    app: 'streams',
    args: ['-w', '2', '-p', '0'],
    env: {
      PGBUS_STREAMS_ENABLED: 'true',
      PGBUS_DATABASE_URL: db.url,
      PGBUS_STREAMS_SECRET: 'a-secret-for-the-tests',
    },
  })
  const url = await booted(host, 2)
  const tag = await (await fetch(`${url}/tag/numbers`, { headers: { connection: 'close' } })).text()
  const src = new URL(/ src="([^"]+)"/.exec(tag)![1]!.replaceAll('&amp;', '&'), url)
  src.searchParams.set('since', '0')

  const pages = await Promise.all(Array.from({ length: 8 }, () => follow(t, src.href)))
  const agents = [1, 2, 3].map(() => new Agent({ keepAlive: true, maxSockets: 1 }))
  t.teardown(() => {
    for (const agent of agents) agent.destroy()
  })
  const loads = [...agents, false as const, false as const].map(agent => load(url, agent))

  let sent = 0
  let sending = true
  const sender = (async () => {
    while (sending) {
      await pgbus.stream('numbers').broadcast(sent + 1, { event: 'number' })
      sent += 1
    }
  })()

  t.test('when workers are replaced twice, then no request fails and no page misses a thing', async t => {
    for (let round = 1; round <= 2; round += 1) {
      host.signal('SIGUSR1')
      await waitFor(() => (host.output().match(/restart finished in/g) ?? []).length === round, {
        timeout: 60_000,
        message: `restart ${round}\n${host.output()}`,
      })
    }
    for (const { stop } of loads) {
      const { answered, failures } = await stop()
      t.same(failures, [])
      t.ok(answered > 20, `${answered} requests`)
    }
    sending = false
    await sender
    await waitFor(() => pages.every(page => page.last() === String(sent)))
    const expected = Array.from({ length: sent }, (_, at) => String(at + 1))
    for (const page of pages) {
      t.same(page.refused, [])
      t.ok(page.connections() > 1, 'it was sent to another worker')
      const seen = new Set<string | null>()
      const first = page.numbered().filter(({ id }) => !seen.has(id) && seen.add(id))
      t.same(
        first.map(({ data }) => data),
        expected,
      )
      const ids = first.map(({ id }) => Number(id))
      t.same(
        ids,
        [...ids].sort((a, b) => a - b),
        'in order',
      )
    }
    t.ok(sent > 20, `${sent} broadcasts`)
    t.equal(host.ready().length, 6)
    t.notMatch(host.output(), /"lvl":"(WARN|ERROR)"/)
  })

  t.test('when that is over, then there is one LISTEN connection', async t => {
    await waitFor(
      async () =>
        (await db.census()).filter(({ application_name }) => application_name === 'pgbus-listen').length ===
        1,
      { message: 'one LISTEN connection' },
    )
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  })
})
