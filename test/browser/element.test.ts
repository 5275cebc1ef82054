import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Page } from 'playwright-core'
import t from 'tap'
import { launchBrowser } from '../support/browser.ts'
import type { TestContext } from '../support/database.ts'
import { createSseServer, type Exchange } from '../support/sse-server.ts'
import { waitFor } from '../support/wait-for.ts'

interface Seen {
  type: string
  detail: Record<string, unknown>
  connected: boolean
  connectionId: string | null
}

const browser = await launchBrowser(t)
const clientFolder = fileURLToPath(new URL('../../lib/client/', import.meta.url))

/** Notes everything that arrives at the document, which is where pages listen. */
const recorder = `
  window.seen = []
  for (const name of ['open', 'connected', 'message', 'event', 'json', 'typing', 'replay-start', 'replay-end', 'gap-detected', 'close']) {
    document.addEventListener('pgbus:' + name, event => window.seen.push({
      type: name, detail: event.detail,
      connected: event.target.hasAttribute('connected'), connectionId: event.target.getAttribute('connection-id'),
    }))
  }
  document.addEventListener('message', () => window.seen.push({ type: 'dom message', detail: {}, connected: false, connectionId: null }))
`

/** No inline script or style without its nonce, no eval: what a careful application sends. */
const policy = "default-src 'none'; script-src 'nonce-test'; connect-src 'self' http://127.0.0.1:*"

const scriptTag = (query = '') =>
  `<script type="module" nonce="test" src="/client/index.js${query}"></script>`

async function setup(
  t: TestContext,
  options: { html: string; stream?: (exchange: Exchange, index: number) => void; init?: string },
) {
  const { html, stream = exchange => exchange.open(), init = '' } = options
  const streams: Exchange[] = []
  const pages: Exchange[] = []
  const server = await createSseServer(t, exchange => {
    if (exchange.path.startsWith('/streams/')) stream(exchange, streams.push(exchange) - 1)
    else if (exchange.path.startsWith('/client/')) void sendClient(exchange)
    else if (exchange.path === '/favicon.ico') exchange.answer(204)
    else {
      pages.push(exchange)
      const headers = { 'content-type': 'text/html; charset=utf-8', 'content-security-policy': policy }
      exchange.answer(
        200,
        { ...headers, 'set-cookie': 'who=me; Path=/' },
        `<!doctype html><body>${html}</body>`,
      )
    }
  })
  const context = await browser.newContext()
  t.teardown(() => context.close())
  const page = await context.newPage()
  const errors: string[] = []
  page.on('pageerror', error => errors.push(String(error)))
  page.on('console', message => {
    if (/Content Security Policy/i.test(message.text())) errors.push(message.text())
  })
  await page.addInitScript(recorder + init)
  await page.goto(`${server.url}/`)
  const seen = async (type?: string) => {
    const all = await page.evaluate<Seen[]>('window.seen')
    return type === undefined ? all : all.filter(entry => entry.type === type)
  }
  return {
    server,
    streams,
    pages,
    page,
    errors,
    seen,
    request: (index: number) =>
      waitFor(() => streams[index], { interval: 5, message: `stream request ${index}` }),
    nth: (type: string, index: number) =>
      waitFor(async () => (await seen(type))[index], { interval: 10, message: `pgbus:${type} ${index}` }),
    attribute: (name: string) => attributeOf(page, name),
  }
}

async function sendClient(exchange: Exchange): Promise<void> {
  const file = exchange.path.slice('/client/'.length)
  if (!/^[a-z-]+\.js$/.test(file) || !existsSync(clientFolder + file)) return exchange.answer(404)
  exchange.answer(200, { 'content-type': 'text/javascript' }, await readFile(clientFolder + file, 'utf8'))
}

function attributeOf(page: Page, name: string): Promise<string | null> {
  return page.evaluate(`document.querySelector('pgbus-stream-source').getAttribute('${name}')`)
}

const source = (attributes = '') =>
  `<pgbus-stream-source src="/streams/a" ${attributes}></pgbus-stream-source>`

t.test('given a page with the element', async t => {
  t.test('when frames come, then events bubble to the document and attributes follow', async t => {
    const { nth, seen, attribute, request, errors } = await setup(t, {
      html: source('since-id="4"') + scriptTag(),
      stream: (exchange, index) => {
        if (index > 0) return
        exchange
          .open({ id: '9f86d081884c7d65' })
          .control('replay-start', { fromId: 4 })
          .durable(5, '<p>\n  five</p>')
        exchange
          .control('replay-end', { toId: 5, count: 1 })
          .ephemeral('{"a":1}', 'json')
          .durable(6, 'x', 'typing')
      },
    })
    await nth('typing', 0)
    t.strictSame(
      (await seen()).map(({ type, detail }) => [type, detail]),
      [
        ['open', { lastEventId: 4, connectionId: null }],
        ['connected', { connectionId: '9f86d081884c7d65' }],
        ['replay-start', { fromId: 4 }],
        ['message', { msgId: 5, data: '<p>\n  five</p>' }],
        ['replay-end', { toId: 5, count: 1 }],
        ['event', { event: 'json', data: '{"a":1}', msgId: null, json: { a: 1 } }],
        ['json', { data: '{"a":1}', msgId: null, json: { a: 1 } }],
        ['event', { event: 'typing', data: 'x', msgId: 6 }],
        ['typing', { data: 'x', msgId: 6 }],
      ],
      'everything but the message event for Turbo',
    )
    t.equal(await attribute('connected'), '')
    t.equal(await attribute('connection-id'), '9f86d081884c7d65')
    await waitFor(async () => (await attribute('since-id')) === '6')
    const exchange = await request(0)
    t.equal(exchange.since, '4')
    t.equal(exchange.lastEventId, '4')
    t.match(exchange.headers.cookie, 'who=me', 'cookies of the same origin')
    t.strictSame(errors, [])
  })

  t.test('when it stands in a shadow root, then events reach the document all the same', async t => {
    const { page, nth, errors } = await setup(t, {
      html: `<div></div>${scriptTag()}`,
      stream: exchange => exchange.open().ephemeral('a'),
    })
    await page.evaluate(
      `document.querySelector('div').attachShadow({ mode: 'open' }).innerHTML = '${source()}'`,
    )
    t.match((await nth('message', 0)).detail, { data: 'a', msgId: null })
    t.strictSame(errors, [])
  })

  t.test(
    'when the connection ends, then connected and connection-id go, and the next one sets them anew',
    async t => {
      const { nth, seen, attribute, request } = await setup(t, {
        html: source() + scriptTag(),
        stream: (exchange, index) => {
          if (index === 0) exchange.open({ id: 'aa' }).durable(7, 'a').ephemeral('x', 'typing').end()
        },
      })
      const close = await nth('close', 0)
      t.match(close, {
        connected: false,
        connectionId: null,
        detail: { code: 'network', willReconnect: true },
      })
      const second = await request(1)
      t.equal(second.since, '7')
      t.equal(await attribute('connection-id'), null)
      t.equal(await attribute('since-id'), '7', 'written when the connection ended')
      second.open({ id: 'bb' }).durable(7, 'a').ephemeral('y', 'typing')
      t.match(await nth('open', 1), { connected: false, connectionId: null })
      t.match(await nth('connected', 1), { connected: true, connectionId: 'bb' })
      t.match((await nth('typing', 1)).detail, { data: 'y' })
      t.equal((await seen('message')).length, 1, 'the duplicate is dropped')
    },
  )

  t.test(
    'when the server refuses for good, then the document is told and nothing is tried again',
    async t => {
      const { nth, streams } = await setup(t, {
        html: source() + scriptTag(),
        stream: exchange =>
          exchange.answer(404, { 'content-type': 'text/plain' }, 'pgbus: invalid signed stream name'),
      })
      t.strictSame((await nth('close', 0)).detail, {
        code: 404,
        reason: 'HTTP 404 Not Found',
        willReconnect: false,
        retryIn: null,
      })
      await new Promise(resolve => setTimeout(resolve, 200))
      t.equal(streams.length, 1)
    },
  )

  t.test(
    'when it is detached and attached again, then the connection goes and the next resumes with the cursor',
    async t => {
      const { page, nth, seen, request, attribute } = await setup(t, {
        html: source('since-id="1"') + scriptTag(),
        stream: (exchange, index) => exchange.open({ id: `a${index}` }).durable(index + 2, 'x'),
      })
      await nth('message', 0)
      await page.evaluate("window.element = document.querySelector('pgbus-stream-source'); element.remove()")
      await (await request(0)).closed
      t.strictSame(
        await page.evaluate("[...element.attributes].map(({ name, value }) => name + '=' + value)"),
        ['src=/streams/a', 'since-id=2'],
        'the cursor is there at once, connected and connection-id are not',
      )
      await page.evaluate('document.body.append(element)')
      await nth('message', 1)
      t.equal((await request(1)).since, '2')
      t.equal(await attribute('connection-id'), 'a1')
      await page.evaluate("document.querySelector('script').before(element)")
      await nth('connected', 2)
      await (await request(1)).closed
      t.equal((await request(2)).since, '3', 'moving it is detaching and attaching')
      t.equal((await seen('close')).length, 0)
    },
  )

  t.test('when it is detached while connecting, then the request is aborted and nothing is told', async t => {
    const { page, seen, request } = await setup(t, {
      html: source() + scriptTag(),
      stream: () => undefined,
    })
    const exchange = await request(0)
    await page.evaluate("document.querySelector('pgbus-stream-source').remove()")
    await exchange.closed
    t.strictSame(await seen(), [])
  })

  t.test('when a copy is made, then the copy resumes where the original was', async t => {
    const { page, nth, request } = await setup(t, {
      html: source() + scriptTag(),
      stream: (exchange, index) =>
        index === 0 ? exchange.open().durable(7, 'x').durable(8, 'y') : exchange.open(),
    })
    await nth('message', 1)
    await page.evaluate(`
      document.dispatchEvent(new Event('turbo:before-cache'))
      const copy = document.querySelector('pgbus-stream-source').cloneNode(true)
      document.querySelector('pgbus-stream-source').replaceWith(copy)
    `)
    t.equal((await request(1)).since, '8')
    t.match(await nth('open', 1), { connected: false, connectionId: null }, 'copied attributes are cleared')
  })

  t.test('when src changes, then it follows the other stream', async t => {
    const { page, nth, request, streams, attribute } = await setup(t, {
      html: source() + scriptTag(),
      stream: (exchange, index) => exchange.open({ id: `c${index}` }).durable(index + 5, 'x'),
    })
    await nth('message', 0)
    await page.evaluate("document.querySelector('pgbus-stream-source').setAttribute('src', '/streams/b')")
    await nth('message', 1)
    await (await request(0)).closed
    t.equal((await request(1)).path, '/streams/b')
    t.equal((await request(1)).since, '5', 'the cursor is kept')
    t.equal(await attribute('connection-id'), 'c1')

    await page.evaluate(`{
      const element = document.querySelector('pgbus-stream-source')
      element.setAttribute('src', '/streams/c')
      element.setAttribute('since-id', '90')
    }`)
    t.equal((await request(2)).since, '90', 'a since-id that comes with it is obeyed')
    await page.evaluate("document.querySelector('pgbus-stream-source').setAttribute('src', '/streams/c')")
    await page.evaluate("document.querySelector('pgbus-stream-source').removeAttribute('src')")
    await (await request(2)).closed
    t.equal(streams.length, 3, 'the same value opens nothing, no value closes')
  })

  t.test('when the script comes after the element, then there is one request', async t => {
    const { nth, streams } = await setup(t, { html: source() + scriptTag() })
    await nth('connected', 0)
    await new Promise(resolve => setTimeout(resolve, 100))
    t.equal(streams.length, 1)
  })

  t.test('when the script is loaded twice, then nothing fails and there is one connection', async t => {
    const { nth, streams, errors } = await setup(t, {
      html:
        source() +
        scriptTag() +
        scriptTag() +
        scriptTag('stream-source.js?a') +
        scriptTag('stream-source.js?b'),
    })
    await nth('connected', 0)
    await new Promise(resolve => setTimeout(resolve, 100))
    t.strictSame(errors, [])
    t.equal(streams.length, 1)
  })

  t.test('when the stream is on another origin, then cookies go with with-credentials only', async t => {
    const cookies: (string | undefined)[] = []
    const other = await createSseServer(t, exchange => {
      cookies.push(exchange.headers.cookie)
      const { origin = '*' } = exchange.headers
      const cors = { 'access-control-allow-origin': origin, 'access-control-allow-credentials': 'true' }
      exchange.answer(
        200,
        { ...cors, 'content-type': 'text/event-stream' },
        'event: pgbus:shutdown\ndata: {}\n\n',
      )
    })
    const element = `<pgbus-stream-source src="${other.url}/streams/a"></pgbus-stream-source>`
    const { page, nth } = await setup(t, { html: element + scriptTag() })
    await nth('close', 0)
    t.equal(cookies[0], undefined)
    await page.evaluate(`{
      const element = document.querySelector('pgbus-stream-source')
      element.setAttribute('with-credentials', '')
      const parent = element.parentNode
      element.remove()
      parent.append(element)
    }`)
    await nth('close', 1)
    t.match(cookies.at(-1), 'who=me')
  })

  t.test('when src is no URL, then the page is told by an error', async t => {
    const { errors } = await setup(t, {
      html: `<pgbus-stream-source src="http://["></pgbus-stream-source>${scriptTag()}`,
    })
    await waitFor(() => errors.length > 0)
    t.match(errors[0], /TypeError/)
  })
})

t.test('given a page whose stream has a gap', async t => {
  const gap = (exchange: Exchange) =>
    exchange.open().control('gap-detected', { lastSeenId: 3, archiveOldestId: 90, reason: 'expired' })

  t.test('when nothing else is said, then it is an event', async t => {
    const { nth, pages } = await setup(t, {
      html: source('since-id="3"') + scriptTag(),
      stream: gap,
    })
    t.strictSame((await nth('gap-detected', 0)).detail, {
      lastSeenId: 3,
      archiveOldestId: 90,
      reason: 'expired',
    })
    await new Promise(resolve => setTimeout(resolve, 200))
    t.equal(pages.length, 1)
  })

  t.test('when on-gap is refresh, then the page is loaded again, but not for ever', async t => {
    const { pages, streams, nth, request } = await setup(t, {
      html: source('since-id="3" on-gap="refresh"') + scriptTag(),
      stream: gap,
    })
    await request(1)
    await nth('gap-detected', 0)
    await new Promise(resolve => setTimeout(resolve, 300))
    t.equal(pages.length, 2)
    t.equal(streams.length, 2)
  })

  t.test('when on-gap is refresh and there is Turbo, then Turbo visits the page again', async t => {
    const init = `
      window.visits = []
      window.Turbo = { connectStreamSource() {}, disconnectStreamSource() {}, visit(...args) { visits.push(args) } }
    `
    const { page, pages, server } = await setup(t, {
      html: source('since-id="3" on-gap="refresh"') + scriptTag(),
      stream: gap,
      init,
    })
    await waitFor(() => page.evaluate('visits.length > 0'))
    t.strictSame(await page.evaluate('visits'), [[`${server.url}/`, { action: 'replace' }]])
    t.equal(pages.length, 1)
  })
})

t.test('given a page with Turbo', async t => {
  /** As Turbo does it: listen to `message`, and put the HTML into the page. */
  const turbo = `
    window.makeTurbo = () => ({
      calls: [],
      receive: event => { document.body.dataset.html = (document.body.dataset.html ?? '') + event.data + '@' + event.lastEventId + ';' },
      connectStreamSource(source) { this.calls.push('connect'); source.addEventListener('message', this.receive) },
      disconnectStreamSource(source) { this.calls.push('disconnect'); source.removeEventListener('message', this.receive) },
      visit() {},
    })
  `
  const html = (page: Page) => page.evaluate('document.body.dataset.html')

  t.test('when Turbo is global, then it gets the frames while the element is attached', async t => {
    const { page, nth } = await setup(t, {
      html: source() + scriptTag(),
      stream: (exchange, index) =>
        index === 0
          ? exchange.open().durable(7, 'a').ephemeral('b').ephemeral('c', 'typing')
          : exchange.open(),
      init: `${turbo}; window.Turbo = makeTurbo()`,
    })
    await nth('typing', 0)
    t.equal(await html(page), 'a@7;b@;', 'typed events are none of its business')
    await page.evaluate("document.querySelector('pgbus-stream-source').remove()")
    t.strictSame(await page.evaluate('Turbo.calls'), ['connect', 'disconnect'])
  })

  t.test('when Turbo is loaded after the element, then it gets the frames from then on', async t => {
    const { page, request, nth } = await setup(t, { html: source() + scriptTag(), init: turbo })
    await nth('connected', 0)
    await page.evaluate('window.Turbo = makeTurbo()')
    ;(await request(0)).durable(7, 'a').durable(8, 'b')
    await nth('message', 1)
    t.equal(await html(page), 'a@7;b@8;')
    t.strictSame(await page.evaluate('Turbo.calls'), ['connect'])
  })

  t.test(
    'when Turbo is imported and handed over, then it gets the frames of elements that are there already',
    async t => {
      const { page, request, nth } = await setup(t, { html: source() + scriptTag(), init: turbo })
      await nth('connected', 0)
      await page.evaluate(
        "import('/client/index.js').then(({ useTurbo }) => { window.mine = makeTurbo(); useTurbo(mine); useTurbo(mine) })",
      )
      ;(await request(0)).durable(7, 'a')
      await nth('message', 0)
      t.equal(await html(page), 'a@7;')
      t.strictSame(await page.evaluate('mine.calls'), ['connect'])
    },
  )
})

t.test('given a page that sleeps, hides or goes', async t => {
  /** The first connection ends and would be retried in 15 to 30 seconds. */
  const slow = (exchange: Exchange, index: number) => {
    if (index === 0) exchange.open({ retry: 30_000 }).durable(7, 'a').end()
    else exchange.open({ id: 'bb' })
  }

  for (const [title, dispatch] of [
    ['the network is back', "window.dispatchEvent(new Event('online'))"],
    ['the page is visible again', "document.dispatchEvent(new Event('visibilitychange'))"],
    [
      'the page comes out of a cache',
      "window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))",
    ],
  ] as const) {
    t.test(`when ${title}, then a waiting stream connects at once`, async t => {
      const { page, nth, request } = await setup(t, { html: source() + scriptTag(), stream: slow })
      t.ok(((await nth('close', 0)).detail.retryIn as number) >= 15_000)
      await page.evaluate(dispatch)
      t.equal((await request(1)).since, '7')
      await nth('connected', 1)
    })
  }

  t.test(
    'when the page is visible again but the server asked for patience, then that is respected',
    async t => {
      const { page, nth, request, streams } = await setup(t, {
        html: source() + scriptTag(),
        stream: (exchange, index) =>
          index === 0 ? exchange.answer(503, { 'retry-after': '1' }) : exchange.open(),
      })
      await nth('close', 0)
      await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
      await request(1)
      t.ok((streams[1]?.at ?? 0) - (streams[0]?.at ?? 0) >= 990)
    },
  )

  t.test('when it is hidden by pagehide, then the connection goes, and pageshow brings it back', async t => {
    const { page, nth, request, attribute, seen } = await setup(t, {
      html: source() + scriptTag(),
      stream: (exchange, index) =>
        index === 0 ? exchange.open().durable(7, 'a') : exchange.open({ id: 'bb' }),
    })
    await nth('message', 0)
    await page.evaluate("window.dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
    await (await request(0)).closed
    t.equal(await attribute('connected'), null)
    t.equal(await attribute('since-id'), '7')
    await page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    t.match(await nth('connected', 1), { connectionId: 'bb' })
    t.equal((await request(1)).since, '7')
    t.equal((await seen('close')).length, 0)
  })

  t.test('when the user goes to another page, then the connection goes', async t => {
    const { page, server, nth, request } = await setup(t, { html: source() + scriptTag() })
    await nth('connected', 0)
    await page.goto(`${server.url}/client/index.js`)
    await (await request(0)).closed
  })

  t.test('when the element was removed, then such events do nothing', async t => {
    const { page, nth, request, streams } = await setup(t, { html: source() + scriptTag() })
    await nth('connected', 0)
    await page.evaluate("document.querySelector('pgbus-stream-source').remove()")
    await (await request(0)).closed
    await page.evaluate(
      "window.dispatchEvent(new Event('online')); document.dispatchEvent(new Event('visibilitychange'))",
    )
    await new Promise(resolve => setTimeout(resolve, 100))
    t.equal(streams.length, 1)
  })
})

t.test('given Node.js, where there is no DOM', async t => {
  t.test('when the client is imported, then nothing fails and PgbusStream is there', async t => {
    const client: Record<string, unknown> = await import(
      new URL('../../lib/client/index.js', import.meta.url).href
    )
    t.same(Object.keys(client).sort(), ['PgbusStream', 'PgbusStreamSource', 'useTurbo'])
  })
})
