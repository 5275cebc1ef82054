import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { createDatabase, createEmptyDatabase, type TestContext } from '../support/database.ts'
import { compiled, spawnNode } from '../support/spawn.ts'

const nowhere = 'postgres://app:very-secret@127.0.0.1:1/orders'

const folder = (t: TestContext, files: Record<string, string> = {}) => {
  const path = mkdtempSync(join(tmpdir(), 'pgbus-cli-'))
  t.teardown(() => rmSync(path, { recursive: true, force: true }))
  for (const [name, text] of Object.entries(files)) writeFileSync(join(path, name), text)
  return path
}

/** Runs a command to its end. */
const run = async (
  t: TestContext,
  args: string[],
  env: Record<string, string> = {},
  files: Record<string, string> = {},
) => {
  const { child, exited, output } = spawnNode(t, compiled('bin/pgbus.ts'), args, {
    cwd: folder(t, files),
    env,
  })
  let stdout = ''
  child.stdout?.on('data', chunk => {
    stdout += chunk
  })
  // The exit may be seen before the last of what was printed.
  const printed = [child.stdout, child.stderr].map(
    stream => new Promise(resolve => stream?.once('close', resolve)),
  )
  const { code } = await exited
  await Promise.all(printed)
  return { code, stdout, output: output() }
}

/** Runs `pgbus …` as a shell does, with pipes; the exit code is that of pgbus. */
const shell = (line: string, env: Record<string, string>) =>
  spawnSync(
    'bash',
    ['--norc', '-c', `set -o pipefail; "${process.execPath}" "${compiled('bin/pgbus.ts')}" ${line}`],
    {
      env: { PATH: process.env.PATH, ...env },
      encoding: 'utf8',
    },
  )

t.test('given the pgbus command', async t => {
  t.test('when asked for its version, then in each way', async t => {
    for (const args of [['version'], ['--version'], ['-v']]) {
      const { code, output } = await run(t, args)
      t.equal(code, 0)
      t.match(output, /^pgbus \d+\.\d+\.\d+\n$/)
    }
  })

  t.test('when asked for help, then every command is listed', async t => {
    for (const args of [['help'], ['--help']]) {
      const { code, output } = await run(t, args)
      t.equal(code, 0)
      for (const command of ['start', 'migrate', 'config', 'demo', 'version']) t.match(output, command)
    }
    t.match((await run(t, ['help', 'start'])).output, /--queues/)
  })

  t.test('when misused, then the exit code is 1 and help goes to stderr', async t => {
    for (const args of [[], ['strat'], ['start', '--nonsense'], ['start', '--queues'], ['start', 'extra']]) {
      const { code, stdout, output } = await run(t, args)
      t.equal(code, 1, args.join(' '))
      t.equal(stdout, '')
      t.match(output, /Usage: pgbus/)
    }
    t.match((await run(t, ['strat'])).output, /^pgbus: unknown command 'strat'/)
  })

  t.test(
    'when the configuration is an ES module in a package of scripts, then the cure is named',
    async t => {
      const { code, output } = await run(
        t,
        ['config'],
        {},
        { 'package.json': '{"type":"commonjs"}', 'pgbus.config.js': 'export default {}' },
      )
      t.equal(code, 1)
      t.match(output, /pgbus: cannot load .*pgbus\.config\.js: .*npm pkg set type=module/)
    },
  )

  t.test('when nobody reads its output to the end, then it ends quietly', async t => {
    const db = await createDatabase(t)
    const { status, stdout, stderr } = shell(`status --json | (exec <&-; sleep 2)`, {
      PGBUS_DATABASE_URL: db.url,
    })
    t.same({ status, stdout, stderr }, { status: 0, stdout: '', stderr: '' })
  })

  t.test('when its output cannot be written, then it says so and the exit code is 1', async t => {
    const { status, stderr } = shell('--help >/dev/full', {})
    t.match(stderr, /^pgbus: cannot write the output: ENOSPC/)
    t.equal(status, 1)
  })
})

t.test('given pgbus migrate', async t => {
  t.test('when the database is empty, then it is installed once', async t => {
    const db = await createEmptyDatabase(t)
    const env = { PGBUS_DATABASE_URL: db.url }
    const dry = await run(t, ['migrate', '--dry-run', '--json'], env)
    t.equal(dry.code, 0)
    const { pending } = JSON.parse(dry.stdout) as { pending: string[] }
    t.ok(pending.length > 0)
    t.match(JSON.parse((await run(t, ['migrate', '--status', '--json'], env)).stdout), {
      applied: [],
      pending,
      pgmq: { mode: 'none', version: null },
    })

    const first = await run(t, ['migrate'], env)
    t.equal(first.code, 0)
    t.match(first.output, new RegExp(`\\n${pending.length} migrations applied\\n$`))
    const second = await run(t, ['migrate'], env)
    t.equal(second.code, 0)
    t.equal(second.output, 'the database is up to date\n')
    t.match((await run(t, ['migrate', '--status'], env)).output, /applied {2}001_pgmq\.sql/)
  })

  t.test('when the database is down, then it fails at once and names it', async t => {
    const env = { PGBUS_DATABASE_URL: nowhere }
    const { code, output, stdout } = await run(t, ['migrate'], env)
    t.equal(code, 1)
    t.equal(stdout, '')
    t.match(
      output,
      /^pgbus: cannot reach the database via env \(127\.0\.0\.1:1\/orders\): .*ECONNREFUSED.*\n$/,
    )
    t.notMatch(output, /very-secret/)

    const json = await run(t, ['migrate', '--json'], env)
    t.equal(json.code, 1)
    t.match(JSON.parse(json.stdout), {
      error: { code: 'PGBUS_ERR_BOOT', message: /^cannot reach the database/ },
    })
  })

  t.test('when no database is configured, then it says what to set', async t => {
    const { code, output } = await run(t, ['migrate'])
    t.equal(code, 1)
    t.match(output, /^pgbus: no database configured — set databaseUrl/)
  })
})

t.test('given pgbus config', async t => {
  const file = { 'pgbus.config.mjs': 'export default { drainTimeout: "2m", workers: "mail: 2" }' }

  t.test('when asked for all, then values and their sources are shown, and no secret', async t => {
    const { code, stdout } = await run(
      t,
      ['config'],
      { PGBUS_DATABASE_URL: nowhere, PGBUS_POOL_SIZE: '7' },
      file,
    )
    t.equal(code, 0)
    t.match(stdout, /^# .*pgbus\.config\.mjs\n/)
    t.match(stdout, '\ndrainTimeout = 120000  # file\n')
    t.match(stdout, '\nshutdownTimeout = 125000\n')
    t.match(stdout, '\npool.size = 7  # environment\n')
    t.match(stdout, /\nworkers = \[\{"name":"mail","queues":\["mail"\],"concurrency":2,.*\}\] {2}# file\n/)
    t.match(stdout, 'databaseUrl = "postgres://app:[REDACTED]@127.0.0.1:1/orders"  # environment\n')
    t.notMatch(stdout, /very-secret/)
  })

  t.test('when JSON is wanted, then it is one document', async t => {
    const { stdout } = await run(t, ['config', '--json'], { PGBUS_DATABASE_URL: nowhere }, file)
    t.match(JSON.parse(stdout), { config: { drainTimeout: 120_000, queuePrefix: 'pgbus' } })
  })

  t.test('when checked, then only the verdict is told, without a database', async t => {
    const good = await run(t, ['config', '--check'], { PGBUS_DATABASE_URL: nowhere }, file)
    t.equal(good.code, 0)
    t.match(good.output, /^the configuration is valid \(.*pgbus\.config\.mjs\)\n$/)

    const bad = await run(
      t,
      ['config', '--check'],
      {},
      { 'pgbus.config.mjs': 'export default { drainTimout: "2m", pool: { size: -1 } }' },
    )
    t.equal(bad.code, 1)
    t.match(bad.output, /^pgbus: Invalid pgbus configuration \(2 problems\)\n {2}/)
    t.match(bad.output, /drainTimout: unknown key/)
    t.match(bad.output, /pool\.size/)
  })

  t.test('when the file throws, then it is one line, and a stack at log level debug', async t => {
    const broken = { 'pgbus.config.mjs': 'throw new Error("first line\\nsecond line")' }
    const { code, output } = await run(t, ['config'], {}, broken)
    t.equal(code, 1)
    t.match(output, /^pgbus: cannot load .*pgbus\.config\.mjs: first line second line\n$/)
    t.match((await run(t, ['config'], { PGBUS_LOG_LEVEL: 'debug' }, broken)).output, /\n\s+at /)
  })
})

t.test('given pgbus start with queues of its own', async t => {
  t.test('when they are named, then they replace those of the configuration', async t => {
    const db = await createDatabase(t)
    const host = spawnNode(t, compiled('bin/pgbus.ts'), ['start', '--queues', 'critical: 2; mail, news'], {
      cwd: folder(t, { 'pgbus.config.mjs': 'export default { workers: "default: 9" }' }),
      env: { PGBUS_DATABASE_URL: db.url, PGBUS_WORKERS: 'other' },
    })
    await host.waitForOutput(/ready: 3 children/)
    t.match(host.output(), /boot: roles=workers,consumers,dispatcher/)
    t.match(host.output(), /boot: worker=critical queues=critical concurrency=2/)
    t.match(host.output(), /boot: worker=mail queues=mail,news concurrency=5/)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when one entry and one role are chosen, then nothing else runs', async t => {
    const db = await createDatabase(t)
    const args = ['start', '--queues', 'critical: 2; mail, news', '--capsule', 'mail', '--workers-only']
    const host = spawnNode(t, compiled('bin/pgbus.ts'), args, { env: { PGBUS_DATABASE_URL: db.url } })
    await host.waitForOutput(/ready: 1 children/)
    t.match(host.output(), /boot: roles=workers\b/)
    t.match(host.output(), /boot: worker=mail queues=mail,news/)
    t.notMatch(host.output(), /critical/)
    host.signal('SIGTERM')
    t.strictSame(await host.exited, { code: 0, signal: null })
  })

  t.test('when the choice is none, then it says which there are', async t => {
    const env = { PGBUS_DATABASE_URL: nowhere }
    const unknown = await run(t, ['start', '--queues', 'mail: 2; news: 1', '--capsule', 'post'], env)
    t.equal(unknown.code, 1)
    t.match(unknown.output, 'pgbus: no entry of workers is called "post"; there are: mail, news')
    const both = await run(t, ['start', '--workers-only', '--dispatcher-only'], env)
    t.equal(both.code, 1)
    t.match(both.output, 'pgbus: --workers-only and --dispatcher-only are mutually exclusive')
    const role = await run(t, ['start'], { ...env, PGBUS_ROLES: 'workers,workres' })
    t.equal(role.code, 1)
    t.match(
      role.output,
      'unknown role "workres"; roles are: workers, consumers, dispatcher, scheduler, outbox',
    )
  })

  t.test('when they make no sense, then it says so', async t => {
    const { code, output } = await run(t, ['start', '--queues', 'mail: many'], {
      PGBUS_DATABASE_URL: nowhere,
    })
    t.equal(code, 1)
    t.match(output, /^pgbus: Invalid pgbus configuration/)
    t.match(output, /many/)
  })
})
