import t from 'tap'
import { parseBind } from '../../lib/config/binds.ts'

t.test('given a text, when it is an address, then its parts are known', async t => {
  const tcp = { kind: 'tcp', tls: false, backlog: 1024 }
  t.same(parseBind('tcp://0.0.0.0:80'), { ...tcp, host: '0.0.0.0', port: 80 })
  t.same(parseBind('tcp://[::1]:0'), { ...tcp, host: '::1', port: 0 })
  t.same(parseBind('ssl://shop.test:443?backlog=7'), {
    kind: 'tcp',
    tls: true,
    host: 'shop.test',
    port: 443,
    backlog: 7,
  })
  const unix = { kind: 'unix', mode: null, backlog: 1024, unlink: true }
  t.same(parseBind('unix:///run/app.sock'), { ...unix, path: '/run/app.sock' })
  t.same(parseBind('unix:///run/app.sock?mode=0660&backlog=5&unlink=0'), {
    kind: 'unix',
    path: '/run/app.sock',
    mode: 0o660,
    backlog: 5,
    unlink: false,
  })
  t.same(parseBind('fd://3'), { kind: 'fd', fd: 3 })
})

t.test('given a text, when it is no address, then the rule says why', async t => {
  const broken: [text: string, rule: RegExp][] = [
    ['127.0.0.1:80', /must begin with/],
    ['http://127.0.0.1:80', /must begin with/],
    ['tcp://127.0.0.1', /must be host:port/],
    ['tcp://::1:80', /must be host:port/],
    ['tcp://127.0.0.1:65536', /must be host:port/],
    ['tcp://127.0.0.1:80?backlog=0', /backlog/],
    ['tcp://127.0.0.1:80?mode=0660', /has no option "mode"; there are backlog/],
    ['unix://run/app.sock', /absolute/],
    [`unix:///${'a'.repeat(100)}`, /too long/],
    ['unix:///run/app.sock?mode=rw', /octal/],
    ['unix:///run/app.sock?unlink=yes', /unlink/],
    ['fd://stdin', /must be a number/],
    ['fd://3?x=1', /has no option "x"/],
  ]
  for (const [text, rule] of broken) t.match(parseBind(text), { rule }, text)
})
