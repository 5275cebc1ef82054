/**
 * `npm run bench:jobs [-- options]`: pgbus beside other queues, on one machine at one moment. See
 * benchmark/README.md for how to read it. Nothing here is asserted.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startEmbedded } from '../../lib/db/embedded/server.ts'
import { backlog } from './measures/backlog.ts'
import { bulk, enqueue } from './measures/enqueue.ts'
import { idle } from './measures/idle.ts'
import { latency } from './measures/latency.ts'
import type { Measure, Sizes } from './measures/measure.ts'
import { throughput } from './measures/throughput.ts'
import { bullmqPeer } from './peers/bullmq.ts'
import { graphilePeer } from './peers/graphile-worker.ts'
import { type Peer, type PeerName, peerNames } from './peers/peer.ts'
import { pgBossPeer } from './peers/pg-boss.ts'
import { pgbusPeer } from './peers/pgbus.ts'
import { hasRedis } from './peers/redis.ts'
import { Table } from './table.ts'

const measures: Record<string, Measure> = { enqueue, bulk, throughput, latency, backlog, idle }

const { values } = parseArgs({
  options: {
    only: { type: 'string', default: Object.keys(measures).join() },
    peers: { type: 'string', default: peerNames.join() },
    seconds: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '1' },
    jobs: { type: 'string', default: '20000' },
    backlog: { type: 'string', default: '200000' },
  },
})
const only = chosen('--only', values.only, Object.keys(measures))
const peers = chosen('--peers', values.peers, peerNames) as PeerName[]
const rounds = positive('--rounds', values.rounds)
const sizes: Sizes = {
  seconds: positive('--seconds', values.seconds),
  jobs: positive('--jobs', values.jobs),
  backlog: positive('--backlog', values.backlog),
}

const dataDir = mkdtempSync(join(tmpdir(), 'pgbus-bench-'))
const server = await startEmbedded({ dataDir, port: 0, persistent: false })
const opened: Peer[] = []
try {
  console.log(`node ${process.version}, ${cpus().length} cores, embedded PostgreSQL with fsync on`)
  for (const name of peers) {
    const peer = await open(name)
    if (peer === undefined) continue
    opened.push(peer)
    console.log(`${name}: ${peer.label}`)
  }
  const table = new Table(opened.map(({ name }) => name))
  for (const name of only) {
    for (let round = 0; round < rounds; round += 1) {
      // Round by round, so that a slow moment of the machine meets all of them.
      for (const peer of opened) {
        for (const figure of await (measures[name] as Measure)(peer, sizes)) table.add(peer.name, figure)
      }
    }
    console.log(table.take())
  }
} finally {
  for (const peer of opened) await peer.close()
  await server.stop()
  rmSync(dataDir, { recursive: true, force: true })
}

async function open(name: PeerName): Promise<Peer | undefined> {
  switch (name) {
    case 'pgbus':
      return pgbusPeer(server.url)
    case 'graphile-worker':
      return graphilePeer(server.url)
    case 'pg-boss':
      return pgBossPeer(server.url)
    case 'bullmq':
    case 'bullmq-durable':
      if (hasRedis()) return bullmqPeer(name === 'bullmq' ? 'everysec' : 'always')
      console.log(`${name}: left out, there is no redis-server on the PATH`)
      return undefined
  }
}

function chosen(option: string, list: string, names: readonly string[]): string[] {
  const wanted = list.split(',')
  const unknown = wanted.find(name => !names.includes(name))
  if (unknown !== undefined) fail(`${option}: no "${unknown}"; there are ${names.join(', ')}`)
  return wanted
}

function positive(option: string, text: string): number {
  const number = Number(text)
  if (!(number > 0)) fail(`${option} must be a number above 0, got "${text}"`)
  return number
}

function fail(message: string): never {
  console.error(message)
  process.exit(2)
}
