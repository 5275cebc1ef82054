/**
 * `npm run bench [name …]`: figures of one machine at one moment, as ratios against a bare floor measured in
 * the same run. Nothing here is asserted.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEmbedded } from '../lib/db/embedded/server.ts'
import { createPgbus } from '../lib/pgbus.ts'
import { enqueue } from './jobs/enqueue.ts'
import { throughput } from './jobs/throughput.ts'
import { roundTrip } from './streams/round-trip.ts'
import type { Bench } from './support/bench.ts'

const benches: Record<string, Bench> = { enqueue, throughput, 'round-trip': roundTrip }

const names = process.argv.slice(2)
const unknown = names.find(name => !(name in benches))
if (unknown !== undefined) {
  console.error(`no bench "${unknown}"; there are: ${Object.keys(benches).join(', ')}`)
  process.exit(2)
}

const dataDir = mkdtempSync(join(tmpdir(), 'pgbus-bench-'))
const server = await startEmbedded({ dataDir, port: 0, persistent: false })
const pgbus = createPgbus({
  databaseUrl: server.url,
  streams: { secret: 'a-secret-for-the-benchmark' },
  log: { level: 'error' },
})
try {
  await pgbus.schema.migrate()
  console.log(
    `node ${process.version}, ${cpus().length} × ${cpus()[0]?.model ?? 'unknown CPU'}, embedded PostgreSQL with fsync on`,
  )
  for (const name of names.length > 0 ? names : Object.keys(benches)) {
    for (const { what, ours, floor, unit } of await (benches[name] as Bench)(pgbus, server.url)) {
      const ratio = (ours / floor).toFixed(2)
      console.log(
        `${what.padEnd(52)} ${format(ours)} ${unit}   floor ${format(floor)} ${unit}   ratio ${ratio}`,
      )
    }
  }
} finally {
  await pgbus.close()
  await server.stop()
  rmSync(dataDir, { recursive: true, force: true })
}

function format(value: number): string {
  return (value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(2)).padStart(9)
}
