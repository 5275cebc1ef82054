import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { type AppContext, findShape, loadApp } from '../../../lib/processes/web/app-module.ts'
import { compiled } from '../../support/spawn.ts'

const context = { worker: { index: 3, pid: process.pid }, signal: new AbortController().signal } as AppContext

const fixture = (name: string) => compiled(`test/fixtures/web/${name}.ts`)

/** Loads a module, asks it for `/`, closes it. */
async function ask(t: Test, path: string): Promise<unknown> {
  const app = await loadApp(path, context)
  const [address] = await app.listen({ host: '127.0.0.1', port: 0, backlog: 9 })
  t.teardown(() => app.close())
  const response = await fetch(`${address}/`, { headers: { connection: 'close' } })
  return response.json()
}

t.test('given a module of each kind, when it is loaded, then it serves', async t => {
  t.same(await ask(t, fixture('plugin')), { kind: 'plugin', limit: 4_096, index: 3 })
  t.same(await ask(t, fixture('instance')), { kind: 'instance' })
  t.same(await ask(t, fixture('handler')), { kind: 'handler' })
  t.same(await ask(t, fixture('server')), { kind: 'server' })
})

t.test('given a CommonJS module, when it is loaded, then its exports count', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-app-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const path = join(folder, 'app.cjs')
  writeFileSync(
    path,
    `const exported = { createApp: ({ worker }) => ({ handler: (_, res) => res.end(JSON.stringify({ index: worker.index })) }) }
     module.exports = exported`,
  )
  t.same(await ask(t, path), { index: 3 })
})

t.test(
  'given a factory that returns { app, close }, when the app closes, then close runs after it',
  async t => {
    const folder = mkdtempSync(join(tmpdir(), 'pgbus-app-'))
    t.teardown(() => rmSync(folder, { recursive: true }))
    const path = join(folder, 'app.mjs')
    const events: string[] = []
    ;(globalThis as { events?: string[] }).events = events
    writeFileSync(
      path,
      `import { createServer } from 'node:http'
     const app = createServer()
     app.on('close', () => globalThis.events.push('server'))
     export const createApp = async () => ({ app, close: async () => globalThis.events.push('own') })`,
    )
    const app = await loadApp(path, context)
    await app.listen({ host: '127.0.0.1', port: 0, backlog: 9 })
    await app.close()
    t.same(events, ['server', 'own'])
  },
)

t.test(
  'given a module that cannot be served, when it is loaded, then the error says what to write',
  async t => {
    const code = 'PGBUS_ERR_APP_MODULE'
    t.teardown(async () => (await import('../../fixtures/web/listens.ts')).app.close())
    await t.rejects(loadApp(fixture('throws'), context), {
      code,
      message: /failed to load: the settings service is missing/,
    })
    await t.rejects(loadApp(fixture('absent'), context), { code, message: /absent\.js does not exist/ })
    await t.rejects(loadApp(fixture('listens'), context), { code, message: /remove its listen\(\) call/ })
    const late = await loadApp(fixture('listens-late'), context)
    await t.rejects(late.listen({ host: '127.0.0.1', port: 0, backlog: 9 }), {
      code,
      message: /remove its listen\(\) call/,
    })
    await late.close()
  },
)

t.test('given the exports of a module, when they are none or several, then the error lists them', async t => {
  const shape = (exported: Record<string, unknown>) => findShape(exported, '/srv/app.js')
  const plugin = async () => undefined
  const handler = () => undefined
  const express = Object.assign(() => undefined, { use: () => undefined, handle: () => undefined })
  t.throws(() => shape({}), {
    message: /exports no application \(it exports nothing\); export one of createApp/,
  })
  t.throws(() => shape({ routes: 1 }), { message: /it exports routes/ })
  t.throws(() => shape({ plugin, handler }), { message: /exports plugin and handler; export one of/ })
  t.throws(() => shape({ default: express }), {
    message: /Express application as default; export it as handler/,
  })
  t.equal(shape({ default: plugin, plugin }).kind, 'plugin', 'one thing under two names')
  t.equal(shape({ handler: express, default: express }).kind, 'handler')
  t.equal(shape({ default: Object.assign(() => undefined, { kind: 'factory' }) }).kind, 'factory')
  t.equal(shape({ app: Fastify() }).kind, 'fastify')
  t.equal(shape({ app: createServer() as Server }).kind, 'server')
  t.equal(shape({ default: { handler } }).kind, 'handler', 'module.exports = { handler }')
})
