import { readFileSync } from 'node:fs'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import t from 'tap'
import { keys } from '../../lib/config/schema.ts'
import { pgbusHealthExpress } from '../../plugins/express/index.ts'
import { pgbusHealth } from '../../plugins/fastify/index.ts'
import { createHealthHandler } from '../../plugins/node/index.ts'
import { createDatabase } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'

t.test('given the page about health', async t => {
  const pgbus = createTestPgbus(t, await createDatabase(t))
  const read = (path: string) => readFileSync(new URL(`../../../${path}`, import.meta.url), 'utf8')
  const page = read('docs/health.md')
  const blocks = [...page.matchAll(/```js\n([\s\S]*?)```/g)].map(match => match[1] ?? '')
  /** Runs a block with what it takes for granted, and returns what it declares. */
  const run = (marker: string, given: Record<string, unknown>, declared: string) => {
    const block = blocks.find(text => text.includes(marker))
    const body = `return (async () => {${block}\nreturn ${declared}})()`
    return new Function(...Object.keys(given), body)(...Object.values(given)) as Promise<unknown>
  }

  t.test('when it asks for a verdict, then it has one', async t => {
    const printed: string[] = []
    const console = { log: (line: string) => printed.push(line), warn: (line: string) => printed.push(line) }
    t.equal(await run('pgbus.health()', { pgbus, console }, 'status'), 'OK')
    t.strictSame(printed, ['0 jobs wait for 0 workers'])
  })

  t.test('when it mounts probes, then each of the three answers', async t => {
    const fastify = Fastify()
    t.teardown(() => fastify.close())
    const routes = new Map<string, (request: unknown, response: unknown) => void>()
    const express = { use: (path: string, handler: () => void) => routes.set(path, handler) }
    const app: RequestListener = (request, response) => {
      request.url = request.url?.replace('/pgbus/health', '')
      routes.get('/pgbus/health')?.(request, response)
    }
    const given = {
      pgbus,
      fastify,
      express,
      app,
      pgbusHealth,
      pgbusHealthExpress,
      createHealthHandler,
      createServer,
    }
    const server = (await run('fastify.register', given, 'server')) as Server
    t.teardown(() => server.close())
    await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
    const other = createServer(app)
    t.teardown(() => other.close())
    await new Promise<void>(done => other.listen(0, '127.0.0.1', done))
    for (const { port } of [server.address(), other.address()] as AddressInfo[]) {
      const answer = await fetch(`http://127.0.0.1:${port}/pgbus/health/readyz`)
      t.match(await answer.json(), { status: 'OK' })
    }
    t.match(await fastify.inject('/pgbus/health/readyz'), { statusCode: 200 })
  })

  t.test('when it lists codes and keys, then they are those of the code', async t => {
    const union = /export type SignalCode =([\s\S]*?)\n\n/.exec(read('lib/health/verdict.ts'))?.[1] ?? ''
    const codes = [...union.matchAll(/'(\w+)'/g)].map(match => match[1])
    t.ok(codes.length > 5)
    t.strictSame(
      [...page.matchAll(/^\| `([A-Z_]+)` \| (?:stalled|degraded) \|/gm)].map(match => match[1]),
      codes,
    )
    const known = new Set(keys.map(({ path }) => path))
    const named = [...page.matchAll(/`(health\.[a-zA-Z]+)`/g)].map(match => match[1] ?? '')
    t.strictSame(
      named.filter(key => !known.has(key)),
      [],
    )
  })
})
