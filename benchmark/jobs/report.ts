/** In the process of a worker: waits for the start, counts what was handled, and tells the benchmark. */
import { once } from 'node:events'
import { createConnection } from 'node:net'
import { machineMs, type Payload } from './peers/peer.ts'

export interface Report {
  /** Jobs handled so far. */
  done: number
  /** {@link machineMs} when the first and the latest began. */
  first: number
  last: number
  /** Milliseconds from call to handler, since the report before. */
  latencies: number[]
  rssBytes: number
}

const everyMs = 10

let done = 0
let told = 0
let first = 0
let last = 0
let latencies: number[] = []

/** Called by each handler. */
export function handled({ sentAt }: Payload): void {
  done += 1
  last = machineMs()
  if (done === 1) first = last
  if (sentAt > 0) latencies.push(last - sentAt)
}

/** Connects to the benchmark and resolves when that says go; what happens then is reported every 10 ms. */
export async function waitForStart(): Promise<void> {
  const socket = createConnection(process.env.BENCH_SOCKET ?? '')
  await once(socket, 'connect')
  socket.on('close', () => process.exit())
  await once(socket, 'data')
  setInterval(() => {
    if (done === told) return
    told = done
    const report: Report = { done, first, last, latencies, rssBytes: process.memoryUsage.rss() }
    latencies = []
    socket.write(`${JSON.stringify(report)}\n`)
  }, everyMs)
}
