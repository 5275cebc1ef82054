import cluster from 'node:cluster'
import type { Release } from './release.ts'
import type { WorkerProcess } from './worker-handle.ts'

/** Starts a worker of a release as a member of this process's cluster, which shares its ports. */
export function forkWorker({ entry, directory, env, phase }: Release, index: number): WorkerProcess {
  cluster.setupPrimary({ exec: entry, args: [], cwd: directory })
  return cluster.fork({ ...env, PGBUS_WEB_INDEX: String(index), PGBUS_WEB_PHASE: String(phase) })
}
