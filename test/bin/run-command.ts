import { tmpdir } from 'node:os'
import { createDatabase, type TestContext } from '../support/database.ts'
import { createTestPgbus } from '../support/instance.ts'
import { compiled, spawnNode } from '../support/spawn.ts'

/** A database, an instance on it, and the command line. `run.with` takes further variables first. */
export async function setup(t: TestContext) {
  const db = await createDatabase(t)
  const pgbus = createTestPgbus(t, db)
  const runWith = async (env: Record<string, string>, ...args: string[]) => {
    const { child, exited, output } = spawnNode(t, compiled('bin/pgbus.ts'), args, {
      cwd: tmpdir(),
      env: { PGBUS_DATABASE_URL: db.url, ...env },
    })
    let stdout = ''
    child.stdout?.on('data', chunk => {
      stdout += chunk
    })
    const printed = [child.stdout, child.stderr].map(
      stream => new Promise(resolve => stream?.once('close', resolve)),
    )
    const { code } = await exited
    await Promise.all(printed)
    return { code, stdout, output: output(), json: () => JSON.parse(stdout) as unknown }
  }
  const run = Object.assign((...args: string[]) => runWith({}, ...args), { with: runWith })
  return { db, pgbus, run }
}
