import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

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

  t.test(
    'when the main entry is imported, then everything public is there and nothing is loaded that is not needed',
    async t => {
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
    },
  )

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
    const code = `import { createPgbus } from 'pgbus'
      const pgbus = createPgbus({ databaseUrl: '${process.env.PGBUS_TEST_SERVER_URL ?? 'postgres://127.0.0.1:1/none'}' })
      try { const s = await pgbus.schema.status(); console.log('pending', s.pending.length, 'applied', s.applied.length) } catch (e) { console.log(e.message) } finally { await pgbus.close() }`
    t.match(run(folder, code).stdout, process.env.PGBUS_TEST_SERVER_URL ? /pending \d+/ : /./)
  })
})

t.test('given the packed package with fastify', async t => {
  const folder = installPacked(['fastify', '@fastify/sse'])

  t.test('when the plugin is imported, then it is a Fastify plugin', async t => {
    const { stdout, stderr } = run(
      folder,
      `import { pgbusStreams } from 'pgbus/fastify'; console.log(typeof pgbusStreams)`,
    )
    t.match(stdout, 'function', stderr)
  })
})
