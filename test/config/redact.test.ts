import t from 'tap'
import { redactConfig, redactUrl, showValue } from '../../lib/config/redact.ts'

t.test('given connection URLs', async t => {
  const cases: [given: string, shown: string][] = [
    ['postgres://app:secret@db:5432/app', 'postgres://app:[REDACTED]@db:5432/app'],
    ['postgres://app@db/app', 'postgres://app@db/app'],
    ['postgres:///app?host=/tmp', 'postgres:///app?host=/tmp'],
    ['postgres://app:se:cr@et@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:se/cret@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:s/e@c:r/e@t@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:12?secret@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:12/secret@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:secret#@db/app', 'postgres://app:[REDACTED]@db/app'],
    ['postgres://app:secret@/app?host=/tmp', 'postgres://app:[REDACTED]@/app'],
    [
      'postgres://db/app?user=u&password=secret&sslmode=require',
      'postgres://db/app?user=u&password=[REDACTED]&sslmode=require',
    ],
    ['postgres://db/app?sslpassword=secret', 'postgres://db/app?sslpassword=[REDACTED]'],
    ['postgres://app:se/cret@db/app?password=secret', 'postgres://app:[REDACTED]@db/app'],
    ['host=db password=secret', '[REDACTED]'],
    ['app:secret', '[REDACTED]'],
  ]
  for (const [given, shown] of cases)
    t.test(`when ${given} is shown, then no part of the password is in it`, async t => {
      t.equal(redactUrl(given), shown)
      t.notMatch(redactUrl(given), /secret|se:cr|cret|et@/)
    })
})

t.test('given a configuration', async t => {
  const shown = redactConfig({
    databaseUrl: 'postgres://u:hunter2@h/d',
    connection: {
      password: () => 'hunter2',
      ssl: { key: ['hunter2'], passphrase: 'hunter2', pfx: Buffer.from('hunter2'), ca: 'visible' },
      variables: { 'app.api_token': 'hunter2', work_mem: '4MB' },
    },
    streams: { secret: ['hunter2'], pool: { databaseUrl: 'postgres://u:hunter2@h/d' } },
    deep: { er: { privateKey: 'hunter2', awsCredentials: { id: 'hunter2' }, requirePassword: true } },
    somewhere: ['postgres://u:hunter2@h/d', 'redis://u:hunter2@h'],
    log: { logger: { info() {}, token: 'hunter2' } },
    instance: new (class Client {
      field = 'hunter2'
    })(),
    pattern: /a/i,
  })

  t.test('when it is redacted, then every secret is gone, at any depth', async t => {
    t.notMatch(JSON.stringify(shown), /hunter2/)
  })

  t.test('when it is redacted, then the rest can still be read', async t => {
    t.match(shown, {
      databaseUrl: 'postgres://u:[REDACTED]@h/d',
      connection: { ssl: { ca: 'visible' }, variables: { work_mem: '4MB' } },
      deep: { er: { requirePassword: true } },
      log: { logger: '[logger]' },
      instance: '[Client]',
      pattern: '/a/i',
    })
    t.strictSame(redactConfig({ streams: { secret: [] } }), { streams: { secret: [] } })
  })
})

t.test('given a value in an issue', async t => {
  t.test('when its key looks like a secret, known or not, then it is not shown', async t => {
    for (const path of ['streams.secret', 'apiToken', 'db.PASSWORD', 'x.private_key', 'env.credentials'])
      t.equal(showValue(path, 'hunter2'), "'[REDACTED]'")
    t.notMatch(showValue('unknown', { nested: { token: 'hunter2' } }), /hunter2/)
    t.notMatch(showValue('connection', 'postgres://u:hunter2@h/d'), /hunter2/)
  })

  t.test('when it is long, then it is cut and stays on one line', async t => {
    t.equal(showValue('x', 'a'.repeat(200)).length, 80)
    t.notMatch(showValue('x', { a: { b: { c: { d: { e: 1 } } }, f: ['g'.repeat(30)] } }), /\n/)
  })
})
