import type { Socket } from 'node:net'
import { encodeFrame, type HubFrame } from './protocol.ts'

const maxQueuedFrames = 1024
const maxQueuedBytes = 8 * 1024 * 1024

/**
 * What the hub still has to say to one worker.
 *
 * As long as the socket takes bytes, frames are written at once. While it does not, durable wakes become a set
 * of channels (merging them loses nothing, and the set is no larger than what the worker subscribed to), and
 * everything else waits in a queue. A queue that is full means a worker that will not catch up: the owner is
 * told once, and cuts it off so that it can look for another source instead of missing frames silently.
 */
export class WorkerLink {
  readonly #socket: Socket
  readonly #onFull: () => void
  readonly #dirty = new Set<string>()
  #queue: Buffer[] = []
  #queuedBytes = 0
  #blocked = false
  #merged = 0

  constructor(socket: Socket, onFull: () => void) {
    this.#socket = socket
    this.#onFull = onFull
    socket.on('drain', () => this.#flush())
  }

  get backlog(): { frames: number; bytes: number; dirty: number; merged: number } {
    return {
      frames: this.#queue.length,
      bytes: this.#queuedBytes,
      dirty: this.#dirty.size,
      merged: this.#merged,
    }
  }

  send(frame: HubFrame): void {
    this.sendBytes(encodeFrame(frame))
  }

  /** Sends an encoded frame in its turn. */
  sendBytes(bytes: Buffer): void {
    if (!this.#blocked) {
      this.#write(bytes)
      return
    }
    this.#queue.push(bytes)
    this.#queuedBytes += bytes.length
    if (this.#queue.length > maxQueuedFrames || this.#queuedBytes > maxQueuedBytes) this.#onFull()
  }

  /** Says that something durable was stored. `bytes` is that wake, encoded. */
  wake(channel: string, bytes: Buffer): void {
    if (!this.#blocked) this.#write(bytes)
    else if (this.#dirty.has(channel)) this.#merged += 1
    else this.#dirty.add(channel)
  }

  /** The worker no longer wants this channel. */
  forget(channel: string): void {
    this.#dirty.delete(channel)
  }

  #write(bytes: Buffer): void {
    if (this.#socket.writable) this.#blocked = !this.#socket.write(bytes)
  }

  #flush(): void {
    this.#blocked = false
    let sent = 0
    while (sent < this.#queue.length && !this.#blocked) {
      const bytes = this.#queue[sent]!
      sent += 1
      this.#queuedBytes -= bytes.length
      this.#write(bytes)
    }
    this.#queue = this.#queue.slice(sent)
    for (const channel of this.#dirty) {
      if (this.#blocked) return
      this.#dirty.delete(channel)
      this.#write(encodeFrame({ t: 'wake', q: channel, p: null }))
    }
  }
}
