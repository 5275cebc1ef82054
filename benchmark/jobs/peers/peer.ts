/** A queue system as the comparison sees it: its producer's side in this process, its workers in others. */
export interface Peer {
  readonly name: PeerName
  /** Version and settings, for the heading. */
  readonly label: string
  readonly store: 'postgres' | 'redis'
  enqueue(payload: Payload): Promise<unknown>
  /** One call of the system's own bulk interface. */
  enqueueMany(payloads: readonly Payload[]): Promise<unknown>
  /** Whether any job is not recorded as done yet. */
  hasPending(): Promise<boolean>
  /** Removes every job, done ones included. */
  clear(): Promise<void>
  /** What an operator would have run by now: statistics for the planner. */
  analyze(): Promise<void>
  /** Connections of its workers. */
  workerConnections(): Promise<number>
  /** Commands or transactions that the server has run for it so far. */
  commandCount(): Promise<number>
  /** What the process of a worker is started with. */
  workerOptions(concurrency: number): WorkerProcess
  close(): Promise<void>
}

export const peerNames = ['pgbus', 'graphile-worker', 'pg-boss', 'bullmq', 'bullmq-durable'] as const
export type PeerName = (typeof peerNames)[number]

export interface Payload {
  /** Monotonic milliseconds at the call, comparable between processes of one machine; 0: not of interest. */
  sentAt: number
}

export interface WorkerProcess {
  /** Module to run. */
  file: string
  args: string[]
  env: Record<string, string>
}

export const queueName = 'bench'

/** The clock of the machine, the same in all its processes. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6
}
