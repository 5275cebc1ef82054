import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { resolveConfig } from '../../../lib/config/resolve.ts'
import { createLogger } from '../../../lib/core/log.ts'
import { HubKeeper } from '../../../lib/processes/web/hub-keeper.ts'
import { waitFor } from '../../support/wait-for.ts'

function setup(t: Test) {
  // A folder of tap's would make the path too long for a socket.
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-hub-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const path = join(folder, 'hub.sock')
  const reported: string[] = []
  const config = resolveConfig(
    // Nobody listens there: a hub must not need its database to open.
    { databaseUrl: 'postgres://127.0.0.1:1/none', web: { hubSocket: path }, log: { level: 'silent' } },
    {},
  )
  const keeper = new HubKeeper({
    config,
    log: createLogger(config.log),
    report: (_error, { action }) => reported.push(action),
    retry: { base: 10, max: 20 },
  })
  t.teardown(() => keeper.close())
  return { keeper, path, reported }
}

t.test(
  'given a database that is down, when the hub opens, then its socket is there, for us alone',
  async t => {
    const { keeper, path } = setup(t)
    await keeper.open()
    t.equal(keeper.path, path)
    t.equal(statSync(path).mode & 0o777, 0o600)
    await keeper.close()
    t.notOk(existsSync(path))
  },
)

t.test('given a path that another process uses', async t => {
  const { keeper, path, reported } = setup(t)
  const other = createServer()
  await new Promise<void>(resolve => other.listen(path, resolve))
  t.teardown(() => other.close())

  t.test('when the hub cannot open, then that is reported, fails nothing, and is tried again', async t => {
    await keeper.open()
    await waitFor(() => reported.filter(action => action === 'stream_hub').length > 1)
    await new Promise(resolve => other.close(resolve))
    await waitFor(() => existsSync(path) && (statSync(path).mode & 0o777) === 0o600)
    t.pass('open at last')
  })
})

t.test(
  'given a keeper that was closed while it waits, when the path is free, then nothing opens',
  async t => {
    const { keeper, path } = setup(t)
    const other = createServer()
    await new Promise<void>(resolve => other.listen(path, resolve))
    await keeper.open()
    await keeper.close()
    await new Promise(resolve => other.close(resolve))
    await keeper.open()
    t.notOk(existsSync(path))
  },
)
