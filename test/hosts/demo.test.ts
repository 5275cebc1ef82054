import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Page } from 'playwright-core'
import t from 'tap'
import { launchBrowser } from '../support/browser.ts'
import type { TestContext } from '../support/database.ts'
import { freePort } from '../support/free-port.ts'
import { compiled, isAlive, spawnNode } from '../support/spawn.ts'
import { openSse } from '../support/sse-client.ts'
import { waitFor } from '../support/wait-for.ts'

/** The demo as a newcomer starts it: an empty folder, an almost empty environment. */
async function startDemo(t: TestContext, env: Record<string, string> = {}) {
  const cwd = emptyFolder(t)
  const demo = spawnNode(t, compiled('bin/pgbus.ts'), ['demo'], {
    cwd,
    env: { PORT: String(await freePort()), ...env },
  })
  const [, address = ''] = await demo.waitForOutput(/^pgbus demo ready: (http:\S+)$/m, 60_000)
  return { demo, address, cwd }
}

function emptyFolder(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-test-demo-'))
  // As a clone is: readable for the user that the database runs as when this test runs as root.
  chmodSync(folder, 0o755)
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** Every process below `pid`. */
async function descendants(pid: number): Promise<number[]> {
  const { readdir, readFile } = await import('node:fs/promises')
  const children = new Map<number, number[]>()
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const stat = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '')
    const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
    children.set(parent, [...(children.get(parent) ?? []), Number(name)])
  }
  const collect = (of: number): number[] =>
    (children.get(of) ?? []).flatMap(child => [child, ...collect(child)])
  return collect(pid)
}

async function statuses(page: Page): Promise<string[]> {
  return page.$$eval('.order', cards =>
    cards.map(card => (card as unknown as { dataset: { status: string } }).dataset.status),
  )
}

/** Opens the page, each time over a new connection, until another worker than `other` has served it. */
async function openOnOtherWorker(
  t: TestContext,
  address: string,
  other: string | undefined,
): Promise<{ page: Page; servedBy: string }> {
  for (let attempt = 0; attempt < 12; attempt += 1) {
    const browser = await launchBrowser(t)
    const page = await browser.newPage()
    await page.goto(address)
    const servedBy = /pid \d+/.exec((await page.textContent('footer')) ?? '')?.[0] ?? ''
    if (servedBy !== other) return { page, servedBy }
    await browser.close()
  }
  throw new Error(`every page was served by ${other}`)
}

t.test('given the demo in an empty folder', async t => {
  const { demo, address, cwd } = await startDemo(t)
  const passwordless = await waitFor(async () => (await fetch(`${address}/healthz`)).status === 200)
  t.ok(passwordless, '/healthz answers 200')

  t.test(
    'when twenty orders are placed in one window, then both windows see them done, live and after a reload',
    async t => {
      const first = await openOnOtherWorker(t, address, undefined)
      const second = await openOnOtherWorker(t, address, first.servedBy)
      for (const { page } of [first, second]) await page.waitForSelector('#link[data-state="live"]')
      t.not(first.servedBy, second.servedBy)

      const seen = new Set<string>()
      await first.page.exposeFunction('seen', (status: string) => seen.add(status))
      await first.page.evaluate(
        `document.addEventListener('pgbus:order', event => seen(JSON.parse(event.detail.data).status))`,
      )
      await first.page.fill('#count', '20')
      await first.page.click('button[type=submit]')
      for (const { page } of [first, second]) {
        await waitFor(async () => (await statuses(page)).filter(status => status === 'done').length === 20, {
          timeout: 60_000,
          message: 'twenty orders to be done',
        })
      }
      for (const status of ['queued', 'payment', 'packing', 'shipping', 'retrying', 'done'])
        t.ok(seen.has(status), `${status} was shown`)

      await first.page.reload()
      t.strictSame(await statuses(first.page), Array(20).fill('done'), 'the board is complete after a reload')
      t.match(await first.page.getAttribute('pgbus-stream-source', 'src'), /^\/pgbus\/streams\//)
    },
  )

  t.test(
    'when orders are placed over HTTP, then the answer says how many and the last durable frame of each says done',
    async t => {
      const page = await (await fetch(address)).text()
      const src = /<pgbus-stream-source[^>]* src="([^"]+)"/.exec(page)?.[1] ?? ''
      const since = /since-id="(\d+)"/.exec(page)?.[1] ?? '0'
      const sse = await openSse(`${address}${src}?since=${since}`)
      t.equal(sse.status, 200)
      const response = await fetch(`${address}/orders`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ count: 10 }),
      })
      t.equal(response.status, 202)
      const answer = (await response.json()) as { enqueued: number; batch: string }
      t.equal(answer.enqueued, 10)

      type OrderFrame = { id: number; batch: string; status: string }
      const mine = () =>
        sse.frames
          .filter(frame => frame.event === 'order')
          .map(frame => ({ frame, order: JSON.parse(frame.data) as OrderFrame }))
          .filter(({ order }) => order.batch === answer.batch)
      await waitFor(() => mine().filter(({ order }) => order.status === 'done').length === 10, {
        timeout: 60_000,
      })
      const last = new Map(
        mine().map(({ frame, order }) => [order.id, { id: frame.id, status: order.status }]),
      )
      t.equal(last.size, 10)
      for (const { id, status } of last.values()) {
        t.equal(status, 'done')
        t.match(id, /^\d+$/, 'it is durable')
      }
      const ticker = await sse.waitForEvent('ticker')
      t.equal(ticker.id, null, 'the ticker is ephemeral')
      sse.close()
    },
  )

  t.test('when bad counts are posted, then each is refused and nothing is enqueued', async t => {
    for (const body of [
      '{"count":0}',
      '{"count":501}',
      '{"count":"many"}',
      '{}',
      'null',
      '[]',
      '{"count":1.5}',
    ]) {
      const response = await fetch(`${address}/orders`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      })
      t.equal(response.status, 400, body)
    }
    const form = await fetch(`${address}/orders`, {
      method: 'POST',
      body: new URLSearchParams({ count: '1' }),
    })
    t.equal(form.status, 202, 'the plain form works too')
  })

  t.test('when sessions are counted, then there is one LISTEN connection per host', async t => {
    const password = readFileSync(join(cwd, '.pgbus/postgres/password'), 'utf8').trim()
    const port = Number(
      readFileSync(join(cwd, '.pgbus/postgres/cluster/postmaster.pid'), 'utf8').split('\n')[3],
    )
    const client = new pg.Client({ host: '127.0.0.1', port, user: 'pgbus', password, database: 'pgbus' })
    await client.connect()
    const { rows } = await client.query(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = 'pgbus-listen'`,
    )
    await client.end()
    t.equal(rows[0].n, 2)
  })

  t.test('when it is stopped with Ctrl-C, then no process stays', async t => {
    const processes = await descendants(demo.pid)
    t.ok(processes.length >= 8, 'hosts, workers and the database run')
    demo.signal('SIGINT')
    t.strictSame(await demo.exited, { code: 0, signal: null })
    for (const pid of processes)
      await waitFor(async () => !(await isAlive(pid)), { message: `process ${pid} to end` })
    t.pass('all ended')
  })
})

t.test('given a port that is in use', async t => {
  const server = createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as AddressInfo

  t.test('when the demo is started on it, then it says so and exits 1', async t => {
    const cwd = emptyFolder(t)
    const demo = spawnNode(t, compiled('bin/pgbus.ts'), ['demo'], { cwd, env: { PORT: String(port) } })
    t.match(await demo.exited, { code: 1 })
    t.match(demo.output(), new RegExp(`port ${port} .* in use`))
  })
})

t.test('given a demo with work to do', async t => {
  /** The process that runs this program, of those below the demo. */
  const pidOf = async (demoPid: number, title: RegExp): Promise<number> => {
    const { readFile } = await import('node:fs/promises')
    for (const pid of await descendants(demoPid)) {
      const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')
      if (title.test(command)) return pid
    }
    throw new Error(`no process ${title}`)
  }
  const busyDemo = async (t: TestContext) => {
    const started = await startDemo(t)
    const answer = await fetch(`${started.address}/orders`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"count":50}',
    })
    if (answer.status !== 202) throw new Error(`the orders were refused: ${answer.status}`)
    return { ...started, processes: await descendants(started.demo.pid) }
  }
  const alive = async (pids: number[]) =>
    (await Promise.all(pids.map(async pid => ((await isAlive(pid)) ? [pid] : [])))).flat()

  t.test('when its database is killed, then it ends and says why', async t => {
    const { demo, processes } = await busyDemo(t)
    process.kill(await pidOf(demo.pid, /\/bin\/postgres\0/), 'SIGKILL')
    t.match(await demo.exited, { code: 1 })
    t.match(demo.output(), /^pgbus: the embedded PostgreSQL ended; see .*demo\.log$/m)
    // Backends notice for themselves that their postmaster is gone.
    await waitFor(async () => (await alive(processes)).length === 0)
  })

  t.test('when its job supervisor is killed, then it ends once the workers are done', async t => {
    const { demo, processes, cwd } = await busyDemo(t)
    process.kill(await pidOf(demo.pid, /pgbus: supervisor|pgbus\.js\0start/), 'SIGKILL')
    t.match(await demo.exited, { code: 1 })
    t.match(demo.output(), /^pgbus: the job host ended \(SIGKILL\); see /m)
    t.strictSame(await alive(processes), [])
    t.notMatch(readFileSync(join(cwd, '.pgbus/demo.log'), 'utf8'), /cannot be recorded/)
  })

  t.test('when it is killed itself, then the others end, the database last', async t => {
    const { demo, processes, cwd } = await busyDemo(t)
    demo.signal('SIGKILL')
    await waitFor(async () => (await alive(processes)).length === 0)
    t.notMatch(readFileSync(join(cwd, '.pgbus/demo.log'), 'utf8'), /cannot be recorded|ECONNREFUSED/)
  })
})
