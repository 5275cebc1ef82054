import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import {
  type Bind,
  formatAddress,
  formatBind,
  probeBind,
  toListenError,
} from '../../../lib/processes/web/bind.ts'

const tcp = (host: string, port: number): Bind => ({ kind: 'tcp', tls: false, host, port, backlog: 9 })

t.test('given a host and a port, then the URL is one that a browser takes', async t => {
  t.equal(formatBind(tcp('127.0.0.1', 3000)), 'http://127.0.0.1:3000')
  t.equal(formatBind(tcp('::1', 80)), 'http://[::1]:80')
  t.equal(formatBind({ kind: 'tcp', tls: true, host: '::1', port: 443, backlog: 9 }), 'https://[::1]:443')
  t.equal(formatAddress({ address: '::', family: 'IPv6', port: 81 }), 'http://[::]:81')
})

t.test('given a port that somebody listens on', async t => {
  const other = createServer()
  await new Promise<void>(resolve => other.listen(0, '127.0.0.1', resolve))
  const { port } = other.address() as AddressInfo
  t.teardown(() => other.close())

  t.test('when it is probed, then the error is one line with address and reason', async t => {
    await t.rejects(probeBind(tcp('127.0.0.1', port)), {
      code: 'PGBUS_ERR_BOOT',
      message: `cannot listen on http://127.0.0.1:${port}: the address is in use by another process (EADDRINUSE)`,
    })
  })
})

t.test('given a free port, when it is probed, then it is free afterwards', async t => {
  const finder = createServer()
  await new Promise<void>(resolve => finder.listen(0, '127.0.0.1', resolve))
  const bind = tcp('127.0.0.1', (finder.address() as AddressInfo).port)
  await new Promise(resolve => finder.close(resolve))
  await probeBind(bind)
  await probeBind(bind)
  t.pass('twice')
})

t.test('given an address of another machine, when it is probed, then the reason says so', async t => {
  await t.rejects(probeBind(tcp('192.0.2.1', 3000)), {
    message: /no such address \(EADDRNOTAVAIL\)/,
  })
})

t.test('given errors of listen, then those of the system are explained and others are kept', async t => {
  const bind = tcp('0.0.0.0', 80)
  t.match(toListenError(Object.assign(new Error('x'), { code: 'EACCES' }), bind), {
    message: 'cannot listen on http://0.0.0.0:80: permission denied (ports below 1024 are reserved) (EACCES)',
  })
  t.match(toListenError(Object.assign(new Error('x'), { code: 'ERR_SERVER_ALREADY_LISTEN' }), bind), {
    code: 'PGBUS_ERR_APP_MODULE',
  })
  const other = new Error('a plugin failed')
  t.equal(toListenError(other, bind), other)
})

t.test('given a Unix socket', async t => {
  const setup = (t: Test) => {
    const folder = mkdtempSync(join(tmpdir(), 'pgbus-bind-'))
    t.teardown(() => rmSync(folder, { recursive: true, force: true }))
    const path = join(folder, 'app.sock')
    const bind = (unlink: boolean): Bind => ({ kind: 'unix', path, mode: null, backlog: 9, unlink })
    return { path, bind }
  }
  /** As a process leaves it that was killed. */
  const leave = (path: string) =>
    spawnSync(process.execPath, [
      '-e',
      `require('net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`,
    ])

  t.test('when nothing is there, then it is free', async t => {
    const { path, bind } = setup(t)
    await probeBind(bind(true))
    t.notOk(existsSync(path))
  })

  t.test('when somebody listens on it, then it is not taken', async t => {
    const { path, bind } = setup(t)
    const other = createServer()
    await new Promise<void>(resolve => other.listen(path, resolve))
    t.teardown(() => other.close())
    await t.rejects(probeBind(bind(true)), {
      code: 'PGBUS_ERR_BOOT',
      message: `cannot listen on unix://${path}: the address is in use by another process (EADDRINUSE)`,
    })
    t.ok(existsSync(path))
  })

  t.test('when its process is gone, then its file is removed, unless it is to be kept', async t => {
    const { path, bind } = setup(t)
    leave(path)
    t.ok(existsSync(path))
    await t.rejects(probeBind(bind(false)), { message: /the file is there already, and unlink=0 keeps it/ })
    await probeBind(bind(true))
    t.notOk(existsSync(path))
  })

  t.test('when it is a file of somebody, then it stays', async t => {
    const { path, bind } = setup(t)
    writeFileSync(path, 'mine')
    await t.rejects(probeBind(bind(true)), { code: 'PGBUS_ERR_BOOT' })
    t.ok(existsSync(path))
  })
})
