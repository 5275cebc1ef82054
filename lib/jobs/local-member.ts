import type { HubMember, HubMessage } from './notify-hub.ts'
import type { Worker } from './worker.ts'

/** Hands what a hub tells to a worker of the same process. */
export function localMember(worker: Worker): HubMember {
  return {
    slot: 'local',
    send: (message, sent) => {
      dispatch(worker, message)
      sent()
    },
  }
}

/** What a worker does when it is told something. */
export function dispatch(
  worker: Pick<Worker, 'wake' | 'refresh' | 'cancel' | 'setDelivering'>,
  message: HubMessage,
): void {
  switch (message.t) {
    case 'wake':
      worker.wake()
      return
    case 'refresh':
      worker.refresh()
      return
    case 'cancel':
      worker.cancel(message)
      return
    case 'healthy':
    case 'degraded':
      worker.setDelivering(message.t === 'healthy')
  }
}
