import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { loadConfig } from '../../lib/config/load.ts'
import type { PgbusConfig } from '../../lib/config/options.ts'
import { fromPortable, toPortable } from '../../lib/config/portable.ts'
import { resolveConfig } from '../../lib/config/resolve.ts'

const plain: PgbusConfig = {
  databaseUrl: 'postgres://app:hunter2@db/app',
  connection: { ssl: { ca: Buffer.from('certificate'), rejectUnauthorized: true }, variables: { a: 1 } },
  workers: 'critical, default: 5; default: 10',
  streams: { secret: 'sixteen-letters!', durablePatterns: [/^a\/b/gi, 'news'], ephemeralPatterns: [/x/] },
  drainTimeout: '1m',
}

/** Both ways that a message may travel. */
const channels: [name: string, send: (value: Record<string, unknown>) => Record<string, unknown>][] = [
  ['as JSON', value => JSON.parse(JSON.stringify(value)) as Record<string, unknown>],
  ['as a structured clone', value => structuredClone(value)],
]

t.test('given a configuration without functions', async t => {
  for (const [name, send] of channels)
    t.test(`when it travels ${name}, then it arrives the same, frozen, secrets included`, async t => {
      const config = resolveConfig(plain, {})
      const arrived = await fromPortable(send(toPortable(config)), '/no/such/file')
      t.strictSame({ ...arrived }, { ...config })
      t.strictSame(arrived.streams.durablePatterns, [/^a\/b/gi, 'news'])
      t.equal(String((arrived.connection.ssl as { ca: Buffer }).ca), 'certificate')
      t.ok(Object.isFrozen(arrived.streams.pool))
      t.notMatch(JSON.stringify(arrived), /hunter2|sixteen/)
    })
})

t.test('given a configuration file with functions', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-portable-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'pgbus.config.mjs')
  writeFileSync(
    file,
    `const nothing = () => {}
     class Logger { debug() {} info() {} warn() {} error() {} child() { return this } }
     export default {
       maxRetries: 7,
       connection: { host: 'db', password: async () => 'from the file', ssl: { checkServerIdentity: nothing } },
       log: { logger: new Logger() },
       errorReporters: [nothing],
     }`,
  )
  const { config } = await loadConfig({ file, env: {}, overrides: { maxRetries: 8 } })

  for (const [name, send] of channels)
    t.test(
      `when it travels ${name}, then functions come from the file and the rest from the sender`,
      async t => {
        const arrived = await fromPortable(send(toPortable(config)), file)
        t.equal(arrived.maxRetries, 8)
        t.equal(arrived.connection.host, 'db')
        t.equal(await (arrived.connection.password as () => Promise<string>)(), 'from the file')
        t.type((arrived.connection.ssl as { checkServerIdentity: unknown }).checkServerIdentity, 'function')
        t.type(arrived.log.logger?.child, 'function')
        t.equal(arrived.errorReporters.length, 1)
      },
    )

  t.test('when there is no file, then what is needed to connect is missed by name', async t => {
    await t.rejects(fromPortable(toPortable(config), null), {
      code: 'PGBUS_ERR_CONFIG',
      message: /connection\.password holds a function.*there is none/,
    })
  })

  t.test('when the file no longer sets it, then the file is named', async t => {
    const other = join(folder, 'other.mjs')
    writeFileSync(other, 'export default {}')
    await t.rejects(fromPortable(toPortable(config), other), { message: /other\.mjs does not set it/ })
  })

  t.test('when the file throws, then so does the other process', async t => {
    const broken = join(folder, 'broken.mjs')
    writeFileSync(broken, "throw new Error('boom')")
    await t.rejects(fromPortable(toPortable(config), broken), { message: /cannot load .*boom/ })
  })

  t.test('when only the logger is a function without a file, then the own logger does', async t => {
    const logger = { debug() {}, info() {}, warn() {}, error() {}, child: () => logger }
    const own = resolveConfig({ log: { logger }, errorReporters: [() => {}] }, {})
    const arrived = await fromPortable(toPortable(own), null)
    t.equal(arrived.log.logger, null)
    t.strictSame(arrived.errorReporters, [])
  })
})
