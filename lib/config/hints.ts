import { closest, distance } from 'fastest-levenshtein'
import { keyByPath } from './schema.ts'

const furthest = 2

/** Names that people bring along from elsewhere and that spell nothing of ours. */
const renamed: Record<string, string> = {
  capsule: 'workers',
  concurrency: 'workers[].concurrency',
  connectionString: 'databaseUrl',
  listenNotify: 'notify.enabled',
  logger: 'log.logger',
  retryBackoff: 'retry.base',
  retryBackoffMax: 'retry.max',
  retryBackoffJitter: 'retry.jitter',
  streamsDefaultBroadcastMode: 'streams.defaultMode',
  streamsListenHealthCheckMs: 'streams.listenHealthCheck',
  streamsSignedNameSecret: 'streams.secret',
  streamsWriteDeadlineMs: 'streams.writeDeadline',
  streamsWriterBufferLimit: 'streams.maxBufferedBytes',
  workerNotifyDatabaseUrl: 'notify.databaseUrl',
  workerNotifyHost: 'notify.host',
  workerNotifyPort: 'notify.port',
  workerNotifyScope: 'notify.scope',
}

/** What the writer of an unknown key may have meant. */
export function hintFor(path: string): string | undefined {
  const found = meant(path)
  return found === undefined ? undefined : `did you mean ${found}?`
}

function meant(path: string): string | undefined {
  const paths = [...keyByPath.keys()]
  const camel = path.replace(/_([a-z0-9])/gi, (_, letter: string) => letter.toUpperCase())
  if (keyByPath.has(camel)) return camel
  if (Object.hasOwn(renamed, camel)) return renamed[camel]
  // `pool_size` and `poolSize` are `pool.size`.
  const bare = squash(path)
  const flat = paths.find(known => squash(known) === bare)
  if (flat !== undefined) return flat
  const near = closest(camel, paths)
  if (distance(camel, near) <= furthest) return near
  // A key that was put into the wrong group.
  const own = camel.split('.').at(-1)
  const elsewhere = paths.filter(known => known.split('.').at(-1) === own)
  return elsewhere.length === 1 ? elsewhere[0] : undefined
}

function squash(path: string): string {
  return path.replace(/[._]/g, '').toLowerCase()
}
