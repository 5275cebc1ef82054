import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { init, parse } from 'es-module-lexer'
import t from 'tap'

/**
 * Which rooms a room may import from. The compiled files are read, because type imports are gone there:
 * types may point up, code may not.
 */
const rooms: Record<string, readonly string[]> = {
  'lib/core': [],
  'lib/config': ['lib/core'],
  'lib/db': ['lib/core', 'lib/config'],
  'lib/pgmq': ['lib/core', 'lib/config', 'lib/db'],
  'lib/limits': ['lib/core', 'lib/config', 'lib/db', 'lib/pgmq'],
  'lib/jobs': ['lib/core', 'lib/config', 'lib/db', 'lib/pgmq', 'lib/limits'],
  'lib/streams': ['lib/core', 'lib/config', 'lib/db', 'lib/pgmq', 'lib/jobs'],
  'lib/events': ['lib/limits', 'lib/core', 'lib/config', 'lib/db', 'lib/pgmq', 'lib/jobs'],
  'lib/outbox': ['lib/limits', 'lib/core', 'lib/config', 'lib/db', 'lib/pgmq', 'lib/jobs'],
  'lib/recurring': ['lib/core', 'lib/config', 'lib/db', 'lib/pgmq', 'lib/jobs'],
  'lib/health': ['lib/core', 'lib/config', 'lib/db', 'lib/pgmq'],
  'lib/maintenance': [
    'lib/outbox',
    'lib/limits',
    'lib/recurring',
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/pgmq',
    'lib/jobs',
    'lib/streams',
  ],
  'lib/pgbus': [
    'lib/outbox',
    'lib/events',
    'lib/limits',
    'lib/recurring',
    'lib/health',
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/pgmq',
    'lib/jobs',
    'lib/streams',
  ],
  'lib/processes/supervisor': [
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/pgmq',
    'lib/limits',
    'lib/jobs',
    'lib/maintenance',
    'lib/pgbus',
    'lib/processes',
  ],
  'lib/processes/web': ['lib/core', 'lib/config', 'lib/db', 'lib/streams', 'lib/pgbus', 'lib/processes'],
  'lib/processes': ['lib/core', 'lib/config', 'lib/db'],
  'lib/doctor': [
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/pgmq',
    'lib/jobs',
    'lib/events',
    'lib/processes/supervisor',
  ],
  'lib/client': [],
  'lib/index': [
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/pgmq',
    'lib/jobs',
    'lib/events',
    'lib/outbox',
    'lib/streams',
    'lib/pgbus',
    'lib/processes/supervisor',
  ],
  plugins: ['lib/health', 'lib/core', 'lib/config', 'lib/db', 'lib/streams', 'lib/pgbus', 'lib/index'],
  bin: [
    'lib/core',
    'lib/config',
    'lib/db',
    'lib/health',
    'lib/pgbus',
    'lib/processes',
    'lib/processes/supervisor',
    'lib/processes/web',
    'lib/doctor',
    'lib/index',
  ],
}

const root = fileURLToPath(new URL('../', import.meta.url))

t.test('given the compiled modules', async t => {
  await init
  const imports = readImports()

  t.test('when their imports are read, then each points to a room that it may use', async t => {
    for (const [file, targets] of imports) {
      const room = roomOf(file)
      for (const target of targets) {
        const other = roomOf(target)
        if (other === room) continue
        t.ok(rooms[room]?.includes(other), `${file} imports ${target}: ${room} may not use ${other}`)
      }
    }
    t.ok(imports.size > 40, 'the modules were found')
  })

  t.test('when imports are followed, then no module reaches itself', async t => {
    const done = new Set<string>()
    const visit = (file: string, path: string[]): string[] | undefined => {
      if (path.includes(file)) return [...path.slice(path.indexOf(file)), file]
      if (done.has(file)) return undefined
      for (const target of imports.get(file) ?? []) {
        const cycle = visit(target, [...path, file])
        if (cycle) return cycle
      }
      done.add(file)
      return undefined
    }
    for (const file of imports.keys()) t.strictSame(visit(file, []), undefined, `${file} is in no circle`)
  })

  t.test('when files are named, then no drawer is among them', async t => {
    for (const file of imports.keys()) t.notMatch(file, /\/(utils?|helpers?|common|types|manager|misc)\.js$/)
  })
})

t.test('given the sources of the library', async t => {
  const sources = readdirSync(join(root, '..', 'lib'), { recursive: true, encoding: 'utf8' }).filter(
    name => name.endsWith('.ts') && !name.startsWith('client/'),
  )

  t.test('when they need the environment, then only config and the connection layer read it', async t => {
    for (const name of sources) {
      if (/^(config|db)\//.test(name)) continue
      const text = readFileSync(join(root, '..', 'lib', name), 'utf8')
      const reads = text.match(/process\.env(?!\s*(,|\)|\}|:))/g) ?? []
      t.equal(reads.length, 0, `${name} reads process.env`)
    }
  })

  t.test('when they throw, then never a bare Error', async t => {
    for (const name of sources) {
      const text = readFileSync(join(root, '..', 'lib', name), 'utf8')
      t.notMatch(text, /throw new Error\(/, name)
    }
  })
})

/** Every compiled file below lib, plugins and bin with the files of ours that it imports. */
function readImports(): Map<string, string[]> {
  const found = new Map<string, string[]>()
  for (const folder of ['lib', 'plugins', 'bin']) {
    for (const name of readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })) {
      if (!name.endsWith('.js')) continue
      const file = join(folder, name)
      const [imports] = parse(readFileSync(join(root, file), 'utf8'))
      const ours = imports.flatMap(({ type, specifier }) =>
        type !== 'import-meta' && specifier?.startsWith('.') ? [specifier] : [],
      )
      found.set(
        file,
        ours.map(specifier => relative(root, join(root, dirname(file), specifier))),
      )
    }
  }
  return found
}

/** The longest room whose path the file has. */
function roomOf(file: string): string {
  const path = file.replace(/\.js$/, '')
  const room = Object.keys(rooms)
    .filter(name => path === name || path.startsWith(`${name}/`))
    .sort((a, b) => b.length - a.length)[0]
  return room ?? `no room: ${file}`
}
