/**
 * The test run: one PostgreSQL server, then tap over the compiled test files, then the counts.
 * `npm test -- test/streams/room.test.ts …` runs only those files. A skipped test fails the run.
 */
import { spawn, spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { findPgBouncer } from './pgbouncer.ts'
import { startRunServer } from './server.ts'

const root = fileURLToPath(new URL('../../../', import.meta.url))
const tap = fileURLToPath(new URL('../../../node_modules/.bin/tap', import.meta.url))

/** Browsers and whole clusters start inside these tests, on machines that may be busy. */
const fileTimeoutSeconds = 300
/** Most of a test is waiting, so two cores carry three. */
const filesAtOnce = 3
const needsPgBouncer = join('test', 'hosts', 'pgbouncer.test.ts')

const sources = process.argv.slice(2)
const files = (
  sources.length > 0 ? sources.map(file => relative(root, join(process.cwd(), file))) : testFiles()
).map(file => join('dist', file.replace(/\.ts$/, '.js')))

// tap assembles its own test class from the plugins of .taprc; a fresh node_modules does not have it yet.
const built = spawnSync(tap, ['build'], { cwd: root, encoding: 'utf8' })
if (built.status !== 0) throw new Error(`tap build failed: ${built.stdout}${built.stderr}`)

const folder = mkdtempSync(join(tmpdir(), 'pgbus-test-run-'))
// Run as root, the servers inside run as somebody else, who must be able to enter.
chmodSync(folder, 0o755)
const server = await startRunServer(process.env)
let counts = { pass: 0, fail: 1, skip: 0 }
try {
  counts = await runTap({ ...process.env, PGBUS_TEST_SERVER_URL: server.url, TMPDIR: folder })
} finally {
  await server.stop()
  rmSync(folder, { recursive: true, force: true })
}
process.exitCode = counts.fail > 0 || counts.skip > 0 || counts.pass === 0 ? 1 : 0
if (counts.skip > 0) console.log(`${counts.skip} skipped: a test that needs something absent must fail`)
console.log(`${counts.pass} passed, ${counts.fail + counts.skip} failed`)

function testFiles(): string[] {
  return readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter(name => name.endsWith('.test.ts'))
    .map(name => join('test', name))
    .filter(name => name !== needsPgBouncer || hasPgBouncer())
    .sort()
}

/** Not an npm package, so a fresh clone may lack it. CI says that it must be there; then its tests say so too. */
function hasPgBouncer(): boolean {
  if (process.env.PGBUS_TEST_PGBOUNCER === 'required' || findPgBouncer() !== undefined) return true
  console.log(`left out: ${needsPgBouncer}, there is no pgbouncer on the PATH`)
  return false
}

/** Runs tap and prints one line per file, and every failure with its details. */
async function runTap(env: NodeJS.ProcessEnv): Promise<{ pass: number; fail: number; skip: number }> {
  const child = spawn(
    tap,
    [
      'run',
      '--disable-coverage',
      '--allow-empty-coverage',
      '--reporter=tap',
      `--jobs=${filesAtOnce}`,
      `--timeout=${fileTimeoutSeconds}`,
      ...files,
    ],
    { cwd: root, env, stdio: ['ignore', 'pipe', 'inherit'] },
  )
  const exited = new Promise<number>(resolve => child.once('close', code => resolve(code ?? 1)))
  let summary: { total?: number; pass?: number; fail?: number; skip?: number } = {}
  let inFailure = false
  for await (const line of createInterface({ input: child.stdout })) {
    if (/^\s*not ok/.test(line) || /# SKIP/i.test(line)) {
      inFailure = true
      console.log(line)
    } else if (inFailure && /^\s*(---|\.\.\.|[^ ok#].*)$/.test(line) && !/^\s*(ok|1\.\.|# )/.test(line)) {
      console.log(line)
      if (/^\s*\.\.\.$/.test(line)) inFailure = false
    } else {
      inFailure = false
      if (/^ok /.test(line)) console.log(line)
    }
    const counted = /^# \{ (total: .*) \}$/.exec(line)
    if (counted?.[1])
      summary = Object.fromEntries(
        counted[1]
          .split(', ')
          .map(pair => pair.split(': '))
          .map(([key, n]) => [key, Number(n)]),
      )
  }
  const code = await exited
  const { pass = 0, fail = 0, skip = 0 } = summary
  return { pass, fail: code !== 0 && fail + skip === 0 ? 1 : fail, skip }
}
