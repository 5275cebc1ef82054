import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { checks } from '../../lib/doctor/doctor.ts'
import { createDatabase, type TestContext } from '../support/database.ts'
import { compiled, spawnNode } from '../support/spawn.ts'

async function run(t: TestContext, env: Record<string, string>, ...args: string[]) {
  const cwd = mkdtempSync(join(tmpdir(), 'pgbus-doctor-'))
  t.teardown(() => rmSync(cwd, { recursive: true, force: true }))
  // A module that talks, and that keeps its process alive.
  writeFileSync(join(cwd, 'talks.mjs'), 'console.log("hello"); setInterval(() => undefined, 1000)\n')
  const { child, exited, output } = spawnNode(t, compiled('bin/pgbus.ts'), ['doctor', ...args], { cwd, env })
  let stdout = ''
  child.stdout?.on('data', chunk => {
    stdout += chunk
  })
  const printed = [child.stdout, child.stderr].map(
    stream => new Promise(resolve => stream?.once('close', resolve)),
  )
  const { code } = await exited
  await Promise.all(printed)
  return { code, stdout, output: output() }
}

t.test('given an operator who asks what is wrong', async t => {
  t.test('when all is well, then there is one document, and the exit code is 0', async t => {
    const db = await createDatabase(t)
    const env = {
      PGBUS_DATABASE_URL: db.url,
      PGBUS_STREAMS_SECRET: 'a-secret-for-the-tests',
      PGBUS_IMPORTS: 'talks.mjs',
    }
    const { code, stdout, output } = await run(t, env, '--json')
    t.equal(code, 0, output)
    const report = JSON.parse(stdout) as { checks: { name: string }[]; config: { database_url: string } }
    t.match(report, { ok: true, config: { queue_prefix: 'pgbus', roles: /^workers, .*dispatcher/ } })
    t.strictSame(
      report.checks.map(({ name }) => name),
      checks.map(({ name }) => name),
    )
    t.match(report.config.database_url, /:\[REDACTED\]@/)
    t.match(output, /^hello$/m, 'what modules print goes elsewhere')
  })

  t.test('when there is no database at all, then there is a full report, and the exit code is 1', async t => {
    const { code, stdout, output } = await run(t, {
      PGBUS_DATABASE_URL: 'postgres://app:s3%40cr@t@127.0.0.1:1/x',
    })
    t.equal(code, 1)
    t.equal(stdout, output)
    t.match(stdout, /^XX Database +connect ECONNREFUSED 127\.0\.0\.1:1$/m)
    t.match(stdout, /^ok Shutdown budget +drainTimeout 30 s/m)
    for (const { name } of checks) t.match(stdout, new RegExp(`^(ok|!!|XX) ${name} `, 'm'))
    t.match(stdout, /^ {2}database_url +postgres:\/\/.*REDACTED/m)
    t.notMatch(stdout, /s3|cr@t/)
  })

  t.test('when the configuration is not valid, then that is the report', async t => {
    const { code, stdout } = await run(t, { PGBUS_POOL_SIZE: '0', PGBUS_PRIORITY_LEVELS: '99' }, '--json')
    t.equal(code, 1)
    t.match(JSON.parse(stdout), {
      ok: false,
      checks: [
        { name: 'Configuration', status: 'fail', detail: /PGBUS_POOL_SIZE.*; .*PGBUS_PRIORITY_LEVELS/ },
      ],
      config: null,
    })
  })
})
