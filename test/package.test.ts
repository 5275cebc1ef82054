import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { createEmptyDatabase } from './support/database.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  version: string
  dependencies: Record<string, string>
  peerDependencies: Record<string, string>
  bin: Record<string, string>
}

/** A project that has only the packed tarball and its production dependencies. */
function installPacked(peers: string[] = []): string {
  const folder = mkdtempSync(join(tmpdir(), 'pgbus-test-package-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  const [{ filename }] = JSON.parse(
    execFileSync('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', folder], {
      cwd: root,
      encoding: 'utf8',
    }),
  ) as [{ filename: string }]
  const modules = join(folder, 'node_modules')
  mkdirSync(join(modules, 'pgbus'), { recursive: true })
  execFileSync('tar', ['-xzf', join(folder, filename), '-C', join(modules, 'pgbus'), '--strip-components=1'])
  for (const name of [...Object.keys(manifest.dependencies), ...peers]) {
    mkdirSync(dirname(join(modules, name)), { recursive: true })
    symlinkSync(join(root, 'node_modules', name), join(modules, name))
  }
  return folder
}

function run(folder: string, code: string): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
    cwd: folder,
    encoding: 'utf8',
    env: { PATH: process.env.PATH },
  })
  return { status, stdout, stderr }
}

t.test('given the packed package without any peer', async t => {
  const folder = installPacked()

  t.test('when the main entry is imported, then everything public is there without a peer', async t => {
    const { stdout, stderr } = run(
      folder,
      `import * as pgbus from 'pgbus'; console.log(Object.keys(pgbus).join(' '))`,
    )
    for (const name of [
      'createPgbus',
      'loadPgbus',
      'defineConfig',
      'defineJob',
      'startSupervisor',
      'PgbusError',
    ])
      t.match(stdout, name, stderr)
  })

  t.test('when the client is imported, then it loads outside a browser too', async t => {
    t.match(
      run(folder, `import { PgbusStream } from 'pgbus/client'; console.log(typeof PgbusStream)`).stdout,
      'function',
    )
  })

  t.test('when an inner file is imported, then it is refused', async t => {
    t.match(run(folder, `import 'pgbus/dist/lib/pgbus.js'`).stderr, 'ERR_PACKAGE_PATH_NOT_EXPORTED')
  })

  t.test('when a command is run, then it works from where it was installed', async t => {
    for (const file of Object.values(manifest.bin)) {
      const path = join(folder, 'node_modules/pgbus', file)
      t.match(readFileSync(path, 'utf8'), /^#!\/usr\/bin\/env node\n/, file)
    }
    const version = execFileSync(
      process.execPath,
      [join(folder, 'node_modules/pgbus', manifest.bin.pgbus ?? ''), '--version'],
      { encoding: 'utf8' },
    )
    t.match(version, manifest.version)
  })

  t.test('when migrations are looked for, then they are in the package', async t => {
    const db = await createEmptyDatabase(t)
    const code = `import { createPgbus } from 'pgbus'
      const pgbus = createPgbus({ databaseUrl: '${db.url}', log: { level: 'silent' } })
      console.log('pending', (await pgbus.schema.status()).pending.length)
      await pgbus.close()`
    t.match(run(folder, code).stdout, /pending [1-9]/)
  })
})

t.test('given the packed package with fastify', async t => {
  const folder = installPacked(['fastify', '@fastify/sse', '@types/node'])

  t.test(
    'when an application in strict TypeScript uses it, then every type of the package is sound',
    async t => {
      writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
      writeFileSync(
        join(folder, 'app.ts'),
        `import Fastify from 'fastify'
import { createPgbus, defineConfig, defineJob, type Queryable } from 'pgbus'
import { pgbusStreams } from 'pgbus/fastify'
export default defineConfig({ workers: 'default: 5', retry: { base: '5s' } })
const job = defineJob<{ id: number }>({ name: 'a' }, async ({ id }, ctx) => {
  await ctx.pgbus.stream('a').broadcast({ id }, { event: 'done' })
})
const pgbus = createPgbus()
export const place = (tx: Queryable) => pgbus.enqueue(job, { id: 1 }, { tx, delay: '5m' })
// @ts-expect-error the arguments of a job are typed
export const wrong = () => pgbus.enqueue(job, { id: 'one' })
const app = Fastify()
await app.register(pgbusStreams, { pgbus })
app.get('/', async (request, reply) => {
  const [since] = await request.streamMark('a')
  return reply.streamSourceTag('a', { since: since ?? 0 })
})
`,
      )
      const tsc = join(root, 'node_modules/.bin/tsc')
      const flags = [
        '--noEmit',
        '--strict',
        '--module',
        'nodenext',
        '--target',
        'es2023',
        '--lib',
        'es2023,esnext.disposable',
        '--types',
        'node',
      ]
      // The compiler cannot be loaded through the hooks that tap adds to every process of Node.
      const { status, stdout, stderr } = spawnSync('env', ['-u', 'NODE_OPTIONS', tsc, ...flags, 'app.ts'], {
        cwd: folder,
        encoding: 'utf8',
      })
      t.equal(stdout + stderr, '')
      t.equal(status, 0)
    },
  )

  t.test('when the plugin is imported, then it is a Fastify plugin', async t => {
    const { stdout, stderr } = run(
      folder,
      `import { pgbusStreams } from 'pgbus/fastify'; console.log(typeof pgbusStreams)`,
    )
    t.match(stdout, 'function', stderr)
  })
})
