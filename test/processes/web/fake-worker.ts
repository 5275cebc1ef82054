import { EventEmitter } from 'node:events'
import type { WorkerProcess } from '../../../lib/processes/web/worker-handle.ts'

let lastPid = 4710

/** A worker process that does what a test says. Killing it makes it exit, a turn later. */
export class FakeWorker extends EventEmitter implements WorkerProcess {
  sent: unknown[] = []
  killed: string[] = []
  connected = true
  process = { pid: ++lastPid, kill: (signal: NodeJS.Signals) => this.#kill(signal) }

  isConnected() {
    return this.connected
  }

  send(message: unknown) {
    this.sent.push(message)
    return true
  }

  says(message: object) {
    this.emit('message', { pgbus: 'web', ...message })
  }

  exits(code: number | null, signal: string | null = null) {
    this.connected = false
    this.emit('exit', code, signal)
  }

  #kill(signal: NodeJS.Signals) {
    this.killed.push(signal)
    if (signal === 'SIGKILL') setImmediate(() => this.exits(null, 'SIGKILL'))
    return true
  }
}
