import type { JsonValue } from '../core/json.ts'
import { defineJob, findJob } from '../jobs/define.ts'

/** A broadcast whose HTML is made by a job worker. */
export interface BroadcastJobArgs {
  stream: string
  renderer: string
  args: JsonValue
  target?: string
  action?: string
  event?: string
  visibleTo?: string
  exclude?: string
  durable?: boolean
}

export const broadcastJobName = 'pgbus:broadcast'

// Another copy of the package may have come first; the arguments are the same.
if (!findJob(broadcastJobName)) {
  defineJob<BroadcastJobArgs>({ name: broadcastJobName }, async (job, { pgbus }) => {
    const { stream, renderer, args, target, action, ...options } = job
    const html = await pgbus.renderers.render(renderer, args)
    const handle = pgbus.stream(stream)
    if (target === undefined) await handle.broadcast(html, options)
    else await handle.broadcastRender({ ...options, target, action, render: html })
  })
}
