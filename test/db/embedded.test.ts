import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import t from 'tap'
import { startEmbedded } from '../../lib/db/embedded/server.ts'

t.setTimeout(120_000)

t.test('given the embedded server', async t => {
  t.test(
    'when the machine went down and the number in its pid file belongs to somebody else, then it starts',
    async t => {
      // Goes with the second server.
      const dataDir = mkdtempSync(join(tmpdir(), 'pgbus-embedded-'))
      const first = await startEmbedded({ dataDir, port: 0, persistent: true })
      await first.stop()
      // This process is alive, and no server.
      const pidFile = `${process.pid}\n${join(dataDir, 'cluster')}\n`
      writeFileSync(join(dataDir, 'cluster', 'postmaster.pid'), pidFile)

      const second = await startEmbedded({ dataDir, port: 0, persistent: false })
      t.teardown(() => second.stop())
      const client = new pg.Client(second.url)
      await client.connect()
      t.match((await client.query('SELECT 1 AS one')).rows, [{ one: 1 }])
      await client.end()
    },
  )
})
