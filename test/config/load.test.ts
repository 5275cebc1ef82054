import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import t from 'tap'
import { type LoadConfigOptions, loadConfig } from '../../lib/config/load.ts'
import { ConfigurationError } from '../../lib/core/errors.ts'
import type { TestContext } from '../support/database.ts'

/** A folder with these files, and a loader that starts in it (or in `cwd` below it) with an empty environment. */
function setup(t: TestContext, files: Record<string, string>) {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'pgbus-config-')))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  for (const [name, content] of Object.entries({ 'package.json': '{}', ...files })) {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), content)
  }
  const load = ({ cwd = '.', ...options }: LoadConfigOptions = {}) =>
    loadConfig({ env: {}, ...options, cwd: join(folder, cwd) })
  return { folder, load }
}

t.test('given a file of each kind', async t => {
  const kinds: [name: string, content: string][] = [
    ['pgbus.config.ts', 'const n: number = 9\nexport default { maxRetries: n satisfies number }'],
    ['pgbus.config.mts', 'type A = { maxRetries: number }\nexport default { maxRetries: 9 } as A'],
    ['pgbus.config.mjs', 'export default { maxRetries: 9 }'],
    ['pgbus.config.cjs', 'module.exports = { maxRetries: 9 }'],
    ['pgbus.config.json', '{ "maxRetries": 9 }'],
  ]
  for (const [name, content] of kinds)
    t.test(`when it is ${name}, then it is found and read`, async t => {
      const { folder, load } = setup(t, { [name]: content })
      const loaded = await load()
      t.equal(loaded.config.maxRetries, 9)
      t.equal(loaded.file, join(folder, name))
      t.equal(loaded.sources.get('maxRetries'), 'file')
      t.strictSame(loaded.warnings, [])
    })

  t.test('when it is .js, then the package decides what it is', async t => {
    const { load } = setup(t, {
      'package.json': '{"type":"module"}',
      'pgbus.config.js': 'export default { maxRetries: 9 }',
    })
    t.equal((await load()).config.maxRetries, 9)
  })

  t.test('when TypeScript imports TypeScript, then both are read', async t => {
    const { load } = setup(t, {
      'pgbus.config.ts': "import { retries } from './retries.ts'\nexport default { maxRetries: retries }",
      'retries.ts': 'export const retries: number = 9',
    })
    t.equal((await load()).config.maxRetries, 9)
  })

  t.test('when it exports a function, then it is called with the environment', async t => {
    const source = 'export default async ({ env }) => ({ queuePrefix: env, maxRetries: 9 })'
    const { load } = setup(t, {
      'pgbus.config.mjs': source,
      'pgbus.config.mts': source.replace('env }', 'env }: { env: string }'),
    })
    t.equal((await load({ file: 'pgbus.config.mjs' })).config.queuePrefix, 'development')
    t.equal((await load({ env: { NODE_ENV: 'staging' } })).config.queuePrefix, 'staging')
    t.equal((await load({ env: { NODE_ENV: 'x', PGBUS_ENV: 'y' } })).config.queuePrefix, 'y')
  })

  t.test('when it holds functions and patterns, then they are the same objects', async t => {
    const { load } = setup(t, {
      'pgbus.config.mjs':
        'export const fn = () => {}; export default { errorReporters: [fn], streams: { durablePatterns: [/a/] } }',
    })
    const { config } = await load()
    t.type(config.errorReporters[0], 'function')
    t.strictSame(config.streams.durablePatterns, [/a/])
  })
})

t.test('given where files may be', async t => {
  const content = (retries: number) => `{ "maxRetries": ${retries} }`

  t.test('when there is none, then the defaults are enough', async t => {
    const { load } = setup(t, {})
    const { file, config } = await load()
    t.equal(file, null)
    t.equal(config.maxRetries, 5)
  })

  t.test('when it is in a parent of the working directory, then it is found', async t => {
    const { load } = setup(t, { 'pgbus.config.json': content(9), 'a/b/x': '' })
    t.equal((await load({ cwd: 'a/b' })).config.maxRetries, 9)
  })

  t.test('when a package.json lies between, then it is not', async t => {
    const { load } = setup(t, { 'pgbus.config.json': content(9), 'a/package.json': '{}', 'a/b/x': '' })
    t.equal((await load({ cwd: 'a/b' })).file, null)
  })

  t.test('when a folder has several, then the first is used and the others are warned about', async t => {
    const { folder, load } = setup(t, {
      'pgbus.config.json': content(9),
      'pgbus.config.mjs': 'export default { maxRetries: 8 }',
      'pgbus.config.ts': 'export default { maxRetries: 7 }',
    })
    const { config, warnings } = await load()
    t.equal(config.maxRetries, 7)
    t.strictSame(
      warnings.map(({ path, rule }) => [path, rule]),
      ['mjs', 'json'].map(extension => [
        join(folder, `pgbus.config.${extension}`),
        `is ignored, because ${join(folder, 'pgbus.config.ts')} is used`,
      ]),
    )
  })

  t.test('when PGBUS_CONFIG names one, then that one is read, from the working directory', async t => {
    const { load } = setup(t, { 'pgbus.config.json': content(9), 'other/c.json': content(8) })
    t.equal((await load({ env: { PGBUS_CONFIG: 'other/c.json' } })).config.maxRetries, 8)
  })

  t.test('when the caller names one, then PGBUS_CONFIG does not matter', async t => {
    const { load } = setup(t, { 'a.json': content(7), 'b.json': content(8) })
    const env = { PGBUS_CONFIG: 'b.json' }
    t.equal((await load({ env, file: 'a.json' })).config.maxRetries, 7)
    t.equal((await load({ env, file: false })).config.maxRetries, 5)
  })

  t.test('when all layers set something, then options beat the environment and that the file', async t => {
    const { load } = setup(t, {
      'pgbus.config.json': '{"maxRetries":1,"pool":{"size":1,"timeout":"7s"},"queuePrefix":"f"}',
    })
    const { config, sources } = await load({
      env: { PGBUS_MAX_RETRIES: '2', PGBUS_POOL_SIZE: '2', DATABASE_URL: 'postgres://d/d' },
      overrides: { maxRetries: 3 },
    })
    t.match(config, {
      maxRetries: 3,
      pool: { size: 2, timeout: 7_000 },
      queuePrefix: 'f',
      databaseUrl: 'postgres://d/d',
    })
    t.equal(sources.get('databaseUrl'), 'environment')
  })
})

t.test('given a file that cannot be used', async t => {
  const cases: [
    title: string,
    name: string,
    content: string | undefined,
    message: RegExp,
    hasCause: boolean,
  ][] = [
    ['is not there', 'gone.ts', undefined, /cannot load .*gone\.ts: there is no such file/, false],
    ['throws', 'a.mjs', "throw new Error('boom')", /cannot load .*a\.mjs: boom/, true],
    ['throws in TypeScript', 'a.ts', "throw new Error('boom' as string)", /cannot load .*a\.ts: boom/, true],
    [
      'throws in its function',
      'b.mjs',
      "export default () => { throw new Error('boom') }",
      /cannot load .*b\.mjs: boom/,
      true,
    ],
    ['cannot be parsed', 'a.json', '{ // no comments\n}', /cannot load .*a\.json: /, true],
    [
      'imports what is missing',
      'c.mjs',
      "import './nothing.mjs'",
      /cannot load .*c\.mjs: .*nothing\.mjs/,
      true,
    ],
    [
      'has no default export',
      'd.mjs',
      'export const config = {}',
      /d\.mjs must have a default export/,
      false,
    ],
    ['has none in TypeScript', 'd.ts', 'export const config = {}', /d\.ts must have a default export/, false],
    ['exports a string', 'e.mjs', "export default 'x'", /e\.mjs must export an object/, false],
    ['exports a list', 'f.json', '[]', /f\.json must export an object/, false],
    ['gives nothing', 'g.mjs', 'export default () => null', /g\.mjs must export an object/, false],
  ]
  for (const [title, name, content, message, hasCause] of cases)
    t.test(`when it ${title}, then the error names it`, async t => {
      const { load } = setup(t, content === undefined ? {} : { [name]: content })
      const error: unknown = await load({ file: name }).catch((thrown: unknown) => thrown)
      t.ok(error instanceof ConfigurationError)
      t.match((error as Error).message, message)
      t.equal((error as Error).cause !== undefined, hasCause)
    })

  t.test('when its values are wrong, then all of them are listed', async t => {
    const { load } = setup(t, { 'pgbus.config.json': '{"maxRetries":-1,"pool":{"sise":1}}' })
    await t.rejects(load(), { message: /2 problems.*pool\.sise.*maxRetries/s })
  })
})
