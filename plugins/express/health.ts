import type { Pgbus } from '../../lib/pgbus.ts'
import type { NodeRequest, NodeResponse } from '../node/door.ts'
import { healthAnswerer } from '../node/health.ts'

/** Middleware of Express 4 and 5. It answers everything below the path that it is mounted on. */
export type PgbusHealthExpress = (request: NodeRequest, response: NodeResponse) => void

/**
 * `/livez` and `/readyz` of the whole cluster in an Express application:
 * `app.use('/pgbus/health', pgbusHealthExpress({ pgbus }))`. Mount it before sessions and everything else that asks a
 * database.
 * @throws TypeError
 */
export function pgbusHealthExpress({ pgbus }: { pgbus: Pgbus }): PgbusHealthExpress {
  const answer = healthAnswerer(pgbus)
  return (request, response) => {
    // Express has cut the mount path off.
    const [path = ''] = (request.url ?? '').split('?', 1)
    answer(request, response, path)
  }
}
