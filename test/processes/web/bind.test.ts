import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import t from 'tap'
import { formatAddress, formatBind, probeBind, toListenError } from '../../../lib/processes/web/bind.ts'

t.test('given a host and a port, then the URL is one that a browser takes', async t => {
  t.equal(formatBind({ host: '127.0.0.1', port: 3000 }), 'http://127.0.0.1:3000')
  t.equal(formatBind({ host: '::1', port: 80 }), 'http://[::1]:80')
  t.equal(formatAddress({ address: '::', family: 'IPv6', port: 81 }), 'http://[::]:81')
})

t.test('given a port that somebody listens on', async t => {
  const other = createServer()
  await new Promise<void>(resolve => other.listen(0, '127.0.0.1', resolve))
  const { port } = other.address() as AddressInfo
  t.teardown(() => other.close())

  t.test('when it is probed, then the error is one line with address and reason', async t => {
    await t.rejects(probeBind({ host: '127.0.0.1', port }), {
      code: 'PGBUS_ERR_BOOT',
      message: `cannot listen on http://127.0.0.1:${port}: the address is in use by another process (EADDRINUSE)`,
    })
  })
})

t.test('given a free port, when it is probed, then it is free afterwards', async t => {
  const finder = createServer()
  await new Promise<void>(resolve => finder.listen(0, '127.0.0.1', resolve))
  const bind = { host: '127.0.0.1', port: (finder.address() as AddressInfo).port }
  await new Promise(resolve => finder.close(resolve))
  await probeBind(bind)
  await probeBind(bind)
  t.pass('twice')
})

t.test('given an address of another machine, when it is probed, then the reason says so', async t => {
  await t.rejects(probeBind({ host: '192.0.2.1', port: 3000 }), {
    message: /no such address \(EADDRNOTAVAIL\)/,
  })
})

t.test('given errors of listen, then those of the system are explained and others are kept', async t => {
  const bind = { host: '0.0.0.0', port: 80 }
  t.match(toListenError(Object.assign(new Error('x'), { code: 'EACCES' }), bind), {
    message: 'cannot listen on http://0.0.0.0:80: permission denied (ports below 1024 are reserved) (EACCES)',
  })
  t.match(toListenError(Object.assign(new Error('x'), { code: 'ERR_SERVER_ALREADY_LISTEN' }), bind), {
    code: 'PGBUS_ERR_APP_MODULE',
  })
  const other = new Error('a plugin failed')
  t.equal(toListenError(other, bind), other)
})
